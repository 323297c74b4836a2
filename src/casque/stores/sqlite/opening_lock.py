"""OpeningLock: one process at a time opens or closes databases in a folder.

An opening first looks which log there is, then SQLite opens it or makes a new one. If the log is
removed in between, the opening removes the new log again. No other process must have used the new
log by then, or have concluded from it that its own, removed log was replaced.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from casque.stores.sqlite.files import raise_unless_from_system

_PAUSE_SECONDS = 0.01

T = TypeVar("T")


class OpeningLock:
    """The lock of the folder in which SQLite keeps a database and its log.

    It is a lock on the folder itself, so it leaves no file behind. The system releases it when the
    process dies. If the folder cannot be read or locked, there is no lock.
    """

    def __init__(self, path: Path, random: Callable[[], float]) -> None:
        self._path = path
        self._random = random

    def run(self, call: Callable[[bool], T], patience_seconds: float = 0) -> T:
        """Call `call` while this thread has the lock.

        Passes False if another process or thread still has the lock after `patience_seconds`.
        """
        # This thread may have it already: to close a queue that is garbage-collected during an
        # opening, or that a signal handler closes.
        if getattr(_this_thread, "has_lock", False):
            return call(True)  # noqa: FBT003 - as below
        opened: list[int] = []
        try:
            self._open_folder(opened)
            has_lock = self._lock(opened, patience_seconds)
            _this_thread.has_lock = has_lock
            return call(has_lock)
        finally:
            _this_thread.has_lock = False
            try:
                _release(opened)
            finally:
                _release(opened)  # again: a signal handler may have raised during the first

    def _open_folder(self, opened: list[int]) -> None:
        # SQLite puts the log beside the file itself, not beside a link to it.
        folder = Path(os.path.realpath(self._path)).parent
        try:
            opened.append(os.open(folder, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise_unless_from_system(error)

    def _lock(self, opened: list[int], patience_seconds: float) -> bool:
        while not all(map(_try_lock, opened)):
            if patience_seconds <= 0:
                return False
            pause = self._random() * _PAUSE_SECONDS
            threading.Event().wait(pause)
            patience_seconds -= pause
        return True


_this_thread = threading.local()


def _try_lock(folder: int) -> bool:
    import fcntl  # noqa: PLC0415 - POSIX only, so not at the top of the module

    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise_unless_from_system(error)  # this file system has no such locks
    return True


def _release(opened: list[int]) -> None:
    import fcntl  # noqa: PLC0415 - POSIX only, so not at the top of the module

    with suppress(OSError, IndexError):
        # Closing alone is not enough: a child forked meanwhile has a copy and would keep the lock.
        fcntl.flock(opened[0], fcntl.LOCK_UN)
        os.close(opened.pop())
