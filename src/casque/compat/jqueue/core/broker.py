"""BrokerQueue: a GroupCommitLoop as a context manager."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Self

from casque.compat.jqueue.core.group_commit import GroupCommitLoop
from casque.compat.jqueue.domain.models import Job, QueueState
from casque.stores.url import StoreAddress


@dataclasses.dataclass
class BrokerQueue:
    """Group commit: the calls of concurrent tasks are stored together.

    Works inside `async with`, which may be entered again. Leaving it commits pending calls. The
    parameters are those of GroupCommitLoop.
    """

    storage: StoreAddress
    stale_timeout: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        self._loop = GroupCommitLoop(self.storage, self.stale_timeout)

    async def __aenter__(self) -> Self:
        await self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()

    async def enqueue(self, entrypoint: str, payload: bytes, priority: int = 0) -> Job:
        """Add a job, and return once it is stored."""
        return await self._loop.enqueue(entrypoint, payload, priority)

    async def dequeue(self, entrypoint: str | None = None, *, batch_size: int = 1) -> list[Job]:
        """Claim up to `batch_size` queued jobs; None means any entrypoint."""
        return await self._loop.dequeue(entrypoint, batch_size=batch_size)

    async def ack(self, job_id: str) -> None:
        """Remove a finished job."""
        await self._loop.ack(job_id)

    async def nack(self, job_id: str) -> None:
        """Queue the job again."""
        await self._loop.nack(job_id)

    async def heartbeat(self, job_id: str) -> None:
        """Store that the job's worker is alive."""
        await self._loop.heartbeat(job_id)

    async def read_state(self) -> QueueState:
        """All current jobs. Works outside of `async with` too."""
        return await self._loop.read_state()
