"""Forks: a child must not use its parent's connections, nor SQLite's memory of them.

SQLite keeps a list of the files that are open in the process and of the locks
it holds on them. A child inherits the list but not the locks, and would trust
in them. So every store closes its connections before a fork, and parent and
child open new ones when they need them.

A fork that Python does not see leaves them open. Then the child closes them
before it opens any, so that SQLite forgets the list. If another thread was in
the middle of a call, the child can do neither: SQLite's own locks stay taken
there for ever. So it refuses, whatever the file.
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
"""How long a fork waits for the calls of other threads."""


class Closable(Protocol):
    """A connection, if there is one; used with the lock held."""

    lock: Any
    opened: sqlite3.Connection | None

    @property
    def file(self) -> tuple[Path, Identity | None]:
        """Where it is, and which file was opened there."""
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
"""While a fork is under way: the handles whose locks it has, and whose connections are closed."""
_told: list[Forked] = []
_mine: list[sqlite3.Connection] = []
"""In a new child: the connections whose calls go on in here."""
_is_closing = False
_refusal: str | None = None


def remember(store: Forked, handles: tuple[Closable, ...]) -> None:
    """Have the store told of every fork, for as long as it lives."""
    with _lock:
        _stores.add(store)
        _handles.update(handles)
    finalize(store, _forget, handles).atexit = False


def check(name: str) -> None:
    """Raise StorageError where SQLite cannot be used."""
    if _refusal is not None:
        raise StorageError(
            f"{name}: this process was forked from one that had a queue in SQLite open, {_refusal} "
            "SQLite cannot be used safely in here; nothing was written. Open the queue after the "
            "fork (uWSGI: set `lazy-apps`, or open it under `@postfork`), fork before you start "
            'threads, or start processes with multiprocessing\'s "spawn" or "forkserver".',
            outcome_unknown=False,
        )


def _forget(handles: tuple[Closable, ...]) -> None:
    """Nobody has their store any more."""
    forks.generation()  # what a child inherited is closed in another way
    if _is_closing:
        return  # collected right in the middle of that
    for handle in handles:
        with handle.lock:
            handle.close()
        _handles.discard(handle)


def _at_exit() -> None:
    """Close what is open: its files may be gone, and SQLite alone would not look."""
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
        # Who forks may be a signal handler that struck in the middle of a call.
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
    global _lock, _is_closing  # noqa: PLW0603 - what SQLite keeps is one per process, too
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
    """Close what the child inherited; or never close it, and refuse."""
    global _refusal  # noqa: PLW0603 - as above
    mine = [handle.opened for handle in handles if reentry.is_mine(handle.lock)]
    _mine[:] = [connection for connection in mine if connection is not None]
    if mine or not all(handle.lock.acquire(blocking=False) for handle in handles):
        _refusal = "while a call to it was under way."
    for handle in handles:
        connection, handle.opened = handle.opened, None
        if connection is not None and _refusal:
            keep_for_ever(connection)  # to close it could wait for ever
        elif connection is not None and not close_alone(connection, *handle.file):
            _refusal = "and its connection cannot be let go of."


def _deny() -> None:
    """What goes on when this returns, in the thread that forked, must not write a second time.

    Only now is it certain that it is that thread: a new one may go by the number of one that is
    gone, and SQLite's lock would be taken for ever.
    """
    for connection in _mine:
        connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)


atexit.register(_at_exit)
forks.in_child(_in_child)
forks.around_fork(before=_before, in_parent=_in_parent, last_in_child=_deny)
