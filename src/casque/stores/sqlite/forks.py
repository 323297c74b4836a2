"""Forks: a child must not use its parent's connections, nor SQLite's list of them.

SQLite keeps a list of the files that are open in the process, and of the locks it holds on them. A
child inherits the list but not the locks, and its SQLite would rely on those locks. So every store
closes its connections before a fork, and parent and child open new ones when they need them.

A fork in C leaves the connections open. Then the child closes them before it opens new ones, so
that SQLite drops the list. The child cannot close them if another thread was in a call at the fork.
Then SQLite's internal locks stay taken in the child for ever. So the child rejects every call, for
any file.
"""

from __future__ import annotations

import atexit
import sqlite3
import threading
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet, finalize

from casque.errors import StorageError
from casque.stores.sqlite.close_alone import close_alone, keep_for_ever
from casque.stores.sqlite.files import Identity
from casque.system import forks, reentry
from casque.system.clock import SECOND_US, SystemClock

PATIENCE_SECONDS = 5.0
"""How long a fork waits for calls of other threads to finish."""


class Closable(Protocol):
    """A connection that may be open. Hold `lock` to use it."""

    lock: Any
    opened: sqlite3.Connection | None

    @property
    def file(self) -> tuple[Path, Identity | None]:
        """The path, and the identity of the file that was opened there."""
        ...

    def open(self) -> sqlite3.Connection: ...

    def close(self) -> None: ...


class Forked(Protocol):
    def before_fork(self) -> None: ...

    def after_fork(self, *, in_child: bool) -> None: ...


_stores: WeakSet[Forked] = WeakSet()
_handles: set[Closable] = set()
_lock = threading.Lock()
_ready: list[Closable] = []
"""During a fork: the handles whose locks are taken and whose connections are closed."""
_told: list[Forked] = []
_mine: list[sqlite3.Connection] = []
"""In a new child: the connections with a call of the forking thread in progress."""
_is_closing = False
_refusal: str | None = None


def remember(store: Forked, handles: tuple[Closable, ...]) -> None:
    """Notify the store of every fork, for as long as it lives."""
    with _lock:
        _stores.add(store)
        _handles.update(handles)
    finalize(store, _forget, handles).atexit = False


def check(name: str) -> None:
    """Raise StorageError if SQLite cannot be used in this process."""
    if _refusal is not None:
        raise StorageError(
            f"{name}: this process was forked from one that had a SQLite queue open, {_refusal} "
            "SQLite cannot be used safely here; nothing was written. Open the queue after the fork "
            "(uWSGI: set `lazy-apps`, or open it in a `@postfork` function), fork before you start "
            'threads, or start processes with multiprocessing\'s "spawn" or "forkserver".',
            outcome_unknown=False,
        )


def _forget(handles: tuple[Closable, ...]) -> None:
    """Close and drop the handles of a store that was garbage-collected."""
    forks.generation()  # in a child this closes the inherited connections differently
    if _is_closing:
        return  # the store was collected during `_in_child`
    for handle in handles:
        with handle.lock:
            handle.close()
        _handles.discard(handle)


def _at_exit() -> None:
    """Close open connections: their files may be gone, which SQLite does not check."""
    forks.generation()
    for handle in list(_handles):
        if handle.lock.acquire(blocking=False):
            handle.close()
            handle.lock.release()


def _before() -> None:
    _lock.acquire()
    clock = SystemClock()
    give_up = clock.monotonic() + int(PATIENCE_SECONDS * SECOND_US)
    for store in list(_stores):
        store.before_fork()
        _told.append(store)
    for handle in list(_handles):
        # The fork may come from a signal handler in the middle of a call.
        if reentry.is_mine(handle.lock):
            continue
        if handle.lock.acquire(timeout=max(give_up - clock.monotonic(), 0) / SECOND_US):
            _ready.append(handle)
            handle.close()


def _in_parent() -> None:
    while _ready:
        _ready.pop().lock.release()
    while _told:
        _told.pop().after_fork(in_child=False)
    _lock.release()


def _in_child() -> None:
    global _lock, _is_closing  # noqa: PLW0603 - one per process, as SQLite's list is
    _lock, _is_closing = threading.Lock(), True
    try:
        _let_go([handle for handle in _handles if handle not in _ready])
    finally:
        _is_closing = False
    for handle in list(_handles):
        handle.lock = threading.RLock()
    _ready.clear()
    _told.clear()
    for store in list(_stores):
        store.after_fork(in_child=True)


def _let_go(handles: list[Closable]) -> None:
    """Close the inherited connections; if that is not possible, keep them and set `_refusal`."""
    global _refusal  # noqa: PLW0603 - as above
    mine = [handle.opened for handle in handles if reentry.is_mine(handle.lock)]
    _mine[:] = [connection for connection in mine if connection is not None]
    if mine or not all(handle.lock.acquire(blocking=False) for handle in handles):
        _refusal = "while a call to the queue was in progress."
    for handle in handles:
        connection, handle.opened = handle.opened, None
        if connection is not None and _refusal:
            keep_for_ever(connection)  # closing it could wait for ever
        elif connection is not None and not close_alone(connection, *handle.file):
            _refusal = "and the inherited connection cannot be closed."


def _deny() -> None:
    """Block the child's copy of a call that ran at the fork: the parent makes its writes.

    This runs last, when the current thread is known to be the one that forked. A new thread can
    reuse the id of an ended one. If this blocked the new thread by mistake, that thread would hold
    SQLite's lock forever.
    """
    for connection in _mine:
        connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)


atexit.register(_at_exit)
forks.in_child(_in_child)
forks.around_fork(before=_before, in_parent=_in_parent, last_in_child=_deny)
