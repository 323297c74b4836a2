"""JobCalls: jqueue's calls by job id, made on a queue of casque."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from casque import checks, errors
from casque.compat.jqueue.domain.errors import JobNotFoundError, LeaseLostError, jqueue_errors
from casque.compat.jqueue.domain.models import Job, JobStatus, QueueState
from casque.job import Job as StoredJob
from casque.job import JobStatus as StoredStatus
from casque.queues.async_queue import AsyncQueue
from casque.stores.port import Store
from casque.system.clock import drive

CLAIMS_KEPT = 100_000
UNLIMITED_ATTEMPTS = checks.LARGEST_INT
"""jqueue has no limit of attempts."""

T = TypeVar("T")


class JobCalls:
    """The calls of one jqueue queue object, and the claims that it got.

    This object keeps the claims, because a BrokerQueue that is entered again opens a new casque
    queue. It keeps ended claims too: once another worker has the job, every call must raise
    LeaseLostError. If this object never claimed the job, a call uses the current claim of any
    worker, as in jqueue.
    """

    def __init__(self) -> None:
        self._claims: dict[str, StoredJob] = {}

    async def enqueue(
        self, queue: AsyncQueue, entrypoint: str, payload: bytes, priority: int
    ) -> Job:
        new = Job.new(entrypoint, payload, priority)
        with jqueue_errors():
            added = await queue.enqueue(
                new.entrypoint,
                new.payload,
                new.priority,
                id=new.id,
                max_attempts=UNLIMITED_ATTEMPTS,
            )
        return to_jqueue(added)

    async def dequeue(
        self, queue: AsyncQueue, entrypoint: str | None, batch_size: int
    ) -> list[Job]:
        if batch_size == 0:
            return []
        with jqueue_errors():
            claimed = await queue.dequeue(entrypoint, batch_size=batch_size)
        for job in claimed:
            self._keep(job)
        return [to_jqueue(job) for job in claimed]

    async def ack(self, queue: AsyncQueue, job_id: str) -> None:
        """Remove the job, even if it is queued or dead. LeaseLostError: see `_held`."""
        with jqueue_errors():
            found = await self._held(queue, job_id, queue.ack)
            if found is not None:
                if found.status is StoredStatus.DEAD:
                    await queue.retry(job_id)
                claimed = await queue.dequeue(id=job_id)
                if not claimed:
                    raise LeaseLostError(job_id)
                await queue.ack(claimed[0])
        self._claims.pop(job_id, None)

    async def nack(self, queue: AsyncQueue, job_id: str) -> None:
        """Queue the job again. Nothing changes if it is queued."""
        with jqueue_errors():
            found = await self._held(queue, job_id, queue.nack)
            if found is not None and found.status is StoredStatus.DEAD:
                await queue.retry(job_id)

    async def heartbeat(self, queue: AsyncQueue, job_id: str) -> None:
        with jqueue_errors():
            found = await self._held(queue, job_id, queue.heartbeat)
        if found is not None:
            raise LeaseLostError(job_id)

    async def _held(
        self,
        queue: AsyncQueue,
        job_id: str,
        act: Callable[[StoredJob], Awaitable[object]],
    ) -> StoredJob | None:
        """Act on the claim, and return None; or return the job if it is queued or dead.

        Raises LeaseLostError if this object's claim is over and another worker has the job.
        """
        claim = self._claims.get(job_id)
        if claim is None:
            claim = await _existing(queue, job_id)
        try:
            await act(claim)
        except errors.LeaseLostError:
            job = await _existing(queue, job_id)
            if job.status not in (StoredStatus.QUEUED, StoredStatus.DEAD):
                raise
            return job
        return None

    def _keep(self, job: StoredJob) -> None:
        """Keep the claim without its payload. Drop the oldest if too many."""
        self._claims.pop(job.id, None)
        self._claims[job.id] = StoredJob(
            id=job.id, entrypoint=job.entrypoint, payload=b"", token=job.token
        )
        while len(self._claims) > CLAIMS_KEPT:
            del self._claims[next(iter(self._claims))]


def stale_after(timeout: timedelta, what: str) -> timedelta:
    """Return the time without a heartbeat after which a job is stale; at least 0."""
    if isinstance(timeout, timedelta):
        timeout = max(timeout, timedelta(0))
    checks.span(timeout, what)
    return timeout


async def read_state(store: Store) -> QueueState:
    """All jobs of the store that have a status of jqueue."""
    with jqueue_errors():
        if store.blocking and not store.instant:
            picture = await asyncio.to_thread(drive, store.picture())
        else:
            picture = await store.picture()
    known = {status.value for status in JobStatus}
    jobs = tuple(to_jqueue(job) for job in picture.jobs if job.status.value in known)
    return QueueState(jobs=jobs, version=picture.version)


def to_jqueue(job: StoredJob) -> Job:
    """The job with jqueue's fields."""
    return Job(
        id=job.id,
        entrypoint=job.entrypoint,
        payload=job.payload,
        status=JobStatus(job.status.value),
        priority=job.priority,
        created_at=job.created_at,
        heartbeat_at=job.heartbeat_at,
    )


async def _existing(queue: AsyncQueue, job_id: str) -> StoredJob:
    job = await queue.get(job_id)
    if job is None:
        raise JobNotFoundError(job_id)
    return job
