"""Session: a queue's or lock's connection to its store, with writer and worker name."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from casque import checks
from casque.errors import CASConflictError, InvalidError
from casque.queues.commit_threads import ThreadCommitter
from casque.record import ABSENT, Record
from casque.rules.operations import DeleteRecord, Enqueue, Operation, PutRecord
from casque.stores.listeners import Listeners
from casque.stores.port import Joinable, Joined, Store
from casque.stores.url import StoreAddress, open_store, shared_address_of
from casque.system import forks
from casque.system.clock import Bell, Clock, drive

if TYPE_CHECKING:
    from casque.queues.commit_asyncio import LoopCommitter


class Session:
    """The connection of a queue or a lock to its store: operations go through it."""

    def __init__(
        self,
        address: StoreAddress,
        *,
        owner: str,
        worker: str | None = None,
        blocking: bool = False,
        one_by_one: bool = False,
        must_enter: bool = False,
        max_conflicts: int | None = None,
        shared_address: str | None = None,
    ) -> None:
        self.store = open_store(address)
        self.address = shared_address or shared_address_of(address, self.store)
        """The address at which another process finds the store; None if it cannot."""
        self.clock: Clock = self.store.clock
        self.worker = _new_name(self.clock) if worker is None else checks.name(worker, "worker")
        self.blocking = blocking
        """True if its callers are threads without an event loop."""
        self._owner = owner
        self._owns_store = self.store is not address
        self._must_enter = must_enter
        self.access: Store = self.store
        """The store, or a wrapper that runs its calls on a thread."""
        self._committer: ThreadCommitter | LoopCommitter
        if blocking:
            committer = self._committer = ThreadCommitter(
                self.access, one_by_one=one_by_one, max_conflicts=max_conflicts
            )
            self._commit = committer.commit
        else:
            from casque.queues.commit_asyncio import LoopCommitter
            from casque.stores.threaded import OnThread

            if self.store.blocking and not self.store.instant:
                self.access = OnThread(self.store)
            self._committer = LoopCommitter(
                self.access, one_by_one=one_by_one, max_conflicts=max_conflicts
            )
        self._bells = Listeners()
        self._generation = forks.generation()
        self._is_entered = False
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many operations wait for the next commit."""
        return self._committer.waiting

    def enter(self) -> None:
        if self._is_closed:
            raise self._not_open()
        self._is_entered = True

    def woken_by_close(self, bell: Bell) -> AbstractContextManager[None]:
        """In this context `close` rings `bell`, so that a waiting caller sees the close."""
        return self._bells.listening(bell)

    async def close(self) -> None:
        """Commit pending operations, within a time limit, and close. Calling it twice is fine."""
        if self._is_closed or self._generation != forks.generation():
            self._is_closed = True  # in a forked child there is nothing to do or wait for
            return
        self._is_closed = True
        self._bells.ring()
        await self._committer.drain()
        if self.access is not self.store:
            await self.access.close()
            if self._owns_store:
                from asyncio import to_thread

                await to_thread(drive, self.store.close())
        elif self._owns_store:
            await self.store.close()

    def check_open(self) -> None:
        """Raise InvalidError, with the remedy, unless this process can use the session now."""
        if self._is_closed or (self._must_enter and not self._is_entered):
            raise self._not_open()
        if self._generation != forks.generation():
            remedy = (
                f"{self.store.name} exists only in the parent; use sqlite:/// to share a queue."
                if self.store.instant
                else "open a new one in the child."
            )
            raise InvalidError(
                f"this {self._owner} was opened before a fork and belongs to the parent process; "
                f"{remedy}"
            )

    def submit(self, operation: Operation) -> Coroutine[Any, Any, Any]:
        """Commit one operation. The coroutine returns its result or raises its error."""
        self.check_open()
        return self._committer.commit_one(operation)

    async def submit_all(self, operations: Sequence[Operation]) -> list[Any]:
        """Commit several operations. Returns the result or the error of each."""
        self.check_open()
        if isinstance(self._committer, ThreadCommitter):
            return self._committer.commit(operations)
        return await self._committer.commit(operations)

    def commit(self, operation: Operation) -> Any:
        """Do the same as `submit` without a coroutine: the fast path of a `blocking` session."""
        if self._is_closed or self._generation != forks.noticed:  # the queue has checked for forks
            self.check_open()
        [outcome] = self._commit((operation,))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def enqueue_within(self, connection: object, operation: Enqueue) -> Joined:
        """Add jobs inside the caller's transaction; they are stored when it commits."""
        self.check_open()
        if not isinstance(self.store, Joinable):
            raise InvalidError(
                f"{self.store.name} has no transactions to join: `connection` is for a queue in "
                "the SQLite file that the connection is open on."
            )
        return self.store.enqueue_within(connection, operation)

    @property
    def readable(self) -> Store:
        """The store, for reading. Raises InvalidError unless `check_open` passes."""
        self.check_open()
        return self.access

    async def records(self, kind: str) -> list[Record]:
        return await self.readable.records(kind)

    async def take(self, kind: str, name: str, lease_us: int) -> Record | None:
        """Claim a name with a record that expires. None if another caller has the name."""
        operation = PutRecord(kind, name, self.worker.encode(), ABSENT, lease_us)
        try:
            record: Record = await self.submit(operation)
        except CASConflictError:
            return None
        return record

    async def delete(self, record: Record) -> None:
        """Delete a record, unless it has changed or was deleted since it was read."""
        with suppress(CASConflictError):
            await self.submit(DeleteRecord(record.kind, record.name, record.version))

    def _not_open(self) -> InvalidError:
        if self._is_closed:
            return InvalidError(f"this {self._owner} is closed; open a new one.")
        return InvalidError(
            f"this {self._owner} is not open: write `async with {self._owner}(…) as q:`."
        )


def _new_name(clock: Clock) -> str:
    return f"{os.uname().nodename}:{os.getpid()}:{int(clock.random() * 0x10000):04x}"
