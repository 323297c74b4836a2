"""Forks: telling a process from its forks, and the one registry of what to do around a fork.

Python's own hooks are not enough: a server that forks in C, such as uWSGI, does
not run them. So a byte says whose process this is: the kernel clears it in
every child. The first call of `generation` in a child first renews there what
`renew_in_child` and `in_child` name.
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
    """An object with locks: in a child, a thread that is not there may hold them."""

    def renew(self) -> None:
        """Make the locks again, and forget what must not be the same in two processes."""
        ...


class _ByteOfThisProcess:
    """The byte, where the kernel clears none: it is set in the process that set it last."""

    def __init__(self) -> None:
        self._pid = 0

    def __getitem__(self, _: int) -> int:
        return self._pid == os.getpid()

    def __setitem__(self, _: int, is_set: int) -> None:
        self._pid = os.getpid() if is_set else 0


def _byte_cleared_in_children() -> mmap.mmap | _ByteOfThisProcess:
    """A byte at index 0. To look at it takes a sixth of the time that `os.getpid` takes."""
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
"""Its byte is 0 in a child, until `generation` was called there."""
is_noticed[0] = 1
noticed = 0
"""What `generation` returns while `is_noticed[0]`: for calls in which a function call counts."""
_busy_pid = 0
_renewable: WeakSet[Renewable] = WeakSet()
_callbacks: list[Callback] = []
_before: list[Callback] = []
_in_parent: list[Callback] = []
_last_in_child: list[Callback] = []
_locks: dict[int, threading.RLock] = {}


def generation() -> int:
    """How many noticed forks lie between this process and the first one.

    The first call in a child returns when everything registered here is done.
    """
    if not is_noticed[0]:
        _notice()
    return noticed


def refuse_in_child(made_in: int, what: str, instead: str) -> None:
    """Raise StorageError unless `what`, in memory since generation `made_in`, is this process's."""
    if made_in != generation():
        raise StorageError(
            f"{what} lives in the process that made it, and this is a fork of that process: what "
            f"is changed here nobody else would see. Use {instead} to share a queue between "
            "processes.",
            outcome_unknown=False,
        )


def renew_in_child(owner: Renewable) -> None:
    """Call `owner.renew()` in every child, for as long as the owner lives."""
    _renewable.add(owner)


def in_child(callback: Callback) -> None:
    """Call it once in every child, before anything there has learned its generation."""
    _callbacks.append(callback)


def around_fork(*, before: Callback, in_parent: Callback, last_in_child: Callback) -> None:
    """Call these around every fork that Python sees; a fork in C calls none of them."""
    _before.append(before)
    _in_parent.append(in_parent)
    _last_in_child.append(last_in_child)


def own_lock() -> threading.RLock:
    """The lock of this process: unlike all others, nobody holds it in a new child."""
    return _locks.setdefault(os.getpid(), threading.RLock())


def _notice() -> None:
    global noticed, _busy_pid  # noqa: PLW0603 - which process this is, has one answer
    with own_lock():
        pid = os.getpid()
        if is_noticed[0] or pid == _busy_pid:  # another thread was first; or a callback asks
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
# A child that never called must not close its parent's things in its own way at its end.
atexit.register(generation)
