"""Queue: a queue for code without `await`.

Its methods run those of an `AsyncQueue`. The methods that are called most, enqueue, dequeue and
ack, commit without a coroutine, which would cost 8% of an enqueue.
"""

# ruff: noqa: SLF001 - Queue and AsyncQueue are two parts of one class

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any, NoReturn, Self, TypeVar

from casque.errors import InvalidError
from casque.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, Job, Lease, Stats
from casque.queues.arguments import NewJob
from casque.queues.async_queue import DEFAULT_MAX_DEPTH, AsyncQueue
from casque.queues.held_claims import HeldClaim
from casque.queues.operators import as_lease
from casque.queues.runner import Runner, runner_for, warn_inside_loop
from casque.queues.running_job import RunningJob
from casque.retry import Backoff
from casque.rules.decide import Leased
from casque.rules.state import QueueState
from casque.stores.port import Joined, Store
from casque.stores.url import (
    StoreAddress,
    anchored,
    is_store,
    open_store,
    shared_address_of,
)
from casque.system import forks

T = TypeVar("T")


class Queue:
    """A queue for plain code and threads; the calls of several threads are stored together.

    `with` is optional. In a forked child it opens again by itself.
    """

    def __init__(
        self,
        store: StoreAddress,
        *,
        lease: timedelta | None = None,
        worker: str | None = None,
        max_depth: int = DEFAULT_MAX_DEPTH,
        stale_timeout: timedelta | None = None,
        _address: str | None = None,
    ) -> None:
        address = anchored(store)  # a forked child may change its folder before it opens it

        def opened() -> tuple[AsyncQueue, Runner]:
            at = open_store(address)
            runner = runner_for(at)
            queue = AsyncQueue(
                at,
                lease=lease,
                worker=worker,
                max_depth=max_depth,
                stale_timeout=stale_timeout,
                _blocking=at.blocking,
                _owner="Queue",
                _address=_address or shared_address_of(address, at),
            )
            return queue, runner

        self._open: Callable[[], tuple[AsyncQueue, Runner]] = opened
        self._owns_store = not is_store(store)
        self._queue, self._runner = opened()
        self._generation = forks.generation()
        self._is_closed = False

    @property
    def store(self) -> Store:
        """The store underneath, to share with another queue or a Lock."""
        return self._queue.store

    @property
    def worker(self) -> str:
        """The name this queue object puts on its claims."""
        return self._queue.worker

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Queue cannot be pickled; pass its URL and open one there.")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Commit pending operations, within a time limit, and close. Calling it twice is fine."""
        if self._is_closed or self._generation != forks.generation():
            self._is_closed = True
            return
        self._is_closed = True
        self._runner.run(self._queue.close())
        if self._owns_store:
            self._runner.run(self._queue.store.close())
        self._runner.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidError("this Queue is closed; open a new one.")
        if self._generation != forks.generation() and not self._queue.store.instant:
            self._open_again()

    def _open_again(self) -> None:
        """Open a new writer, thread and connection, in a forked child."""
        with forks.own_lock():
            if self._generation != forks.generation():
                self._queue, self._runner = self._open()
                self._generation = forks.generation()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)  # read it now: making `call` may have opened the queue again

    @property
    def _live(self) -> AsyncQueue:
        """Return the queue underneath. Opens it again in a forked child; raises if it is closed."""
        if self._is_closed or not forks.is_noticed[0] or self._generation != forks.noticed:
            self._check_open()
        if asyncio._get_running_loop() is not None:  # the quick check
            warn_inside_loop("the sync Queue", "BrokerQueue or DirectQueue")
        return self._queue

    # -- producing -------------------------------------------------------------

    def enqueue(
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
        """Add a job. When this returns, the job is stored. See `BrokerQueue.enqueue`."""
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
        live = self._live
        operation = live._to_enqueue(new, replace=replace)
        added: list[Job] = self._runner.commit(live._session, operation)
        return added[0]

    def _enqueue(self, new: NewJob) -> Job:
        """Add a job to a queue that is known to be open and of this process."""
        session = self._queue._session
        added: list[Job] = self._runner.commit(session, self._queue._to_enqueue(new))
        return added[0]

    def _enqueue_within(
        self, jobs: Iterable[NewJob], connection: object, *, replace: bool = False
    ) -> Joined:
        """Add jobs inside the caller's transaction.

        Gives no warning in an event loop: an async queue would block it too, as does every
        statement on the connection.
        """
        self._check_open()
        return self._queue._enqueue_within(jobs, connection, replace=replace)

    def enqueue_many(
        self, jobs: Iterable[NewJob], *, replace: bool = False, connection: object = None
    ) -> list[Job]:
        """Add up to 10,000 jobs (64 MiB of payload), all or none, in order."""
        if connection is not None:
            return self._enqueue_within(jobs, connection, replace=replace).jobs
        return self._run(self._live.enqueue_many(jobs, replace=replace))

    # -- consuming -------------------------------------------------------------

    def dequeue(
        self,
        entrypoint: str | Collection[str] | None = None,
        *,
        queue: str | None = None,
        id: str | None = None,
        batch_size: int = 1,
        lease: timedelta | None = None,
        wait: timedelta | None = None,
    ) -> list[Job]:
        """Lease up to `batch_size` due jobs. See `BrokerQueue.dequeue`."""
        live = self._live
        if wait is not None:
            return self._run(
                live.dequeue(
                    entrypoint, queue=queue, id=id, batch_size=batch_size, lease=lease, wait=wait
                )
            )
        operation = live._to_dequeue(entrypoint, queue, id, batch_size, lease)
        asked = live._session.clock.monotonic()
        leased: Leased = self._runner.commit(live._session, operation)
        live._held_claims.add(leased.jobs, operation.lease_us, asked)
        return leased.jobs

    def ack(
        self, job: Job | str, *, result: bytes | None = None, enqueue: Iterable[NewJob] = ()
    ) -> None:
        """Complete the job and add the jobs in `enqueue`: in one commit, both or neither."""
        live = self._live
        hold = live._held_claims.hold_of(job)
        self._runner.commit(live._session, live._to_ack(hold, result, enqueue))
        live._held_claims.drop(hold)

    def ack_many(self, jobs: Iterable[Job | str]) -> None:
        """Ack several jobs. Raises LeaseLostError if some were lost; the others are acked."""
        return self._run(self._live.ack_many(jobs))

    def nack(
        self,
        job: Job | str,
        *,
        delay: timedelta | None = None,
        backoff: Backoff | None = None,
        error: str | BaseException = "",
    ) -> Job:
        """Report a failed attempt. See `BrokerQueue.nack`."""
        return self._run(self._live.nack(job, delay=delay, backoff=backoff, error=error))

    def fail(self, job: Job | str, *, error: str | BaseException = "") -> Job:
        """Report a failed attempt and make the job dead now, without another attempt."""
        return self._run(self._live.fail(job, error=error))

    def discard(self, job: Job | str, *, reason: str = "") -> Job:
        """Cancel a job that its holder decides not to do. The reason is stored with the job."""
        return self._run(self._live.discard(job, reason=reason))

    def release(self, job: Job | str, *, delay: timedelta | None = None) -> Job:
        """Give the job back, due after `delay`; the attempt does not count."""
        return self._run(self._live.release(job, delay=delay))

    def heartbeat(
        self,
        job: Job | str,
        *,
        lease: timedelta | None = None,
        progress: float | None = None,
        note: str | None = None,
        output: bytes | None = None,
    ) -> Job:
        """Renew the lease and store the progress of the work. See `BrokerQueue.heartbeat`."""
        return self._run(
            self._live.heartbeat(job, lease=lease, progress=progress, note=note, output=output)
        )

    def heartbeat_many(self, jobs: Iterable[Job | str], *, lease: timedelta | None = None) -> None:
        """Renew several leases in one operation. Raises LeaseLostError if some were lost."""
        return self._run(self._live.heartbeat_many(jobs, lease=lease))

    def running(self, job: Job) -> AbstractContextManager[RunningJob]:
        """In this context, code runs inside `job`. See `BrokerQueue.running`."""
        return self._queue.running(job)

    def _held_claim(self, job: Job | str) -> HeldClaim | None:
        return self._queue._held_claim(job)

    # -- managing --------------------------------------------------------------

    def cancel(self, id: str | Job, *, reason: str = "") -> Job:
        """Never run the job (again). A running job loses its lease at once."""
        return self._run(self._live.cancel(id, reason=reason))

    def retry(self, id: str | Job) -> Job:
        """Put a dead job back into its queue, due now, with no attempt used."""
        return self._run(self._live.retry(id))

    def requeue_stale(self, timeout: timedelta) -> int:
        """Requeue the jobs in progress without a heartbeat for `timeout`. Returns how many."""
        return self._run(self._live.requeue_stale(timeout))

    def purge(self, *, older_than: timedelta, queue: str | None = None) -> int:
        """Delete the jobs that finished longer ago than `older_than`. Returns how many."""
        return self._run(self._live.purge(older_than=older_than, queue=queue))

    def pause(self, queue: str) -> None:
        """Stop dequeues from this queue until `resume`. Enqueueing continues."""
        return self._run(self._live.pause(queue))

    def resume(self, queue: str) -> None:
        """End a pause. Resuming a queue that is not paused is fine."""
        return self._run(self._live.resume(queue))

    def drop(self, queue: str) -> int:
        """Delete all jobs of this queue, even running ones; a pause stays. Returns how many."""
        return self._run(self._live.drop(queue))

    @contextmanager
    def lease_queue(
        self, queue: str, *, lease: timedelta = timedelta(seconds=5)
    ) -> Iterator[Lease | None]:
        """Claim a whole queue exclusively; None if taken. See `BrokerQueue.lease_queue`."""
        held = self._run(self._live._take_queue(queue, lease))
        try:
            yield None if held is None else as_lease(held)
        finally:
            if held is not None:
                self._run(self._live._session.delete(held))

    # -- reading ---------------------------------------------------------------

    def peek(
        self,
        entrypoint: str | Collection[str] | None = None,
        *,
        queue: str | None = None,
        limit: int = 10,
    ) -> list[Job]:
        """The jobs that a dequeue would take now. No lease, no change."""
        return self._run(self._live.peek(entrypoint, queue=queue, limit=limit))

    def jobs(
        self,
        *,
        status: str | None = None,
        queue: str | None = None,
        entrypoint: str | None = None,
        limit: int = 100,
        after: Job | int | None = None,
    ) -> list[Job]:
        """Up to `limit` jobs in the order in which they were enqueued. See `BrokerQueue.jobs`."""
        return self._run(
            self._live.jobs(
                status=status, queue=queue, entrypoint=entrypoint, limit=limit, after=after
            )
        )

    def get(self, id: str | Job) -> Job | None:
        """The job as it is now, or None if no job has this id (any more)."""
        return self._run(self._live.get(id))

    def stats(self, queue: str | None = None) -> Stats:
        """The number of jobs in each state, in one queue or in all."""
        return self._run(self._live.stats(queue))

    def queues(self, *, due: bool = False) -> list[str]:
        """The names of the queues that have jobs; with `due`, only those with a job due now."""
        return self._run(self._live.queues(due=due))

    def next_run_at(self, queue: str) -> datetime | None:
        """When the first job of this queue is due; None if there is none."""
        return self._run(self._live.next_run_at(queue))

    def read_state(self) -> QueueState:
        """All jobs as a frozen value. For tools, tests and small queues."""
        return self._run(self._live.read_state())
