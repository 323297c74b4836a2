"""HeartbeatManager: sends heartbeats while a block of code runs."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from typing import Protocol, Self

from casque import checks
from casque.compat.jqueue.domain.errors import (
    CASConflictError,
    JQueueError,
    StorageError,
    jqueue_errors,
)
from casque.system.clock import SystemClock


class Beating(Protocol):
    """Has the method `heartbeat`."""

    async def heartbeat(self, job_id: str) -> None: ...


@dataclasses.dataclass
class HeartbeatManager:
    """Calls `queue.heartbeat(job_id)` every `interval`, until the block ends.

    It stops silently when the queue raises a JQueueError, for example because the job was acked
    or another worker has it; the later `ack` then raises. If only the storage failed, the next
    beat follows after `interval`. Any other exception is raised at the end of the block, unless
    the block raised one itself.
    """

    queue: Beating
    job_id: str
    interval: timedelta = timedelta(seconds=60)

    _task: asyncio.Task[None] | None = dataclasses.field(default=None, init=False, repr=False)

    async def __aenter__(self) -> Self:
        with jqueue_errors():
            pause_us = checks.span(self.interval, "interval")
        self._task = asyncio.create_task(self._beat(pause_us))
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        failure = None if task.cancelled() else task.exception()
        if failure is not None and error is None:
            raise failure

    async def _beat(self, pause_us: int) -> None:
        clock = SystemClock()
        while True:
            await clock.sleep(pause_us, blocking=False)
            try:
                await self.queue.heartbeat(self.job_id)
            except (StorageError, CASConflictError):
                continue
            except JQueueError:
                return
