"""Store: the one interface for jobs, and the promises of every store.

A new store must pass `casque.testing.StoreSuite`: the suite is the contract, and
this file has its signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from casque.errors import CasqueError, InvalidError
from casque.job import Job, Stats
from casque.record import Record
from casque.rules.operations import Batch, Enqueue
from casque.rules.state import QueueState
from casque.rules.views import JobFilter, Served, Unserved
from casque.system.clock import Bell, Clock

COMMIT_DEADLINE_US = 30_000_000
"""How long one commit may try before it gives up with an error."""


MaySleep = Callable[[], int | None]
"""Returns how many microseconds a listener may sleep, unless its bell rings; None: for ever."""

Answer = list[Any] | CasqueError
"""The answer to a batch: the outcome of each operation; or the error, if nothing was done."""


@runtime_checkable
class Store(Protocol):
    """Holds jobs and records. Many stores may open the same storage at once."""

    clock: Clock
    """The time, randomness and ids for all code that uses this store."""

    name: str
    """The name of the store in messages; never contains a password."""

    blocking: bool
    """True if no coroutine of this store ever suspends: each does its work and returns.

    Such a store can be used without an event loop. Callers that must not block
    their event loop run the store on a separate thread, unless it is `instant`.
    """

    instant: bool
    """True if the store exists in this process alone, so no call waits for anything.

    Such a store rejects calls in the child of a fork, where changes would be lost.
    """

    async def commit(
        self, batches: Sequence[Batch], *, max_conflicts: int | None = None
    ) -> list[Answer]:
        """Apply batches of different writers once, in one atomic and durable write.

        Records of an ephemeral kind are not part of the atomic write: they may
        be written separately, and may vanish.

        Returns one answer per batch, with the result of each operation or the CasqueError that
        refused it. A refusal does not affect other operations. A writer numbers its commits upwards
        and has one in flight. If a writer repeats a number, the batch is applied once and gets the
        same answer, whatever other batches come with it. Raises StorageError if the storage does
        not answer in time; `outcome_unknown` says whether the commit may be stored. Raises
        CASConflictError after `max_conflicts` lost races, and CorruptError if the stored bytes are
        not a casque queue.
        """
        ...

    def listen(self, bell: Bell) -> AbstractContextManager[MaySleep]:
        """While the context is open, call `bell.ring()` whenever a job may have become claimable.

        Also ring it whenever a record of kind `schedule` or `dismissal` has changed.
        Yields a function for a listener whose dequeue found nothing: how many microseconds it may
        sleep without a ring before it must dequeue again; None if no ring is ever missed. A job
        that becomes due by time alone causes no ring: a dequeue that finds nothing returns the
        time until the next job is due.
        """
        ...

    async def get(self, job_id: str) -> Job | None: ...

    async def jobs(self, wanted: JobFilter, *, limit: int, after: int = 0) -> list[Job]:
        """Up to `limit` jobs in enqueue order; `after` is the last `seq` of the previous page."""
        ...

    async def peek(
        self, entrypoints: Collection[str] | None, queue: str | None, limit: int
    ) -> list[Job]:
        """The jobs that a dequeue would take now."""
        ...

    async def stats(self, queue: str | None) -> Stats: ...

    async def queues(self, *, due: bool) -> list[str]:
        """The names of the queues that have jobs, or only of those that have a due job."""
        ...

    async def unserved(self, served: Served, *, limit: int, waited_us: int) -> Unserved:
        """Due jobs in queues in which their entrypoint is not `served`; up to 100 entrypoints.

        Jobs that became due less than `waited_us` ago do not count, nor do jobs of paused queues.
        Of each entrypoint, only the first `limit` jobs are counted. The cost grows with the number
        of lines, not of jobs.
        """
        ...

    async def mismatched(self, queue: str | None) -> int:
        """How many queued jobs wait for a newer worker: `transitions.is_mismatched`.

        The cost does not grow with the number of other jobs.
        """
        ...

    async def next_run(self, queue: str) -> int | None:
        """When the first job of a queue is due."""
        ...

    async def records(self, kind: str) -> list[Record]: ...

    async def picture(self) -> QueueState:
        """The whole state as one frozen value."""
        ...

    async def close(self) -> None:
        """Release connections and files. The store may be used again."""
        ...


@runtime_checkable
class Prompt(Protocol):
    """A `blocking` store that also offers its commit as a plain function.

    The sync queue calls `commit_now` to avoid the cost of a coroutine, but only if one class
    defines both methods. If a subclass overrides only `commit`, the queue calls `commit`.
    """

    def commit_now(self, batches: Sequence[Batch]) -> list[Answer]:
        """Do the same as `commit`, for a store that has no conflicts."""
        ...


@runtime_checkable
class Doubtful(Protocol):
    """A store on a server that may not keep the promises that casque relies on."""

    def try_out(self) -> None:
        """Make the next call test the server first, as thoroughly as for a new store.

        Workers ask for this when they start. The test takes up to two seconds; the call raises
        StorageError if the server fails it.
        """
        ...


@runtime_checkable
class Creatable(Protocol):
    """A store that is created on first use."""

    def require_existing(self) -> None:
        """Create no store from now on, not even after `close`.

        While no store exists, calls raise CorruptError with `is_replaced`.
        """
        ...


@runtime_checkable
class Announced(Protocol):
    """A store that reports when this process creates it. By default it logs a warning."""

    def announce_to(self, report: Callable[[str], object]) -> None:
        """From now on, call `report` with the store's name instead of logging."""
        ...


@runtime_checkable
class Counted(Protocol):
    """A store that tells how far its tokens are."""

    async def last_token(self) -> int:
        """A number such that no higher token was issued."""
        ...


class Outcome(Enum):
    """What is known about the transaction of a caller."""

    UNCOMMITTED = "uncommitted"
    """It is open; or it was rolled back, and a later one on its connection is open."""
    ROLLED_BACK = "rolled back"
    ENDED = "ended"
    """It was committed; or it was rolled back, and a later one with jobs was committed."""


@runtime_checkable
class Priced(Protocol):
    """A store that may charge for each write, so that idle processes write less often."""

    presence_us: int | None
    """How often a process renews its registry entry; None: three times per lease."""


class CallersTransaction(Protocol):
    """The transaction of the caller that jobs were added to."""

    def outcome(self) -> Outcome:
        """Read what is known now. A read of the queue after this sees a committed job."""
        ...

    def hides_queue(self) -> bool:
        """True while reading the queue on another connection would wait for its end."""
        ...


class Joined(NamedTuple):
    """Jobs that were added inside the caller's transaction."""

    jobs: list[Job]
    transaction: CallersTransaction | None
    """None if there were no jobs to add."""


@runtime_checkable
class Joinable(Protocol):
    """A store that can add jobs inside the caller's open transaction."""

    def enqueue_within(self, connection: object, operation: Enqueue) -> Joined:
        """Add all of the jobs to the transaction on `connection`, or raise and add none.

        The jobs exist once the caller commits. This runs on the caller's own thread.
        """
        ...

    def refuse_waiting(self) -> None:
        """Raise OwnTransactionError if no job can finish before this thread's own transaction.

        It returns if that is not certain.
        """
        ...


class OwnTransactionError(InvalidError):
    """The calling thread holds the lock that its own commit needs.

    Operations of other threads in the same commit are not affected: commit them again.
    """
