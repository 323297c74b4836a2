"""Process: telling the process that made something from its forks.

Python's own hooks are not enough: a server that forks in C, such as uWSGI, does
not run them. So the process is known by its id, and the first look in a child
does there what has to be done once.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

_pid = os.getpid()
noticed = 0
"""What `generation` said last: for those who are called after it, and by the microsecond."""
_busy_pid = 0
_callbacks: list[Callable[[], None]] = []
_locks: dict[int, threading.RLock] = {}


def generation() -> int:
    """How many forks that somebody noticed lie between this process and the first one.

    The first call in a child returns when all that `in_child` names is done.
    """
    if _pid != os.getpid():
        _notice()
    return noticed


def in_child(callback: Callable[[], None]) -> None:
    """Call it once in every child, before anything there has learned its generation."""
    _callbacks.append(callback)


def own_lock() -> threading.RLock:
    """The lock of this process: unlike all others, nobody holds it in a new child."""
    return _locks.setdefault(os.getpid(), threading.RLock())


def _notice() -> None:
    global _pid, noticed, _busy_pid  # noqa: PLW0603 - which process this is, has one answer
    with own_lock():
        pid = os.getpid()
        if pid in (_pid, _busy_pid):  # another thread was first; or a callback asks
            return
        noticed, _busy_pid = noticed + 1, pid
        try:
            for callback in _callbacks:
                callback()
            _pid = pid
        finally:
            _busy_pid = 0


def _hooked() -> None:
    global _pid  # noqa: PLW0603 - as above
    _pid = 0  # whatever its id is
    _locks.clear()
    _notice()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_hooked)
# A child that has never looked must not let go of its parent's things in its own way at its end.
atexit.register(generation)
