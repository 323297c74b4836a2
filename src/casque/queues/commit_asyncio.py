"""LoopCommitter: group commit for the tasks of event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

from casque.queues.commit import (
    CLOSE_PATIENCE_US,
    BatchWriter,
    PendingOperation,
    copied_error,
    interrupted_error,
    is_unanswered,
    not_sent_error,
    to_give_back,
)
from casque.rules.operations import Operation
from casque.stores.port import Store


class LoopCommitter:
    """Group commit for tasks: one writer for each event loop that uses the queue."""

    def __init__(self, store: Store, *, one_by_one: bool, max_conflicts: int | None) -> None:
        self._new_writer = partial(
            _LoopWriter, store, one_by_one=one_by_one, max_conflicts=max_conflicts
        )
        # One per loop: only its own loop can wake a task, and a loop that ends
        # must not drop the operations of another.
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWriter]
        self._by_loop = WeakKeyDictionary()
        self._last: tuple[ref[asyncio.AbstractEventLoop], ref[_LoopWriter]] | None = None
        """The loop of the last call and its writer: most queues are used by one loop."""

    def commit(self, operations: Sequence[Operation]) -> Coroutine[Any, Any, list[Any]]:
        """Commit these together with waiting operations. Returns the result or error of each."""
        return self._own().commit(operations)

    async def commit_one(self, operation: Operation) -> Any:
        """Commit one operation together with waiting ones. Returns its result or raises."""
        # Every call of a queue passes here, perhaps thousands at once: no list, and no coroutine
        # between the caller's and this one.
        own = self._own()
        future = own.add(operation)
        try:
            outcome = await future
        except asyncio.CancelledError:
            own.withdraw((future,))
            raise
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def drain(self) -> None:
        """Wait until all operations of this loop have an outcome, within a time limit."""
        await self._own().drain()

    @property
    def waiting(self) -> int:
        """How many operations wait for the next commit."""
        return sum(batches.waiting for batches in self._by_loop.values())

    def _own(self) -> _LoopWriter:
        loop, last = asyncio.get_running_loop(), self._last
        if last is not None and last[0]() is loop and (known := last[1]()) is not None:
            return known
        own = self._by_loop.get(loop)
        if own is None:  # a loop has one thread, so no other thread adds it
            own = self._by_loop[loop] = self._new_writer()
        self._last = ref(loop), ref(own)
        return own


class _LoopWriter(BatchWriter):
    """The waiting operations of one event loop, and the task that commits them."""

    _worker: asyncio.Task[None] | None = None

    async def commit(self, operations: Sequence[Operation]) -> list[Any]:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in operations]
        self._join([*map(PendingOperation, operations, futures)])
        self._start(loop)
        try:
            return [await future for future in futures]
        except asyncio.CancelledError:
            self.withdraw(futures)
            raise

    def add(self, operation: Operation) -> asyncio.Future[Any]:
        """Add an operation to those that wait. Returns the future of its outcome."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._join((PendingOperation(operation, future),))
        self._start(loop)
        return future

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the task that commits, unless it runs."""
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())

    def withdraw(self, futures: Iterable[asyncio.Future[Any]]) -> None:
        """Do not send the operations of a cancelled caller, and give back its claims."""
        for future in futures:
            if not future.cancel() and not future.cancelled():
                self._give_back(future.result())

    async def drain(self) -> None:
        worker = self._worker
        if worker is None or worker.done():
            return
        bell = self._store.clock.bell(blocking=False)
        worker.add_done_callback(lambda _: bell.ring())
        if not await bell.wait(CLOSE_PATIENCE_US):
            worker.cancel()
            await asyncio.wait([worker])

    async def _work(self) -> None:
        try:
            while batch := self._next_batch([]):
                await self._commit_batch(batch)
        finally:
            self._worker = None  # the task would keep its loop alive, and the loop this object

    async def _commit_batch(self, batch: list[PendingOperation]) -> None:
        try:
            outcomes = await self._commit([entry.operation for entry in batch], blocking=False)
        except Exception as error:  # noqa: BLE001 - no caller may hang, whatever the error
            _settle_all(batch, error)
            if is_unanswered(error):
                # It used all the time of one call; the operations behind it waited as long.
                _settle_all(self._waiting, not_sent_error(self._store.name, error))
                self._waiting.clear()
        except BaseException:  # cancelled by `drain`, or interrupted
            _settle_all([*batch, *self._waiting], interrupted_error(self._store.name))
            self._waiting.clear()
            raise
        else:
            for entry, outcome in zip(batch, outcomes, strict=True):
                future = entry.future
                if future is None:
                    continue
                if future.done():
                    self._give_back(outcome)
                else:
                    future.set_result(outcome)

    def _give_back(self, outcome: Any) -> None:
        """Give back the claims of a caller that was cancelled."""
        self._waiting.extend(map(PendingOperation, to_give_back(outcome)))
        if self._waiting:
            self._start(asyncio.get_running_loop())


def _settle_all(entries: Iterable[PendingOperation], error: Exception) -> None:
    for entry in entries:
        if entry.future is not None and not entry.future.done():
            entry.future.set_result(copied_error(error))
