"""GroupCommitLoop: the calls of many tasks in one commit, which also requeues stale jobs."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from casque.compat.jqueue.core.calls import JobCalls, read_state, stale_after
from casque.compat.jqueue.domain.errors import InvalidError, jqueue_errors
from casque.compat.jqueue.domain.models import Job, QueueState
from casque.job import Job as StoredJob
from casque.queues import async_queue
from casque.queues.arguments import NewJob
from casque.rules.operations import Operation, RequeueStale
from casque.stores.port import Store
from casque.stores.url import StoreAddress, open_store
from casque.system.clock import MICROSECOND, drive, span_us


@dataclasses.dataclass
class GroupCommitLoop:
    """A queue that is open between `start` and `stop`. It can start again.

    `storage` is a storage of jqueue's kind, or any address that casque's queues take. The next
    `enqueue` or `dequeue` requeues a job whose last heartbeat is older than `stale_timeout`.
    """

    storage: StoreAddress
    stale_timeout: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        self._calls = JobCalls()
        self._queue: _SweepingQueue | None = None
        with jqueue_errors():
            stale_after(self.stale_timeout, "stale_timeout")
            self._store = open_store(self.storage)

    async def start(self) -> None:
        if self._queue is not None:
            raise RuntimeError("this GroupCommitLoop is already running.")
        with jqueue_errors():
            self._queue = _SweepingQueue(self._store, self.stale_timeout)
            await self._queue.__aenter__()

    async def stop(self) -> None:
        """Commit pending calls, and close the storage."""
        queue, self._queue = self._queue, None
        if queue is None:
            return
        with jqueue_errors():
            await queue.close()
            if self._store is self.storage:
                return
            if self._store.blocking and not self._store.instant:
                await asyncio.to_thread(drive, self._store.close())
            elif not self._store.instant:  # the jobs of a memory store end with it
                await self._store.close()

    async def enqueue(self, entrypoint: str, payload: bytes, priority: int = 0) -> Job:
        """Add a job, and return once it is stored."""
        return await self._calls.enqueue(self._open(), entrypoint, payload, priority)

    async def dequeue(self, entrypoint: str | None = None, *, batch_size: int = 1) -> list[Job]:
        """Claim up to `batch_size` queued jobs; None means any entrypoint."""
        return await self._calls.dequeue(self._open(), entrypoint, batch_size)

    async def ack(self, job_id: str) -> None:
        """Remove a finished job."""
        await self._calls.ack(self._open(), job_id)

    async def nack(self, job_id: str) -> None:
        """Queue the job again."""
        await self._calls.nack(self._open(), job_id)

    async def heartbeat(self, job_id: str) -> None:
        """Store that the job's worker is alive."""
        await self._calls.heartbeat(self._open(), job_id)

    async def read_state(self) -> QueueState:
        """All current jobs. Works before `start` and after `stop` too."""
        return await read_state(self._store)

    @property
    def _task(self) -> object:
        """The queue that runs between `start` and `stop`. jqueue's own tests read this name."""
        return self._queue

    def _open(self) -> _SweepingQueue:
        if self._queue is None:
            raise InvalidError(
                "this queue is not open: write `async with BrokerQueue(…) as q:`, or call `start`."
            )
        return self._queue


class _SweepingQueue(async_queue.BrokerQueue):
    """A BrokerQueue whose `enqueue` and `dequeue` requeue stale jobs in the same commit.

    `ack`, `nack` and `heartbeat` do not: a late worker must not requeue its own job.
    """

    def __init__(self, store: Store, stale_timeout: timedelta) -> None:
        stale_timeout = stale_after(stale_timeout, "stale_timeout")
        super().__init__(store, lease=max(stale_timeout, MICROSECOND), _owner="BrokerQueue")
        self._sweep = RequeueStale(span_us(stale_timeout))
        self._is_sweeping = False

    def _enqueue(
        self, new: NewJob, *, replace: bool = False
    ) -> Coroutine[Any, Any, list[StoredJob]]:
        return self._swept(self._to_enqueue(new, replace=replace))

    async def dequeue(
        self,
        entrypoint: Any = None,
        *,
        queue: str | None = None,
        id: str | None = None,
        batch_size: int = 1,
        lease: timedelta | None = None,
        wait: timedelta | None = None,
    ) -> list[StoredJob]:
        del wait  # jqueue does not wait
        leased = await self._swept(self._to_dequeue(entrypoint, queue, id, batch_size, lease))
        jobs: list[StoredJob] = leased.jobs
        return jobs

    async def _swept(self, operation: Operation) -> Any:
        if self._is_sweeping:  # one sweep per commit is enough
            return await self._session.submit(operation)
        self._is_sweeping = True
        try:
            _, outcome = await self._session.submit_all((self._sweep, operation))
        finally:
            self._is_sweeping = False
        if isinstance(outcome, Exception):
            raise outcome
        return outcome
