"""Forks: a child must not use its parent's connections, nor SQLite's memory of them.

SQLite keeps a list of the files that are open in the process and of the locks
it holds on them. A child inherits the list but not the locks, and would trust
in them. So every store closes its connections before a fork, and parent and
child open new ones when they need them.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    def before_fork(self) -> None: ...

    def after_fork(self, *, in_child: bool) -> None: ...


_stores: WeakSet[Forked] = WeakSet()
_lock = threading.Lock()
_held: list[Forked] = []


def remember(store: Forked) -> None:
    """Have the store told of every fork, for as long as it lives."""
    with _lock:
        _stores.add(store)


def _before() -> None:
    _lock.acquire()
    for store in list(_stores):
        store.before_fork()
        _held.append(store)


def _after(*, in_child: bool) -> None:
    while _held:
        _held.pop().after_fork(in_child=in_child)
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=lambda: _after(in_child=False),
        after_in_child=lambda: _after(in_child=True),
    )
