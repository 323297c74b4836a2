"""DirectQueue: one commit per call."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

from casque import checks
from casque.compat.jqueue.core.calls import JobCalls, read_state, stale_after
from casque.compat.jqueue.domain.errors import jqueue_errors
from casque.compat.jqueue.domain.models import Job, QueueState
from casque.queues import async_queue
from casque.stores.url import StoreAddress
from casque.system.clock import LONGEST_SPAN_US

NO_END = timedelta(microseconds=LONGEST_SPAN_US)
"""The lease of a claim. Only `requeue_stale` or a BrokerQueue requeues the job."""


@dataclasses.dataclass
class DirectQueue:
    """A queue without a background task. It needs no `async with`.

    `storage` is a storage of jqueue's kind, or any address that casque's queues take. A call
    raises CASConflictError after it has lost `max_retries` writes against other writers.
    """

    storage: StoreAddress
    max_retries: int = 10

    def __post_init__(self) -> None:
        self._calls = JobCalls()
        with jqueue_errors():
            tries = max(checks.whole(self.max_retries, "max_retries", 0), 1)
            self._queue = async_queue.DirectQueue(self.storage, lease=NO_END, max_retries=tries - 1)

    async def enqueue(self, entrypoint: str, payload: bytes, priority: int = 0) -> Job:
        """Add a job, and return once it is stored."""
        return await self._calls.enqueue(self._queue, entrypoint, payload, priority)

    async def dequeue(self, entrypoint: str | None = None, *, batch_size: int = 1) -> list[Job]:
        """Claim up to `batch_size` queued jobs; None means any entrypoint."""
        return await self._calls.dequeue(self._queue, entrypoint, batch_size)

    async def ack(self, job_id: str) -> None:
        """Remove a finished job."""
        await self._calls.ack(self._queue, job_id)

    async def nack(self, job_id: str) -> None:
        """Queue the job again."""
        await self._calls.nack(self._queue, job_id)

    async def heartbeat(self, job_id: str) -> None:
        """Store that the job's worker is alive."""
        await self._calls.heartbeat(self._queue, job_id)

    async def requeue_stale(self, timeout: timedelta) -> int:
        """Requeue running jobs without a heartbeat for `timeout`. Returns their number."""
        with jqueue_errors():
            return await self._queue.requeue_stale(stale_after(timeout, "timeout"))

    async def read_state(self) -> QueueState:
        """All jobs as they are now."""
        return await read_state(self._queue.store)
