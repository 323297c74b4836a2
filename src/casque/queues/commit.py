"""Group commit: while one commit is in flight new operations gather, then all go as one batch.

One fsync, one PUT or one transaction serves every caller that waited. Written
twice over only where waiting differs: `ThreadCommitter` for plain threads on a
store that never suspends, `LoopCommitter` (commit_asyncio.py) for tasks of an event
loop.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from casque.errors import InvalidError, StorageError
from casque.rules.decide import Leased
from casque.rules.operations import Ack, Enqueue, Operation, Release
from casque.stores.port import COMMIT_DEADLINE_US, Prompt, Store
from casque.system.clock import SECOND_US, Stopwatch, drive
from casque.system.reentry import called_within

if TYPE_CHECKING:
    import asyncio

BATCH_OPERATIONS = 10_000
BATCH_BYTES = 4 * 1024 * 1024
WAITING_CALLERS = 100_000
CLOSE_PATIENCE_US = 30 * SECOND_US

_FEW = 128
"""So many operations without payloads to speak of are no burden to one commit."""
_FIRST_PAUSE_US = 50_000
_LONGEST_PAUSE_US = 1_000_000


class Entry:
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


Commit = Callable[[str, int, Sequence[Operation]], list[Any]]

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


class Batches:
    """The waiting operations of one writer, and its commits."""

    def __init__(self, store: Store, *, alone: bool, max_conflicts: int | None) -> None:
        self._store = store
        self._writer = store.clock.new_id()
        self._number = 0
        self._alone = alone
        self._max_conflicts = max_conflicts
        self._waiting: deque[Entry] = deque()

    @property
    def waiting(self) -> int:
        """How many operations wait for the next commit."""
        return len(self._waiting)

    def _join(self, entries: Sequence[Entry]) -> None:
        """All of them wait for the next commits, or none."""
        if len(self._waiting) + len(entries) > WAITING_CALLERS:
            raise StorageError(
                f"{self._store.name}: {len(self._waiting):,} operations are waiting and at most "
                f"{WAITING_CALLERS:,} may; the storage does not keep up, or a list is too long. "
                "Nothing was written; slow down and try again.",
                outcome_unknown=False,
            )
        self._waiting.extend(entries)

    def _next_batch(self, batch: list[Entry]) -> list[Entry]:
        """Fill `batch` with as many as one commit may carry; at least one, however large."""
        count = size = 0
        while self._waiting:
            entry = self._waiting[0]
            if entry.is_withdrawn or (entry.future is not None and entry.future.cancelled()):
                self._waiting.popleft()
                continue
            count, size = count + entry.weight[0], size + entry.weight[1]
            if batch and (self._alone or count > BATCH_OPERATIONS or size > BATCH_BYTES):
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
            return await self._store.commit(
                self._writer, self._number, operations, max_conflicts=self._max_conflicts
            )
        except StorageError as error:
            return await self._settle(operations, error, watch, blocking=blocking)

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
        while error.outcome_unknown and watch.elapsed_us() < COMMIT_DEADLINE_US:
            await clock.sleep(int(pause * (0.5 + clock.random() / 2)), blocking=blocking)
            pause = min(2 * pause, _LONGEST_PAUSE_US)
            try:
                return await self._store.commit(
                    self._writer, self._number, operations, max_conflicts=self._max_conflicts
                )
            except StorageError as again:
                error = again
        raise error


class ThreadCommitter(Batches):
    """Group commit for threads: whoever gets the lock commits for all who wait for it."""

    def __init__(self, store: Store, *, alone: bool, max_conflicts: int | None) -> None:
        super().__init__(store, alone=alone, max_conflicts=max_conflicts)
        self._lock = threading.Lock()
        self._owner = 0
        """The thread that is committing."""
        self._is_closed = False
        self._commit_now = _plainly(store, max_conflicts)

    async def submit(self, operations: Sequence[Operation]) -> list[Any]:
        """Commit these with whatever else is waiting. Per operation its result, or its error."""
        return self.submit_now(operations)

    async def submit_one(self, operation: Operation) -> Any:
        """Commit this with whatever else is waiting; its result, or its error raised."""
        return self.submit_one_now(operation)

    def submit_now(self, operations: Sequence[Operation]) -> list[Any]:
        """As `submit`."""
        thread = threading.get_ident()
        if self._owner == thread and self._lock.locked():
            raise called_within()
        # Alone, and little enough for one commit: then there is nothing to gather.
        few = len(operations) == 1 or (len(operations) <= _FEW and not self._alone)
        begun = self._store.clock.monotonic()
        if few and not self._waiting and not self._lock.locked():
            # By `with` and no other way: no interrupt can strike between taking it and this block.
            with self._lock:
                try:
                    self._owner = thread
                    self._check_open()
                    self._number += 1
                    return self._commit_now(self._writer, self._number, operations)
                except StorageError as error:
                    return self._answered(operations, error, begun)
                except Exception as error:  # noqa: BLE001 - as any other outcome
                    return (
                        [error] if len(operations) == 1 else [own_error(error) for _ in operations]
                    )
                finally:
                    self._owner = 0
        entries = [Entry(operation) for operation in operations]
        self._join(entries)
        try:
            with self._lock:
                self._owner = thread
                try:
                    self._check_open()
                    while not entries[-1].is_done:
                        if not self._commit_next():
                            raise given_up(self._store.name)  # who took it along was interrupted
                finally:
                    self._owner = 0
        except BaseException:
            self._withdraw(entries)
            raise
        return [entry.outcome for entry in entries]

    def submit_one_now(self, operation: Operation) -> Any:
        """As `submit_one`."""
        if self._waiting or self._lock.locked():
            [outcome] = self.submit_now((operation,))
        else:
            begun, thread = self._store.clock.monotonic(), threading.get_ident()
            with self._lock:
                try:
                    self._owner = thread  # before any call: a signal handler may strike there
                    if self._is_closed:
                        self._check_open()
                    self._number += 1
                    [outcome] = self._commit_now(self._writer, self._number, (operation,))
                except StorageError as error:
                    [outcome] = self._answered((operation,), error, begun)
                finally:
                    self._owner = 0
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _answered(
        self, operations: Sequence[Operation], error: StorageError, begun: int
    ) -> list[Any]:
        try:
            watch = Stopwatch(self._store.clock, begun)
            return drive(self._settle(operations, error, watch, blocking=True))
        except Exception as last:  # noqa: BLE001 - as any other outcome
            return [own_error(last) for _ in operations]

    async def drain(self) -> None:
        """Wait until everything that was asked is answered. Nothing is taken after that.

        In the middle of a call, by a signal handler, there is nothing to wait for: the call goes
        on when that returns, or is given up with it.
        """
        if self._owner == threading.get_ident() and self._lock.locked():
            self._is_closed = True
            return
        with self._lock:
            while self._waiting:
                self._commit_next()
            self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidError("this queue was closed while the call was waiting.")

    def _withdraw(self, entries: Sequence[Entry]) -> None:
        """Their caller was interrupted. What is not begun is not done."""
        for entry in entries:
            entry.is_withdrawn = True
            if entry.is_done:
                self._waiting.extend(map(Entry, _releases(entry)))

    def _give_back(self, batch: Sequence[Entry]) -> None:
        """What was claimed for callers who were interrupted meanwhile, nobody knows of."""
        releases = [one for entry in batch if entry.is_withdrawn for one in _releases(entry)]
        if releases:
            with suppress(Exception):  # then they come back when their leases end
                drive(self._commit(releases, blocking=True))

    def _commit_next(self) -> bool:
        """Commit the next batch; False when nobody waits."""
        batch: list[Entry] = []
        try:
            self._next_batch(batch)
            operations = [entry.operation for entry in batch]
            outcomes = drive(self._commit(operations, blocking=True))
        except Exception as error:  # noqa: BLE001 - whatever it is, no caller may hang
            _finish_all(batch, error)
        except BaseException:  # Ctrl-C in this thread; the others' operations were on board too
            _finish_all(batch, given_up(self._store.name))
            raise
        else:
            for entry, outcome in zip(batch, outcomes, strict=True):
                entry.outcome, entry.is_done = outcome, True
            self._give_back(batch)
        return bool(batch)


def _plainly(store: Store, most: int | None) -> Commit:
    """The commits of a store that never suspends."""

    def driven(writer: str, number: int, operations: Sequence[Operation]) -> list[Any]:
        return drive(store.commit(writer, number, operations, max_conflicts=most))

    # Somebody's own `commit`, in a derived class or in front of a store, is not passed by.
    of = next((one for one in type(store).__mro__ if "commit" in vars(one)), object)
    is_plain = "commit_now" in vars(of) and "commit" not in getattr(store, "__dict__", {})
    return store.commit_now if is_plain and isinstance(store, Prompt) else driven


def _releases(entry: Entry) -> list[Operation]:
    """What gives back the jobs that were claimed by it."""
    jobs = entry.outcome.jobs if isinstance(entry.outcome, Leased) else ()
    return [Release(job.id, job.token) for job in jobs]


def _finish_all(entries: list[Entry], error: Exception) -> None:
    for entry in entries:
        entry.outcome, entry.is_done = own_error(error), True


def own_error(error: Exception) -> Exception:
    """A copy for one caller: a raised exception collects the traceback of whoever raises it."""
    try:
        own = copy.copy(error)
    except Exception:  # noqa: BLE001 - an exception of the user's that cannot be copied
        return error
    own.__cause__ = error.__cause__
    return own


def given_up(name: str) -> StorageError:
    return StorageError(
        f"{name}: outcome unknown: the commit was interrupted before its answer came. Look the "
        "jobs up by id before doing this again.",
        outcome_unknown=True,
    )


def is_silence(error: Exception) -> bool:
    """True when a commit was given up because the storage did not answer."""
    if not isinstance(error, StorageError):
        return False
    return error.outcome_unknown or isinstance(error.cause, StorageError)


def not_sent(name: str, error: Exception) -> StorageError:
    """What a caller is told who waited behind a commit that the storage did not answer."""
    return StorageError(
        f"{name}: the storage does not answer: the commit before this one was given up after "
        f"{COMMIT_DEADLINE_US // SECOND_US} s. Nothing was written; try again when the storage "
        "answers.",
        cause=error,
        outcome_unknown=False,
    )
