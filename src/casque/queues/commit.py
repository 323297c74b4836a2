"""Group commit: operations that arrive during a commit wait, then are committed together.

One fsync, one PUT or one transaction serves every caller that waited. This module
holds the part that threads and tasks share. `ThreadCommitter` (commit_threads.py) is
for plain threads on a `blocking` store, `LoopCommitter` (commit_asyncio.py)
for the tasks of an event loop.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from casque.errors import CasqueError, StorageError
from casque.record import Record
from casque.rules.decide import Leased
from casque.rules.operations import Ack, Batch, DeleteRecord, Enqueue, Operation, Release
from casque.stores.port import COMMIT_DEADLINE_US, Store
from casque.system.clock import SECOND_US, Stopwatch

if TYPE_CHECKING:
    import asyncio

BATCH_OPERATIONS = 10_000
BATCH_BYTES = 4 * 1024 * 1024
WAITING_CALLERS = 100_000
CLOSE_PATIENCE_US = 30 * SECOND_US

_FIRST_PAUSE_US = 50_000
_LONGEST_PAUSE_US = 1_000_000


class PendingOperation:
    """One caller's operation and, later, its outcome."""

    __slots__ = ("future", "is_done", "is_withdrawn", "operation", "outcome")

    def __init__(self, operation: Operation, future: asyncio.Future[Any] | None = None) -> None:
        self.operation = operation
        self.future = future
        self.is_done = False
        self.is_withdrawn = False
        """True if its caller was interrupted and no longer waits for the outcome."""
        self.outcome: Any = None


_LIGHT = (1, 0)


def _weigh(operation: Operation) -> tuple[int, int]:
    """Return how many operations this one counts as, and its size in bytes."""
    if isinstance(operation, Enqueue):
        jobs = operation.jobs
        if len(jobs) == 1:
            return 1, len(jobs[0].payload)
        return len(jobs), sum(len(job.payload) for job in jobs)
    if isinstance(operation, Ack) and (operation.enqueue or operation.result):
        carried = len(operation.result or b"") + sum(len(job.payload) for job in operation.enqueue)
        return 1 + len(operation.enqueue), carried
    return _LIGHT


class BatchWriter:
    """The waiting operations of one writer, and its commits."""

    def __init__(self, store: Store, *, one_by_one: bool, max_conflicts: int | None) -> None:
        self._store = store
        self._writer = store.clock.new_id()
        self._number = 0
        self._one_by_one = one_by_one
        self._max_conflicts = max_conflicts
        self._waiting: deque[PendingOperation] = deque()

    @property
    def waiting(self) -> int:
        """How many operations wait for the next commit."""
        return len(self._waiting)

    def _join(self, entries: Sequence[PendingOperation]) -> None:
        """Add all entries to the waiting operations, or none."""
        if len(self._waiting) + len(entries) > WAITING_CALLERS:
            raise StorageError(
                f"{self._store.name}: {len(self._waiting):,} operations are waiting, and the "
                f"limit is {WAITING_CALLERS:,}; the storage is too slow, or one call has too many. "
                "Nothing was written; slow down and try again.",
                outcome_unknown=False,
            )
        self._waiting.extend(entries)

    def _next_batch(self, batch: list[PendingOperation]) -> list[PendingOperation]:
        """Fill `batch` with as many operations as fit into one commit; at least one of any size."""
        count = size = 0
        while self._waiting:
            entry = self._waiting[0]
            if entry.is_withdrawn or (entry.future is not None and entry.future.cancelled()):
                self._waiting.popleft()
                continue
            operations, weight = _weigh(entry.operation)
            count, size = count + operations, size + weight
            if batch and (self._one_by_one or count > BATCH_OPERATIONS or size > BATCH_BYTES):
                break
            batch.append(entry)  # added before it is removed: an interrupt loses none
            self._waiting.popleft()
        return batch

    async def _commit(self, operations: Sequence[Operation], *, blocking: bool) -> list[Any]:
        """Commit; repeat if the outcome is unknown: a store applies a commit number once."""
        self._number += 1
        # Started before the store's own deadline, so that this one ends no later.
        watch = Stopwatch(self._store.clock)
        try:
            return await self._send(operations)
        except StorageError as error:
            return await self._settle(operations, error, watch, blocking=blocking)

    async def _send(self, operations: Sequence[Operation]) -> list[Any]:
        batch = Batch(self._writer, self._number, operations)
        [answer] = await self._store.commit((batch,), max_conflicts=self._max_conflicts)
        if isinstance(answer, CasqueError):
            raise answer
        return answer

    async def _settle(
        self,
        operations: Sequence[Operation],
        error: StorageError,
        watch: Stopwatch,
        *,
        blocking: bool,
    ) -> list[Any]:
        """Repeat the last commit until its outcome is known, or its time is over."""
        clock, pause = self._store.clock, _FIRST_PAUSE_US
        while (
            error.outcome_unknown
            and not error.is_stored
            and watch.elapsed_us() < COMMIT_DEADLINE_US
        ):
            await clock.sleep(int(pause * (0.5 + clock.random() / 2)), blocking=blocking)
            pause = min(2 * pause, _LONGEST_PAUSE_US)
            try:
                return await self._send(operations)
            except StorageError as again:
                error = again
        raise error


def to_give_back(outcome: Any) -> list[Operation]:
    """Return the operations that release the claims in an outcome whose caller is gone."""
    if isinstance(outcome, Leased):
        return [Release(job.id, job.token) for job in outcome.jobs]
    if isinstance(outcome, Record) and outcome.expires_us is not None:
        # A lock or a queue's lease: a record that expires is a claim.
        return [DeleteRecord(outcome.kind, outcome.name, outcome.version)]
    return []


def copied_error(error: Exception) -> Exception:
    """Return a copy for one caller: a shared exception would collect all callers' tracebacks."""
    try:
        own = copy.copy(error)
    except Exception:  # noqa: BLE001 - a user's exception may not allow copies
        return error
    own.__cause__ = error.__cause__
    return own


def interrupted_error(name: str) -> StorageError:
    return StorageError(
        f"{name}: outcome unknown: the commit was interrupted before the storage answered. Look "
        "the jobs up by id before doing this again.",
        outcome_unknown=True,
    )


def is_unanswered(error: Exception) -> bool:
    """True if a commit was abandoned because the storage did not answer."""
    if not isinstance(error, StorageError):
        return False
    return error.outcome_unknown or isinstance(error.cause, StorageError)


def not_sent_error(name: str, error: Exception) -> StorageError:
    """Return the error for operations that waited behind an unanswered commit."""
    return StorageError(
        f"{name}: the storage does not answer: the commit before this one was abandoned after "
        f"{COMMIT_DEADLINE_US // SECOND_US} s. Nothing was written; try again when the storage "
        "answers.",
        cause=error,
        outcome_unknown=False,
    )
