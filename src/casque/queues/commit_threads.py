"""ThreadCommitter: group commit for plain threads, on a `blocking` store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from casque.errors import InvalidError, StorageError
from casque.queues.commit import (
    BatchWriter,
    PendingOperation,
    copied_error,
    interrupted_error,
    to_give_back,
)
from casque.rules.operations import Batch, Operation
from casque.stores.port import Answer, OwnTransactionError, Prompt, Store
from casque.system import reentry
from casque.system.clock import Stopwatch, drive

_FEW = 128
"""This many operations fit into one commit, unless they have large payloads."""

CommitNow = Callable[[Sequence[Batch]], list[Answer]]


class ThreadCommitter(BatchWriter):
    """Group commit for threads: the thread with the lock commits for all that wait for it."""

    def __init__(self, store: Store, *, one_by_one: bool, max_conflicts: int | None) -> None:
        super().__init__(store, one_by_one=one_by_one, max_conflicts=max_conflicts)
        self._lock = threading.RLock()
        self._is_busy = False
        """True while a thread has the lock: others let it commit their operations."""
        self._is_closed = False
        self._commit_now = _commit_now_of(store, max_conflicts)
        self._monotonic = store.clock.monotonic

    def commit(self, operations: Sequence[Operation]) -> list[Any]:
        """Commit these together with waiting operations. Returns the result or error of each."""
        is_long = len(operations) > 1 and (self._one_by_one or len(operations) > _FEW)
        if self._is_busy or self._waiting or is_long:
            return self._commit_in_turn(operations)
        # No other thread waits, and all fits into one commit: no need to wait for others.
        begun = self._monotonic()  # after 15 minutes, a repeat could not be told from a new commit
        # Only `with` is safe: no interrupt can come between taking the lock and this block.
        with self._lock:
            try:
                self._is_busy = True  # before any call: a signal handler may run there
                if self._is_closed:
                    raise _closed()  # noqa: TRY301 - an outcome like any other
                self._number += 1
                batch = Batch(self._writer, self._number, operations)
                [answer] = self._commit_now((batch,))
                if isinstance(answer, list):
                    return answer
                raise answer  # noqa: TRY301 - an outcome like any other
            except StorageError as error:
                return self._settled(operations, error, begun)
            except Exception as error:  # noqa: BLE001 - an outcome like any other
                return [error, *(copied_error(error) for _ in operations[1:])]
            finally:
                self._is_busy = False

    async def commit_one(self, operation: Operation) -> Any:
        """Commit one operation together with waiting ones. Returns its result or raises."""
        [outcome] = self.commit((operation,))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _commit_in_turn(self, operations: Sequence[Operation]) -> list[Any]:
        """Wait for the lock, then commit, unless another thread has committed these meanwhile."""
        reentry.refuse(self._lock)
        entries = [PendingOperation(operation) for operation in operations]
        self._join(entries)
        try:
            with self._lock:
                self._is_busy = True
                try:
                    if self._is_closed:
                        raise _closed()
                    while not entries[-1].is_done:
                        if not self._commit_next(entries):
                            # The thread that was committing it was interrupted.
                            raise interrupted_error(self._store.name)
                finally:
                    self._is_busy = False
        except BaseException:
            self._withdraw(entries)
            raise
        return [entry.outcome for entry in entries]

    def _settled(
        self, operations: Sequence[Operation], error: StorageError, begun: int
    ) -> list[Any]:
        try:
            watch = Stopwatch(self._store.clock, begun)
            return drive(self._settle(operations, error, watch, blocking=True))
        except Exception as last:  # noqa: BLE001 - an outcome like any other
            return [copied_error(last) for _ in operations]

    async def drain(self) -> None:
        """Wait until all operations have an outcome. Later operations are refused.

        A signal handler that closes the queue during a call does not wait. The call continues when
        the handler returns, or ends with the handler's exception.
        """
        if reentry.is_mine(self._lock):
            self._is_closed = True
            return
        with self._lock:
            while self._waiting:
                self._commit_next()
            self._is_closed = True

    def _withdraw(self, entries: Sequence[PendingOperation]) -> None:
        """Withdraw an interrupted caller's operations: send no more, and give back claims."""
        for entry in entries:
            entry.is_withdrawn = True
            if entry.is_done:
                self._waiting.extend(map(PendingOperation, to_give_back(entry.outcome)))

    def _give_back(self, batch: Sequence[PendingOperation]) -> None:
        """Give back the claims of callers that were interrupted and will not use them."""
        outcomes = [entry.outcome for entry in batch if entry.is_withdrawn]
        if operations := [one for outcome in outcomes for one in to_give_back(outcome)]:
            with suppress(Exception):  # then it is due again when its lease ends
                drive(self._commit(operations, blocking=True))

    def _commit_next(self, own: Sequence[PendingOperation] = ()) -> bool:
        """Commit the next batch. False if no operation waits. This thread waits for `own`."""
        batch: list[PendingOperation] = []
        try:
            self._next_batch(batch)
            operations = [entry.operation for entry in batch]
            outcomes = drive(self._commit(operations, blocking=True))
        except OwnTransactionError as error:
            # The other threads' operations can be stored once this thread ends its transaction.
            mine = set(own).intersection(batch) or set(batch)
            self._waiting.extendleft(entry for entry in reversed(batch) if entry not in mine)
            _finish_all(mine, error)
        except Exception as error:  # noqa: BLE001 - no caller may hang, whatever the error
            _finish_all(batch, error)
        except BaseException:  # Ctrl-C in this thread; the batch has other threads' operations too
            _finish_all(batch, interrupted_error(self._store.name))
            raise
        else:
            for entry, outcome in zip(batch, outcomes, strict=True):
                entry.outcome, entry.is_done = outcome, True
            self._give_back(batch)
        return bool(batch)


def _commit_now_of(store: Store, max_conflicts: int | None) -> CommitNow:
    """Return a plain function that commits to a `blocking` store."""

    def driven(batches: Sequence[Batch]) -> list[Answer]:
        return drive(store.commit(batches, max_conflicts=max_conflicts))

    # A subclass or a wrapper may have its own `commit`: call that.
    of = next((one for one in type(store).__mro__ if "commit" in vars(one)), object)
    is_plain = "commit_now" in vars(of) and "commit" not in getattr(store, "__dict__", {})
    return store.commit_now if is_plain and isinstance(store, Prompt) else driven


def _finish_all(entries: Iterable[PendingOperation], error: Exception) -> None:
    for entry in entries:
        entry.outcome, entry.is_done = copied_error(error), True


def _closed() -> InvalidError:
    return InvalidError("this queue was closed while the call was waiting.")
