"""Files: whether the database file and its log are still those that are open here.

SQLite keeps a database in three files: the file itself, its log (`-wal`), and what all its users
know of the log (`-shm`). When somebody removes or replaces one of them, a process that has it open
goes on with a file without a name. The next process to open the queue does not see that file.
"""

from __future__ import annotations

import os
from contextlib import suppress

from casque.system.clock import SystemClock

Identity = tuple[int, int]
"""A file, whatever its name: its device and its inode."""

_CLOCK = SystemClock()
_SECOND_NS = 1_000_000_000
_TICK_NS, _COARSE_TICK_NS = _SECOND_NS // 10, 3 * _SECOND_NS
"""A folder that was changed so long ago is sure to show the next change by another time: kernels
count in hundredths of a second or finer, a few file systems in one or two whole ones."""


class OpenFiles:
    """The three files of a database that is open in this process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = -1
        """A descriptor of the folder: to ask it takes half as long as by its name."""
        self._opened: list[int] = []
        self._names = (path, f"{path}-wal", f"{path}-shm")
        self._held: list[Identity | None] = []
        """What is open here."""
        self.file: Identity | None = None
        """The file that was first opened here."""
        self._quiet_ns = -1
        """When the folder was last changed, if all were in their places after that."""
        self.is_lost = False
        """Whether one was found to be gone. It stays so until `forget`."""

    @property
    def log_name(self) -> str:
        return self._names[1]

    def log(self) -> list[Identity] | None:
        """Which files are the log, if both parts of it are there."""
        self._resolve()
        found = [identity for identity in self._found()[1:] if identity is not None]
        return found if len(found) == len(self._names) - 1 else None

    def take(self, log: list[Identity] | None = None) -> bool:
        """Note what is at the path as what was just opened. False if it is something else.

        `log` is what the log was before.
        """
        if not self.are_there():
            self._resolve()
            found = self._found()
            if None in found or log not in (None, found[1:]) or not _are_open_here(found):
                return False
            if self.file not in (None, found[0]):  # it was let go of before a fork, say
                self.is_lost = True
                return False
            self._held, self.file = found, found[0]
            self.let_go()
        if self._folder < 0:
            with suppress(OSError):  # then the files themselves are asked each time
                self._opened.append(os.open(os.path.dirname(self.log_name), os.O_RDONLY))  # noqa: PTH120
                self._folder = self._opened[-1]
        return True

    def are_there(self) -> bool:
        """Whether all that is open here is still what is at the path. After each commit: quick."""
        try:
            changed_ns = os.fstat(self._folder).st_ctime_ns
        except OSError:
            changed_ns = None
        return changed_ns == self._quiet_ns or self._compare(changed_ns)

    def are_replaced(self) -> bool:
        """Whether others may have a log of their own by now. Else what is gone is only gone."""
        pairs = zip(self._found(), self._held, strict=False)
        return any(found not in (None, held) for found, held in pairs)

    def forget(self) -> None:
        """The queue was closed, and its claims are over: the next file opened may be another."""
        self.file, self.is_lost = None, False
        self.let_go()

    def let_go(self) -> None:
        """Nothing is open here: the folder need not be, either."""
        self._folder = self._quiet_ns = -1
        with suppress(OSError, IndexError):
            os.close(self._opened.pop())  # by one thread only

    def _compare(self, changed_ns: int | None) -> bool:
        try:
            found = [os.stat(name) for name in self._names]  # noqa: PTH116 - Path takes twice as long
        except OSError:
            return False
        if self.is_lost or [(one.st_dev, one.st_ino) for one in found] != self._held:
            return False
        if changed_ns is not None:
            tick_ns = _TICK_NS if changed_ns % _SECOND_NS else _COARSE_TICK_NS
            # The log was written by the same clock. Who only reads goes by the wall clock.
            if (
                found[1].st_mtime_ns - changed_ns > tick_ns
                or _CLOCK.now() * 1_000 - changed_ns > _COARSE_TICK_NS
            ):
                self._quiet_ns = changed_ns
        return True

    def _resolve(self) -> None:
        """The log is beside the file itself, wherever a link to it may be."""
        real = os.path.realpath(self._path)
        self._names = (self._path, f"{real}-wal", f"{real}-shm")

    def _found(self) -> list[Identity | None]:
        return [identity_of(name) for name in self._names]


def identity_of(path: str) -> Identity | None:
    """Which file is at the path; None when there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - as above
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _are_open_here(files: list[Identity | None]) -> bool:
    """Whether this process has them open.

    All its connections to a file share one `-shm`, and one that was opened long ago may hold the
    others to a log that is gone.
    """
    try:
        numbers = os.listdir("/dev/fd")  # noqa: PTH208 - names are what is asked for
    except OSError:
        return True  # there is no such list
    found = set[Identity]()
    for number in numbers:
        with suppress(OSError):  # the list itself, which is closed by now
            one = os.fstat(int(number))
            found.add((one.st_dev, one.st_ino))
    return found.issuperset(files)
