"""Keeper: renew a claim while a body of code runs, and end the body when the claim is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from casque.clock import Bell, Clock, Stopwatch, drive
from casque.errors import CASConflictError, JobNotFoundError, LeaseLostError, StorageError

_RETRIES_PER_LEASE = 10

Beat = Callable[[], Awaitable[object]]


class Keeper:
    """Beats every `every_us` until stopped, from a task or from a thread.

    No answer from the storage is not a loss: the beat is repeated, sooner,
    until the lease has run out with none having got through.
    """

    def __init__(self, beat: Beat, every_us: int, lease_us: int | None, clock: Clock) -> None:
        self._beat = beat
        self._every_us = every_us
        self._lease_us = lease_us
        self._clock = clock
        self.loss: Exception | None = None
        """Why the claim is lost, once it is."""
        self._stop: Bell | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Beat beside the current task; cancel it when the claim is lost."""
        body = asyncio.current_task()
        assert body is not None
        self._stop = self._clock.bell(blocking=False)
        self._task = asyncio.create_task(self._watch_over(body))

    async def stop(self, *, raised: BaseException | None) -> bool:
        """Beat no more. True when the body ended, or should have, because the claim was lost."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()
        if self.loss is None:
            return False
        body = asyncio.current_task()
        assert body is not None
        was_ours = body.uncancel() == 0
        return raised is None or (isinstance(raised, asyncio.CancelledError) and was_ours)

    def start_thread(self) -> None:
        """Beat from a thread. Nothing can stop the caller's code: it asks `loss`."""
        self._stop = self._clock.bell(blocking=True)
        self._thread = threading.Thread(
            target=lambda: drive(self._keep()), name="casque-keeper", daemon=True
        )
        self._thread.start()

    def stop_thread(self, *, raised: BaseException | None) -> bool:
        assert self._stop is not None
        assert self._thread is not None
        self._stop.ring()
        self._thread.join()
        return self.loss is not None and raised is None

    async def _watch_over(self, body: asyncio.Task[Any]) -> None:
        await self._keep()
        if self.loss is not None:
            body.cancel()

    async def _keep(self) -> None:
        assert self._stop is not None
        renewed = Stopwatch(self._clock)
        pause = self._every_us
        while not await self._stop.wait(pause):
            sent = Stopwatch(self._clock)
            try:
                await self._beat()
            except (LeaseLostError, JobNotFoundError, CASConflictError) as loss:
                self.loss = loss
                return
            except StorageError as error:
                if self._lease_us is not None and renewed.elapsed_us() >= self._lease_us:
                    self.loss = error
                    return
                pause = min(pause, (self._lease_us or self._every_us) // _RETRIES_PER_LEASE)
                continue
            # From before it was sent: the store counts from its arrival, which is later.
            renewed, pause = sent, self._every_us
