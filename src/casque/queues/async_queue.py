"""DirectQueue and BrokerQueue: the queues for producers and consumers.

Both have every method; they differ in how operations reach the store. A DirectQueue makes one
commit per operation, a BrokerQueue commits the operations of all its callers together. `Queue`
(sync_queue.py) has the same methods without `await`. The methods for operators are in operators.py.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Self

from casque import checks
from casque.errors import (
    CasqueError,
    InvalidError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
)
from casque.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, Job
from casque.queues import arguments, refusals
from casque.queues.arguments import NewJob
from casque.queues.held_claims import HeldClaim, HeldClaims
from casque.queues.lineage import inherited
from casque.queues.operators import OperatorMethods
from casque.queues.running_job import RunningJob, consuming
from casque.queues.session import Session
from casque.retry import Backoff
from casque.rules.additions import too_deep
from casque.rules.decide import Leased
from casque.rules.operations import (
    Ack,
    Dequeue,
    Discard,
    Enqueue,
    Fail,
    Heartbeat,
    Hold,
    Nack,
    Operation,
    Release,
    Request,
)
from casque.stores.port import Joined, Store
from casque.stores.url import StoreAddress
from casque.system.clock import LOOK_US, Bell, StepWatch

DEFAULT_LEASE = timedelta(minutes=5)
DEFAULT_MAX_DEPTH = 16


class AsyncQueue(OperatorMethods):
    """Base of `DirectQueue` and `BrokerQueue`: all their methods."""

    _must_enter = False
    _one_by_one = False

    def __init__(
        self,
        store: StoreAddress,
        *,
        lease: timedelta | None = None,
        worker: str | None = None,
        max_depth: int = DEFAULT_MAX_DEPTH,
        stale_timeout: timedelta | None = None,
        max_retries: int | None = None,
        _blocking: bool = False,
        _owner: str | None = None,
        _address: str | None = None,
    ) -> None:
        if lease is not None and stale_timeout is not None:
            raise InvalidError("`stale_timeout` is another name for `lease`: give one of them.")
        if lease is None:
            lease = DEFAULT_LEASE if stale_timeout is None else stale_timeout
        self._lease_us = checks.positive_span(lease, "lease")
        self._max_depth = checks.whole(max_depth, "max_depth", 0)
        if max_retries is not None:
            checks.whole(max_retries, "max_retries", 0)
        self._session = Session(
            store,
            owner=_owner or type(self).__name__,
            worker=worker,
            blocking=_blocking,
            one_by_one=self._one_by_one,
            must_enter=self._must_enter,
            max_conflicts=max_retries,
            shared_address=_address,
        )
        self._held_claims = HeldClaims()

    # -- life ------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store underneath, to share with another queue or a Lock."""
        return self._session.store

    @property
    def worker(self) -> str:
        """The name this queue object puts on its claims."""
        return self._session.worker

    async def __aenter__(self) -> Self:
        self._session.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Commit pending operations, within a time limit, and close. Calling it twice is fine."""
        await self._session.close()

    # -- producing -------------------------------------------------------------

    async def enqueue(
        self,
        entrypoint: str,
        payload: bytes = b"",
        priority: int = 0,
        *,
        queue: str = DEFAULT_QUEUE,
        id: str | None = None,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        retain: timedelta | None = None,
        timeout: timedelta | None = None,
        headers: Mapping[str, str] | None = None,
        replace: bool = False,
        connection: object = None,
    ) -> Job:
        """Add a job. When this returns, the job is stored.

        Lower priority numbers run first. If a job with this `id` exists, nothing is added and that
        job is returned, with `duplicate` set. With `replace`, the new job takes the place of that
        job; a running job is not replaced: CASConflictError. `retain` keeps the record that long
        after success. `timeout` limits one attempt; workers enforce it, the queue does not.
        `headers` are up to 1 KiB of text stored with the job, such as trace context. With
        `connection`, to the queue's SQLite file, the job joins the transaction that is open there.
        The job is stored if, and only if, that transaction commits. It is a sqlite3.Connection,
        Django's `connection`, or a Session, Connection or raw connection of SQLAlchemy.
        """
        new = NewJob(
            entrypoint,
            payload,
            priority,
            queue=queue,
            id=id,
            delay=delay,
            run_at=run_at,
            max_attempts=max_attempts,
            retain=retain,
            timeout=timeout,
            headers=headers,
        )
        if connection is not None:
            return self._enqueue_within((new,), connection, replace=replace).jobs[0]
        [job] = await self._enqueue(new, replace=replace)
        return job

    def _enqueue(self, new: NewJob, *, replace: bool = False) -> Coroutine[Any, Any, list[Job]]:
        return self._session.submit(self._to_enqueue(new, replace=replace))

    async def enqueue_many(
        self, jobs: Iterable[NewJob], *, replace: bool = False, connection: object = None
    ) -> list[Job]:
        """Add up to 10,000 jobs (64 MiB of payload), all or none, in order."""
        if connection is not None:
            return self._enqueue_within(jobs, connection, replace=replace).jobs
        requests = arguments.requests(jobs, inherited(), self._session.clock.mint)
        if not requests:
            self._session.check_open()
            return []
        operation = self._allowed(requests, replace=replace)
        added: list[Job] = await self._session.submit(operation)
        return added

    def _enqueue_within(
        self, jobs: Iterable[NewJob], connection: object, *, replace: bool = False
    ) -> Joined:
        """Add jobs inside the caller's transaction, on the calling thread."""
        requests = arguments.requests(jobs, inherited(), self._session.clock.mint)
        if not requests:
            self._session.check_open()
            return Joined([], None)
        operation = self._allowed(requests, replace=replace)
        return self._session.enqueue_within(connection, operation)

    # -- consuming -------------------------------------------------------------

    async def dequeue(
        self,
        entrypoint: str | Collection[str] | None = None,
        *,
        queue: str | None = None,
        id: str | None = None,
        batch_size: int = 1,
        lease: timedelta | None = None,
        wait: timedelta | None = None,
    ) -> list[Job]:
        """Lease up to `batch_size` due jobs, lowest priority number first, then oldest.

        Returns at once, perhaps with fewer jobs or none. With `wait`, returns as soon as a job is
        due, or an empty list after that time. A job has one holder at a time, but a lease that
        expires makes the job due again: work slower than its lease may run twice. An earlier
        holder's `ack` is rejected.
        """
        operation = self._to_dequeue(entrypoint, queue, id, batch_size, lease)
        if wait is not None:
            return await self._wait_for(operation, checks.span(wait, "wait"))
        asked = self._session.clock.monotonic()
        leased: Leased = await self._session.submit(operation)
        self._held_claims.add(leased.jobs, operation.lease_us, asked)
        return leased.jobs

    async def _wait_for(self, operation: Dequeue, wait_us: int) -> list[Job]:
        clock = self._session.clock
        give_up = clock.monotonic() + wait_us
        bell, steps = clock.bell(blocking=self._session.blocking), StepWatch(clock)
        with self._session.access.listen(bell) as may_sleep, self._session.woken_by_close(bell):
            while True:
                asked = clock.monotonic()
                leased: Leased = await self._session.submit(operation)
                left = give_up - clock.monotonic()
                if leased.jobs or left <= 0:
                    self._held_claims.add(leased.jobs, operation.lease_us, asked)
                    return leased.jobs
                sleeps = (left, may_sleep(), leased.next_in_us)
                await self._sleep(bell, min(us for us in sleeps if us is not None), steps)

    async def _sleep(self, bell: Bell, span_us: int, steps: StepWatch) -> None:
        """Sleep until `bell` rings, the time is over, or a clock step may make jobs due."""
        clock = self._session.clock
        end = clock.monotonic() + span_us
        while not await bell.wait(max(min(span_us, LOOK_US), 1)):
            span_us = end - clock.monotonic()
            if span_us <= 0 or steps.has_stepped():
                return

    async def ack(
        self, job: Job | str, *, result: bytes | None = None, enqueue: Iterable[NewJob] = ()
    ) -> None:
        """Complete the job and add the jobs in `enqueue`: in one commit, both or neither."""
        hold = self._held_claims.hold_of(job)
        await self._session.submit(self._to_ack(hold, result, enqueue))
        self._held_claims.drop(hold)

    async def ack_many(self, jobs: Iterable[Job | str]) -> None:
        """Ack several jobs. Raises LeaseLostError if some were lost; the others are acked."""
        holds = [self._held_claims.hold_of(job) for job in arguments.several(jobs, "Job")]
        self._session.check_open()
        if not holds:
            return
        lost: list[str] = []
        done, trouble = 0, None
        outcomes = await self._session.submit_all([Ack(*hold) for hold in holds])
        for hold, outcome in zip(holds, outcomes, strict=True):
            if outcome is None:
                self._held_claims.drop(hold)
                done += 1
            elif isinstance(outcome, LeaseLostError | JobNotFoundError):
                lost.append(hold[0])
            else:
                trouble = outcome
        if trouble is not None and done:
            raise StorageError(
                f"{done} of {len(holds)} jobs were acked; then: {trouble}", cause=trouble
            ) from trouble
        if trouble is not None:
            raise trouble
        _raise_lost(lost, len(holds), "acked")

    async def nack(
        self,
        job: Job | str,
        *,
        delay: timedelta | None = None,
        backoff: Backoff | None = None,
        error: str | BaseException = "",
    ) -> Job:
        """Report a failed attempt. Returns the job as it is now: queued again, or dead.

        It is due again after `delay`, or after the wait of `backoff` for this
        attempt; without either, at once.
        """
        hold = self._held_claims.hold_of(job)
        operation = Nack(*hold, self._wait_us(job, delay, backoff), checks.failure(error))
        return await self._finish(hold, operation)

    def _wait_us(self, job: Job | str, delay: timedelta | None, backoff: Backoff | None) -> int:
        if backoff is None:
            return 0 if delay is None else checks.span(delay, "delay")
        if delay is not None:
            raise InvalidError("give `delay` or `backoff`, not both.")
        if not isinstance(backoff, Backoff):
            raise InvalidError(
                f"`backoff` must be a Backoff, not {checks.kind_of(backoff)}: write "
                "Backoff(base=timedelta(seconds=2))."
            )
        return backoff.delay_us(self._held_claims.attempts_of(job), self._session.clock.random())

    async def fail(self, job: Job | str, *, error: str | BaseException = "") -> Job:
        """Report a failed attempt and make the job dead now, without another attempt."""
        hold = self._held_claims.hold_of(job)
        return await self._finish(hold, Fail(*hold, checks.failure(error)))

    async def discard(self, job: Job | str, *, reason: str = "") -> Job:
        """Cancel a job that its holder decides not to do. The reason is stored with the job."""
        hold = self._held_claims.hold_of(job)
        return await self._finish(hold, Discard(*hold, checks.text(reason, "reason")))

    async def release(self, job: Job | str, *, delay: timedelta | None = None) -> Job:
        """Give the job back, due after `delay`; the attempt does not count."""
        hold = self._held_claims.hold_of(job)
        delay_us = 0 if delay is None else checks.span(delay, "delay")
        return await self._finish(hold, Release(*hold, delay_us))

    async def _finish(self, hold: tuple[str, int], operation: Operation) -> Job:
        job: Job = await self._session.submit(operation)
        self._held_claims.drop(hold)
        return job

    async def heartbeat(
        self,
        job: Job | str,
        *,
        lease: timedelta | None = None,
        progress: float | None = None,
        note: str | None = None,
        output: bytes | None = None,
    ) -> Job:
        """Renew the lease, by default for its original length, and store the progress of the work.

        `progress` is from 0 to 1. The last 64 KiB of `output` are kept.
        """
        hold = self._held_claims.hold_of(job)
        operation = Heartbeat(
            (hold,),
            None if lease is None else checks.positive_span(lease, "lease"),
            None if progress is None else checks.fraction(progress),
            None if note is None else checks.text(note, "note"),
            None if output is None else checks.tail(output),
        )
        [outcome] = await self._session.submit(operation)
        if isinstance(outcome, CasqueError):
            raise outcome
        renewed: Job = outcome
        return renewed

    async def heartbeat_many(
        self, jobs: Iterable[Job | str], *, lease: timedelta | None = None
    ) -> None:
        """Renew several leases in one operation. Raises LeaseLostError if some were lost."""
        holds = tuple(self._held_claims.hold_of(job) for job in arguments.several(jobs, "Job"))
        lease_us = None if lease is None else checks.positive_span(lease, "lease")
        if not holds:
            return self._session.check_open()
        outcomes = await self._session.submit(Heartbeat(holds, lease_us))
        lost = [
            hold[0]
            for hold, outcome in zip(holds, outcomes, strict=True)
            if isinstance(outcome, CasqueError)
        ]
        return _raise_lost(lost, len(holds), "renewed")

    def running(self, job: Job) -> AbstractContextManager[RunningJob]:
        """In this context, code runs inside `job`, which `dequeue` returned.

        `current_job()` returns the job, jobs that are enqueued here are one level deeper, and a
        program that is started with `env=current_job().environ()` knows its job. This renews no
        lease and settles nothing.
        """
        return consuming(job, self._session.address)

    def _held_claim(self, job: Job | str) -> HeldClaim | None:
        return self._held_claims.find(job)

    # -- checked operations, for the sync Queue too ----------------------------

    def _to_enqueue(self, new: NewJob, *, replace: bool = False) -> Enqueue:
        [minted], [order] = self._session.clock.mint(1)
        request = arguments.request(new, inherited(), minted, order)
        if replace or request.depth > self._max_depth:
            return self._allowed((request,), replace=replace)
        return Enqueue((request,), self._max_depth)

    def _allowed(self, requests: tuple[Request, ...], *, replace: bool) -> Enqueue:
        """The operation, unless the loop guard refuses it: the store would refuse it too."""
        if replace:
            arguments.check_named(requests)
        if requests[0].depth > self._max_depth:  # all have the same
            error = too_deep(requests[0], self._max_depth)
            refusals.write(str(error))
            raise error
        return Enqueue(requests, self._max_depth, replace)

    def _to_dequeue(
        self,
        entrypoint: str | Collection[str] | None,
        queue: str | None,
        id: str | None,
        batch_size: int,
        lease: timedelta | None,
    ) -> Dequeue:
        return Dequeue(
            self._session.worker,
            self._lease_us if lease is None else checks.positive_span(lease, "lease"),
            checks.whole(batch_size, "batch_size", 1),
            None if entrypoint is None else arguments.entrypoints(entrypoint),
            None if queue is None else checks.name(queue, "queue"),
            None if id is None else checks.name(id, "id"),
        )

    def _to_ack(self, hold: Hold, result: bytes | None, enqueue: Iterable[NewJob]) -> Ack:
        return Ack(
            *hold,
            None if result is None else checks.data(result, "result", checks.RESULT_BYTES),
            ()
            if enqueue == ()
            else arguments.requests(enqueue, inherited(), self._session.clock.mint),
            self._max_depth,
        )


class DirectQueue(AsyncQueue):
    """One commit per operation: the shortest path from a call to the store.

    `async with` is optional. `max_retries` limits how often a write may lose
    against other writers before `CASConflictError`; by default only time limits it.
    """

    _one_by_one = True


class BrokerQueue(AsyncQueue):
    """Group commit: operations of concurrent callers are stored together.

    Needs `async with`; its end commits pending operations.
    """

    _must_enter = True


def _raise_lost(lost: list[str], of: int, done: str) -> None:
    if lost:
        raise LeaseLostError(
            f"{len(lost)} of {of} jobs are no longer held by this caller: {', '.join(lost)}. "
            f"The others were {done}.",
            job_id=lost[0] if len(lost) == 1 else None,
            job_ids=tuple(lost),
        )
