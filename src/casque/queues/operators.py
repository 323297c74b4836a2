"""OperatorMethods: the methods that change and read any job of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta

from casque import checks
from casque.errors import CASConflictError
from casque.job import Job, Lease, Stats
from casque.queues import arguments
from casque.queues.session import Session
from casque.record import ABSENT, PAUSE, QUEUE_LEASE, Record
from casque.rules.operations import (
    Cancel,
    DeleteRecord,
    Drop,
    Purge,
    PutRecord,
    RequeueStale,
    Retry,
)
from casque.rules.state import QueueState
from casque.rules.views import JobFilter
from casque.system.clock import to_datetime


class OperatorMethods:
    """The methods of a queue that need no claim."""

    _session: Session

    # -- managing --------------------------------------------------------------

    async def cancel(self, id: str | Job, *, reason: str = "") -> Job:
        """Never run the job (again). A running job loses its lease at once."""
        job: Job = await self._session.submit(Cancel(_id(id), checks.text(reason, "reason")))
        return job

    async def retry(self, id: str | Job) -> Job:
        """Put a dead job back into its queue, due now, with no attempt used."""
        job: Job = await self._session.submit(Retry(_id(id)))
        return job

    async def requeue_stale(self, timeout: timedelta) -> int:
        """Requeue jobs in progress without a heartbeat for `timeout`, even with a valid lease.

        Later writes of their holders are rejected. Usually not needed: a job whose lease expires is
        due again by itself. Returns how many were requeued.
        """
        count: int = await self._session.submit(RequeueStale(checks.span(timeout, "timeout")))
        return count

    async def purge(self, *, older_than: timedelta, queue: str | None = None) -> int:
        """Delete the jobs that finished longer ago than `older_than`. Returns how many."""
        operation = Purge(
            checks.span(older_than, "older_than"),
            None if queue is None else checks.name(queue, "queue"),
        )
        count: int = await self._session.submit(operation)
        return count

    async def pause(self, queue: str) -> None:
        """Stop dequeues from this queue until `resume`. Enqueueing continues."""
        operation = PutRecord(PAUSE, checks.name(queue, "queue"), b"", ABSENT)
        with suppress(CASConflictError):  # paused already
            await self._session.submit(operation)

    async def resume(self, queue: str) -> None:
        """End a pause. Resuming a queue that is not paused is fine."""
        await self._session.submit(DeleteRecord(PAUSE, checks.name(queue, "queue"), None))

    async def drop(self, queue: str) -> int:
        """Delete all jobs of this queue, even running ones; a pause stays. Returns how many."""
        count: int = await self._session.submit(Drop(checks.name(queue, "queue")))
        return count

    @asynccontextmanager
    async def lease_queue(
        self, queue: str, *, lease: timedelta = timedelta(seconds=5)
    ) -> AsyncIterator[Lease | None]:
        """Claim a whole queue exclusively for a short time; None if another caller has the claim.

        The claim is advisory: `dequeue` ignores it. It ends with the context or when it expires.
        """
        held = await self._take_queue(queue, lease)
        try:
            yield None if held is None else as_lease(held)
        finally:
            if held is not None:
                await self._session.delete(held)

    async def _take_queue(self, queue: str, lease: timedelta) -> Record | None:
        lease_us = checks.positive_span(lease, "lease")
        return await self._session.take(QUEUE_LEASE, checks.name(queue, "queue"), lease_us)

    # -- reading ---------------------------------------------------------------

    async def peek(
        self,
        entrypoint: str | Collection[str] | None = None,
        *,
        queue: str | None = None,
        limit: int = 10,
    ) -> list[Job]:
        """The jobs that a dequeue would take now. No lease, no change."""
        return await self._session.readable.peek(
            arguments.entrypoints(entrypoint),
            None if queue is None else checks.name(queue, "queue"),
            checks.whole(limit, "limit", 1),
        )

    async def jobs(
        self,
        *,
        status: str | None = None,
        queue: str | None = None,
        entrypoint: str | None = None,
        limit: int = 100,
        after: Job | int | None = None,
    ) -> list[Job]:
        """Up to `limit` jobs in the order in which they were enqueued. No lease, no change.

        `status` is a `JobStatus`, or the name of a field of `Stats`, such as "scheduled".
        The next page begins after the last job of this one: pass that job as `after`.
        """
        wanted = JobFilter(
            arguments.selection(status),
            None if queue is None else checks.name(queue, "queue"),
            None if entrypoint is None else checks.name(entrypoint, "entrypoint"),
        )
        return await self._session.readable.jobs(
            wanted, limit=checks.whole(limit, "limit", 1), after=arguments.position(after)
        )

    async def get(self, id: str | Job) -> Job | None:
        """The job as it is now, or None if no job has this id (any more)."""
        return await self._session.readable.get(_id(id))

    async def stats(self, queue: str | None = None) -> Stats:
        """The number of jobs in each state, in one queue or in all."""
        return await self._session.readable.stats(
            None if queue is None else checks.name(queue, "queue")
        )

    async def queues(self, *, due: bool = False) -> list[str]:
        """The names of the queues that have jobs; with `due`, only those with a job due now."""
        return await self._session.readable.queues(due=due)

    async def next_run_at(self, queue: str) -> datetime | None:
        """When the first job of this queue is due; None if there is none."""
        due = await self._session.readable.next_run(checks.name(queue, "queue"))
        return None if due is None else to_datetime(due)

    async def read_state(self) -> QueueState:
        """All jobs as a frozen value. For tools, tests and small queues."""
        return await self._session.readable.picture()


def as_lease(record: Record) -> Lease:
    """The record of a claim as a Lease."""
    assert record.expires_us is not None
    return Lease(record.value.decode(), record.version, to_datetime(record.expires_us))


def _id(job: str | Job) -> str:
    return job.id if isinstance(job, Job) else checks.name(job, "id")
