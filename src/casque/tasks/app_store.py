"""AppStore: the store of an app and its queues; one per process, opened at the first use."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from casque import checks
from casque.errors import InvalidError
from casque.queues.async_queue import DEFAULT_MAX_DEPTH, AsyncQueue
from casque.queues.runner_asyncio import LoopRunner
from casque.queues.sync_queue import Queue
from casque.stores.port import Creatable, Store
from casque.stores.url import (
    StoreAddress,
    anchored,
    check_address,
    is_store,
    open_store,
    shared_address_of,
)
from casque.system import forks
from casque.system.clock import drive


class AppStore:
    """The store at an address, in this process. Thread-safe; opens the store again after a fork."""

    def __init__(self, address: StoreAddress, *, max_depth: int = DEFAULT_MAX_DEPTH) -> None:
        check_address(address)
        self._address = anchored(address)  # so that a later change of folder does not matter
        self._owns_store = not is_store(address)
        self.max_depth = checks.whole(max_depth, "max_depth", 0)
        """How deep jobs may enqueue jobs through its queues."""
        self._lock = threading.Lock()
        self._generation = forks.generation()
        self._is_closed = False
        self._must_exist = False
        self._store: Store | None = None
        self._queue: Queue | None = None
        self._async_queue: AsyncQueue | None = None

    @property
    def store(self) -> Store:
        self._check()
        store = self._store
        if store is None:
            with self._lock:
                store = self._store = self._store or self._bound(open_store(self._address))
        return store

    @property
    def address(self) -> str | None:
        """The address, for other processes; None if the app was given a store object."""
        address = self._address
        return str(address) if isinstance(address, str | Path) else None

    @property
    def shared_address(self) -> str | None:
        """The address for programs that a job starts; None if they cannot open the store."""
        return shared_address_of(self._address, self.store)

    def apart(self) -> Store:
        """Return a second store, which callers of `store` cannot delay, or `store` itself.

        A store that is not `blocking` serves one caller at a time. So a caller whose event loop
        is blocked would block the other callers.
        """
        if self._owns_store and not self.store.blocking:
            return self._bound(open_store(self._address))
        return self.store

    def require_existing(self) -> None:
        """From now on, raise if the store is gone, instead of creating it."""
        self._must_exist = True
        if self._store is not None:
            self._bound(self._store)

    def _bound(self, store: Store) -> Store:
        if self._must_exist and isinstance(store, Creatable):
            store.require_existing()
        return store

    @property
    def queue(self) -> Queue:
        queue = self._queue
        if queue is not None and self._generation == forks.generation():
            return queue  # the fast path, at every enqueue; `close` resets `_queue`
        self._check()
        queue = self._queue
        if queue is None:
            store = self.store
            with self._lock:
                queue = self._queue = self._queue or Queue(
                    store,
                    max_depth=self.max_depth,
                    _address=shared_address_of(self._address, store),
                )
        return queue

    @property
    def async_queue(self) -> AsyncQueue:
        self._check()
        queue = self._async_queue
        if queue is None:
            store = self.store
            with self._lock:
                queue = self._async_queue = self._async_queue or AsyncQueue(
                    store,
                    max_depth=self.max_depth,
                    _owner="App",
                    _address=shared_address_of(self._address, store),
                )
        return queue

    def _check(self) -> None:
        if self._generation != forks.generation():
            self._open_again()
        if self._is_closed:
            raise InvalidError("this App is closed; make a new one.")

    def _open_again(self) -> None:
        """Drop the open stores in a forked child: their threads belong to the parent."""
        with forks.own_lock():
            if self._generation != forks.generation():
                self._lock = threading.Lock()  # a thread of the parent may have held it
                if self._store is not None and not self._store.instant:
                    self._store = self._queue = self._async_queue = None
                self._generation = forks.generation()

    def close(self) -> None:
        """Commit pending operations, within a time limit, and close. Calling it twice is fine."""
        if self._is_closed or self._generation != forks.generation():
            self._is_closed = True
            return
        self._is_closed = True
        if self._queue is not None:
            self._queue.close()
        if self._async_queue is not None:
            _run_aside(self._async_queue.close())
        if self._store is not None and self._owns_store:
            closing = self._store.close()
            drive(closing) if self._store.blocking else _run_aside(closing)
        self._store = self._queue = self._async_queue = None


def _run_aside(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine on a separate thread, because this thread may run an event loop."""
    runner = LoopRunner()
    runner.run(coroutine)
    runner.close()
