"""Group commit: while one commit is in flight new operations gather, then all go as one batch.

One fsync, one PUT or one transaction serves every caller that waited. This module
holds what both kinds of callers share. `ThreadCommitter` (commit_threads.py) is for
plain threads on a store that never suspends, `LoopCommitter` (commit_asyncio.py) for
the tasks of an event loop.
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
    """One caller's operation and, once it is known, its outcome."""

    __slots__ = ("future", "is_done", "is_withdrawn", "operation", "outcome", "weight")

    def __init__(self, operation: Operation, future: asyncio.Future[Any] | None = None) -> None:
        self.operation = operation
        self.future = future
        self.weight = _weigh(operation)
        self.is_done = False
        self.is_withdrawn = False
        """Whether its caller was interrupted: nobody waits for its outcome."""
        self.outcome: Any = None


_LIGHT = (1, 0)


def _weigh(operation: Operation) -> tuple[int, int]:
    """How many operations this counts for, and its bytes."""
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
        """All of them wait for the next commits, or none."""
        if len(self._waiting) + len(entries) > WAITING_CALLERS:
            raise StorageError(
                f"{self._store.name}: {len(self._waiting):,} operations are waiting and at most "
                f"{WAITING_CALLERS:,} may; the storage does not keep up, or a list is too long. "
                "Nothing was written; slow down and try again.",
                outcome_unknown=False,
            )
        self._waiting.extend(entries)

    def _next_batch(self, batch: list[PendingOperation]) -> list[PendingOperation]:
        """Fill `batch` with as many as one commit may carry; at least one, however large."""
        count = size = 0
        while self._waiting:
            entry = self._waiting[0]
            if entry.is_withdrawn or (entry.future is not None and entry.future.cancelled()):
                self._waiting.popleft()
                continue
            count, size = count + entry.weight[0], size + entry.weight[1]
            if batch and (self._one_by_one or count > BATCH_OPERATIONS or size > BATCH_BYTES):
                break
            batch.append(entry)  # on board before it leaves the line: an interrupt loses nobody
            self._waiting.popleft()
        return batch

    async def _commit(self, operations: Sequence[Operation], *, blocking: bool) -> list[Any]:
        """One commit; repeated under the same number while its fate is unknown, which is safe."""
        self._number += 1
        # Begun before the store's own: when that is over, so is this.
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
        """Ask again until the fate of the last commit is known, or its time is over."""
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
    """The operations that give back what was claimed for a caller who will never see it."""
    if isinstance(outcome, Leased):
        return [Release(job.id, job.token) for job in outcome.jobs]
    if isinstance(outcome, Record) and outcome.expires_us is not None:
        # A lock or a queue's lease: a record that ends by time is a claim.
        return [DeleteRecord(outcome.kind, outcome.name, outcome.version)]
    return []


def copied_error(error: Exception) -> Exception:
    """A copy for one caller: a raised exception collects the tracebacks of all that raise it."""
    try:
        own = copy.copy(error)
    except Exception:  # noqa: BLE001 - an exception of the user's that cannot be copied
        return error
    own.__cause__ = error.__cause__
    return own


def interrupted_error(name: str) -> StorageError:
    return StorageError(
        f"{name}: outcome unknown: the commit was interrupted before its answer came. Look the "
        "jobs up by id before doing this again.",
        outcome_unknown=True,
    )


def is_unanswered(error: Exception) -> bool:
    """True when a commit was given up because the storage did not answer."""
    if not isinstance(error, StorageError):
        return False
    return error.outcome_unknown or isinstance(error.cause, StorageError)


def not_sent_error(name: str, error: Exception) -> StorageError:
    """What a caller is told who waited behind a commit that the storage did not answer."""
    return StorageError(
        f"{name}: the storage does not answer: the commit before this one was given up after "
        f"{COMMIT_DEADLINE_US // SECOND_US} s. Nothing was written; try again when the storage "
        "answers.",
        cause=error,
        outcome_unknown=False,
    )
