"""Store: the one seam for jobs, and what every store promises.

A new store must pass `casque.testing.StoreSuite`; the suite is
the contract, this file its signatures.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from casque.errors import CasqueError
from casque.job import Job, Stats
from casque.record import Record
from casque.rules.operations import Batch, Enqueue
from casque.rules.state import QueueState
from casque.rules.views import JobFilter
from casque.system.clock import Bell, Clock

COMMIT_DEADLINE_US = 30_000_000
"""How long one commit may try before it gives up with an error."""


Answer = list[Any] | CasqueError
"""To a batch: the outcome of each operation; or why it was not taken, and nothing was done."""


@runtime_checkable
class Store(Protocol):
    """Holds jobs and records; many may open the same storage at once."""

    clock: Clock
    """The time, chance and ids of everything that works on this store."""

    name: str
    """What to call it in messages; never with a password in it."""

    blocking: bool
    """True when no coroutine of this store ever suspends: each does its work and returns.

    Such a store can be used without an event loop. Callers that have one and
    must not stop it run the store on a thread of its own, unless it is `instant`.
    """

    instant: bool
    """True when the store lives in this process alone, so that no call waits for anything.

    It refuses to be used in the child of a fork, where its changes would be lost.
    """

    async def commit(
        self, batches: Sequence[Batch], *, max_conflicts: int | None = None
    ) -> list[Answer]:
        """Carry out batches of different writers: in one atomic and durable write, and once.

        Records of an ephemeral kind are not part of the atomic whole: they may
        be written apart from it, and vanish.

        Answers per batch, and in it per operation with its result or with the
        CasqueError it was refused with; a refusal leaves its neighbours alone. A
        writer numbers its commits upwards and has one in flight. The same writer
        and number again is applied once and answered the same, whatever batches
        it comes with. Raises StorageError when the storage does not answer in
        time (`outcome_unknown` says whether it may have been stored),
        CASConflictError after `max_conflicts` lost races, CorruptError when the
        stored bytes are not ours.
        """
        ...

    def listen(self, bell: Bell) -> AbstractContextManager[int | None]:
        """Ring `bell` whenever a job may have become claimable, while the context holds.

        Gives the longest a listener should sleep before it asks again all the
        same, in microseconds, or None when a ring is never missed. Jobs that
        become due by time alone ring nothing: an empty dequeue says when.
        """
        ...

    async def get(self, job_id: str) -> Job | None: ...

    async def jobs(self, wanted: JobFilter, *, limit: int, after: int = 0) -> list[Job]:
        """Up to `limit` jobs in enqueue order; `after` is the last `seq` of the page before."""
        ...

    async def peek(
        self, entrypoints: Collection[str] | None, queue: str | None, limit: int
    ) -> list[Job]:
        """What a dequeue would take now."""
        ...

    async def stats(self, queue: str | None) -> Stats: ...

    async def queues(self, *, due: bool) -> list[str]:
        """The names of the queues that have jobs, or only of those with a job due now."""
        ...

    async def next_run(self, queue: str) -> int | None:
        """When the first job of a queue is due."""
        ...

    async def records(self, kind: str) -> list[Record]: ...

    async def picture(self) -> QueueState:
        """Everything, as one frozen value."""
        ...

    async def close(self) -> None:
        """Let go of what is held. The store may be opened again."""
        ...


@runtime_checkable
class Prompt(Protocol):
    """A `blocking` store that has its commits as a plain function, too.

    For the sync queue, which pays for no coroutine then. It is used where one class has both: whose
    `commit` is overridden, that is called.
    """

    def commit_now(self, batches: Sequence[Batch]) -> list[Answer]:
        """As `commit`, of a store that has no conflicts."""
        ...


@runtime_checkable
class Doubtful(Protocol):
    """A store on a stranger's server, which may not keep the promises that all rests on."""

    def try_out(self) -> None:
        """Have the server tried out before the next call, as thoroughly as for a new store.

        Workers ask for it when they start; it takes up to two seconds. That call raises
        StorageError if the server fails.
        """
        ...


@runtime_checkable
class Creatable(Protocol):
    """A store that is made where there is none."""

    def require_existing(self) -> None:
        """Make none from now on, also after `close`.

        Where there is none, calls raise CorruptError with `is_replaced`, until there is one.
        """
        ...


@runtime_checkable
class Joinable(Protocol):
    """A store that can add jobs inside a transaction which the caller has open."""

    def enqueue_within(self, connection: object, operation: Enqueue) -> list[Job]:
        """Add all of the jobs to the transaction on `connection`, or raise and add none.

        They are there once the caller commits. Called on the caller's own thread.
        """
        ...
