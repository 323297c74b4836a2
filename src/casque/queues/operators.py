"""OperatorMethods: what operators do with the jobs of a store, and what they look at."""

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
from casque.system.clock import to_datetime


class OperatorMethods:
    """The half of a queue that needs no claim."""

    _session: Session

    # -- managing --------------------------------------------------------------

    async def cancel(self, id: str | Job, *, reason: str = "") -> Job:
        """Never run the job (again). One that is running loses its lease at once."""
        job: Job = await self._session.submit(Cancel(_id(id), checks.text(reason, "reason")))
        return job

    async def retry(self, id: str | Job) -> Job:
        """A dead job back to its queue, due now, with all its attempts."""
        job: Job = await self._session.submit(Retry(_id(id)))
        return job

    async def requeue_stale(self, timeout: timedelta) -> int:
        """Take back the jobs in progress not heard of for `timeout`, whatever their lease.

        Their holders are fenced. Not needed for jobs to come back: an expired
        lease does that by itself. Returns how many were taken back.
        """
        count: int = await self._session.submit(RequeueStale(checks.span(timeout, "timeout")))
        return count

    async def purge(self, *, older_than: timedelta, queue: str | None = None) -> int:
        """Forget the jobs that finished longer ago than that. Returns how many."""
        operation = Purge(
            checks.span(older_than, "older_than"),
            None if queue is None else checks.name(queue, "queue"),
        )
        count: int = await self._session.submit(operation)
        return count

    async def pause(self, queue: str) -> None:
        """Nothing is dequeued from this queue until `resume`; enqueueing goes on."""
        operation = PutRecord(PAUSE, checks.name(queue, "queue"), b"", ABSENT)
        with suppress(CASConflictError):  # paused already
            await self._session.submit(operation)

    async def resume(self, queue: str) -> None:
        """End a pause. Resuming a queue that is not paused is fine."""
        await self._session.submit(DeleteRecord(PAUSE, checks.name(queue, "queue"), None))

    async def drop(self, queue: str) -> int:
        """Forget every job of this queue, running ones too. Returns how many. A pause stays."""
        count: int = await self._session.submit(Drop(checks.name(queue, "queue")))
        return count

    @asynccontextmanager
    async def lease_queue(
        self, queue: str, *, lease: timedelta = timedelta(seconds=5)
    ) -> AsyncIterator[Lease | None]:
        """A short exclusive claim on a whole queue; None when another has it.

        Advisory: `dequeue` takes no notice. It ends with the context or by time.
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

    # -- looking ---------------------------------------------------------------

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

    async def get(self, id: str | Job) -> Job | None:
        """The job as it is now, or None when there is none of that id (any more)."""
        return await self._session.readable.get(_id(id))

    async def stats(self, queue: str | None = None) -> Stats:
        """How many jobs are in which state, in one queue or in all."""
        return await self._session.readable.stats(
            None if queue is None else checks.name(queue, "queue")
        )

    async def queues(self, *, due: bool = False) -> list[str]:
        """The names of the queues that have jobs, or only of those with a job due now."""
        return await self._session.readable.queues(due=due)

    async def next_run_at(self, queue: str) -> datetime | None:
        """When the first job of this queue is due; None when it has none."""
        due = await self._session.readable.next_run(checks.name(queue, "queue"))
        return None if due is None else to_datetime(due)

    async def read_state(self) -> QueueState:
        """Everything at once, as a frozen value. For tools, tests and small queues."""
        return await self._session.readable.picture()


def as_lease(record: Record) -> Lease:
    """A record that is a claim, as one."""
    assert record.expires_us is not None
    return Lease(record.value.decode(), record.version, to_datetime(record.expires_us))


def _id(job: str | Job) -> str:
    return job.id if isinstance(job, Job) else checks.name(job, "id")
