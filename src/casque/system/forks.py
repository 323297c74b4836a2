"""Forks: detects that this process is a fork, and keeps the one registry of fork callbacks.

Python's own hooks are not enough: a server that forks in C, such as uWSGI, does not run them. So
this module has a byte that the kernel clears in every child. The first call of `generation` in a
child runs the callbacks registered with `renew_in_child` and `in_child`.
"""

from __future__ import annotations

import atexit
import mmap
import os
import threading
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from casque.errors import StorageError

Callback = Callable[[], None]

_WIPE_ON_FORK = 18
"""Linux's MADV_WIPEONFORK, which Python does not name."""
_NO_ADVICE = -1
"""Linux refuses it."""


class Renewable(Protocol):
    """An object whose locks are replaced in a child: their holders exist only in the parent."""

    def renew(self) -> None:
        """Replace the locks, and drop state that two processes must not share."""
        ...


class _ByteOfThisProcess:
    """Used if the kernel cannot clear a byte at a fork: item 0 is true where it was set."""

    def __init__(self) -> None:
        self._pid = 0

    def __getitem__(self, _: int) -> int:
        return self._pid == os.getpid()

    def __setitem__(self, _: int, is_set: int) -> None:
        self._pid = os.getpid() if is_set else 0


def _byte_cleared_in_children() -> mmap.mmap | _ByteOfThisProcess:
    """Return an object whose byte 0 reads 0 in a child. On Linux 6 times as fast as `os.getpid`."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_WIPE_ON_FORK)
    except (AttributeError, OSError):  # not Linux, or older than 4.14
        return _ByteOfThisProcess()
    try:
        page.madvise(_NO_ADVICE)
    except OSError:
        return page
    return _ByteOfThisProcess()  # emulators of Linux accept any advice, and follow none


is_noticed = _byte_cleared_in_children()
"""The byte at index 0 is 0 in a child until `generation` is called there."""
is_noticed[0] = 1
noticed = 0
"""The value of `generation()` while `is_noticed[0]`, for code where a call costs too much."""
_busy_pid = 0
_renewable: WeakSet[Renewable] = WeakSet()
_callbacks: list[Callback] = []
_before: list[Callback] = []
_in_parent: list[Callback] = []
_last_in_child: list[Callback] = []
_locks: dict[int, threading.RLock] = {}


def generation() -> int:
    """How many forks, as far as noticed, led from the first process to this one.

    The first call in a child returns after all registered callbacks have run.
    """
    if not is_noticed[0]:
        _notice()
    return noticed


def refuse_in_child(made_in: int, what: str, instead: str) -> None:
    """Raise StorageError if this is a fork of the process that made the in-memory object `what`."""
    if made_in != generation():
        raise StorageError(
            f"{what} lives in the process that made it, and this process is a fork of that one: no "
            f"other process would see changes made here. Use {instead} to share a queue between "
            "processes.",
            outcome_unknown=False,
        )


def renew_in_child(owner: Renewable) -> None:
    """Call `owner.renew()` in every child, for as long as the owner lives."""
    _renewable.add(owner)


def in_child(callback: Callback) -> None:
    """Call `callback` once in every child process, before `generation()` first returns there."""
    _callbacks.append(callback)


def around_fork(*, before: Callback, in_parent: Callback, last_in_child: Callback) -> None:
    """Call these around every fork made by Python; a fork in C calls none of them."""
    _before.append(before)
    _in_parent.append(in_parent)
    _last_in_child.append(last_in_child)


def own_lock() -> threading.RLock:
    """Return the lock of this process. A new child gets a new lock, which is free."""
    return _locks.setdefault(os.getpid(), threading.RLock())


def _notice() -> None:
    global noticed, _busy_pid  # noqa: PLW0603 - there is one value per process
    with own_lock():
        pid = os.getpid()
        if is_noticed[0] or pid == _busy_pid:  # another thread was first; or a callback calls
            return
        noticed, _busy_pid = noticed + 1, pid
        try:
            for owner in list(_renewable):
                owner.renew()
            _call(_callbacks)
            is_noticed[0] = 1
        finally:
            _busy_pid = 0


def _call(callbacks: list[Callback]) -> None:
    for callback in callbacks:
        callback()


def _hooked() -> None:
    is_noticed[0] = 0
    _locks.clear()
    _notice()
    _call(_last_in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _call(_before),
        after_in_parent=lambda: _call(_in_parent),
        after_in_child=_hooked,
    )
# Also in a child that made no call: its exit handlers must not close its parent's things.
atexit.register(generation)
