"""Files: checks that the database file and its log are still those that are open here.

SQLite keeps a database in three files: the file itself, its log (`-wal`), and the shared index of
the log (`-shm`). If one of them is removed or replaced, a process that has it open continues with
a deleted file. The next process that opens the queue does not see that file.
"""

from __future__ import annotations

import os
from contextlib import suppress

from casque.stores.description import Size
from casque.system.clock import SystemClock

Identity = tuple[int, int]
"""The device and inode of a file: its identity, whatever its name."""

_LOG = ("-wal", "-shm")
_CLOCK = SystemClock()
_SECOND_NS = 1_000_000_000
_TICK_NS, _COARSE_TICK_NS = _SECOND_NS // 10, 3 * _SECOND_NS
"""If a folder's last change is this old, the next change certainly gets a different time: kernels
count in hundredths of a second or finer, a few file systems in one or two whole seconds."""


class OpenFiles:
    """The three files of a database that is open in this process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = -1
        """A descriptor of the folder: a check takes half as long as by its name."""
        self._opened: list[int] = []
        self._names = (path, *(path + suffix for suffix in _LOG))
        self._log: list[Identity] | None = None
        """Both log files at the last call of `log`; None unless both existed."""
        self._held: list[Identity | None] = []
        """The identities of the open files."""
        self.file: Identity | None = None
        """The file that was first opened here."""
        self._quiet_ns = -1
        """The last change of the folder, if all files were in place after it."""
        self.is_lost = False
        """True once a file was missing or replaced. It stays True until `forget`."""

    @property
    def log_name(self) -> str:
        return self._names[1]

    def log(self) -> list[Identity] | None:
        """The identities of both log files; None unless both exist."""
        self._resolve()
        found = [one for one in self._found()[1:] if one is not None]
        self._log = found if len(found) == len(_LOG) else None
        return self._log

    def is_log_new(self) -> bool:
        """True if the log that was there at the last call of `log` was removed or replaced."""
        return self._log is not None and self._log != self._found()[1:]

    def take(self, log: list[Identity] | None = None) -> bool:
        """Record that the open files are those at the path. False if they are others.

        `log` is the log that was there before the files were opened.
        """
        if not self.are_there():
            self._resolve()
            found = self._found()
            if None in found or log not in (None, found[1:]) or not _are_open_here(found):
                return False
            if self.file not in (None, found[0]):  # such as after a fork
                self.is_lost = True
                return False
            self._held, self.file = found, found[0]
            self.let_go()
        if self._folder < 0:
            with suppress(OSError):  # otherwise the files are checked each time
                self._opened.append(os.open(os.path.dirname(self.log_name), os.O_RDONLY))  # noqa: PTH120
                self._folder = self._opened[-1]
        return True

    def remove_new_log(self) -> bool:
        """Remove what SQLite made in place of a removed log. False if no log was removed.

        Call it after an opening that followed `log`, with the opening lock held. Other processes
        may still use the removed log, or the half of it that is left. The next opening finds the
        log missing, and waits for them.
        """
        if not self.is_log_new():
            return False
        assert self._log is not None
        with suppress(OSError):
            found = self._found()[1:]
            if found[0] not in (None, self._log[0]):
                if os.stat(self._names[1]).st_size:  # noqa: PTH116 - as below
                    return False  # another program has written to it
                os.unlink(self._names[1])  # noqa: PTH108 - as below
            if found[1] not in (None, self._log[1]):
                os.unlink(self._names[2])  # noqa: PTH108 - as below
        return True

    def are_there(self) -> bool:
        """True if the open files are still those at the path. Fast: each commit checks this."""
        try:
            changed_ns = os.fstat(self._folder).st_ctime_ns
        except OSError as error:
            raise_unless_from_system(error)
            changed_ns = None
        return changed_ns == self._quiet_ns or self._compare(changed_ns)

    def size(self) -> Size:
        """How much the file and its log take up."""
        found = [one for name in self._names[:2] if (one := _stat_or_none(name)) is not None]
        return Size(len(found), sum(one.st_size for one in found))

    def are_replaced(self) -> bool:
        """True if a file was replaced: others may use another log. False if only removed."""
        pairs = zip(self._found(), self._held, strict=False)
        return any(found not in (None, held) for found, held in pairs)

    def forget(self) -> None:
        """Accept any file at the next opening: the queue was closed, and its claims are over."""
        self.file, self.is_lost = None, False
        self.let_go()

    def let_go(self) -> None:
        """Close the descriptor of the folder."""
        self._folder = self._quiet_ns = -1
        with suppress(OSError, IndexError):
            os.close(self._opened.pop())  # pop: only one thread closes it

    def _compare(self, changed_ns: int | None) -> bool:
        try:
            found = [os.stat(name) for name in self._names]  # noqa: PTH116 - Path takes twice as long
        except OSError as error:
            raise_unless_from_system(error)
            return False
        if self.is_lost or [_identity(one) for one in found] != self._held:
            return False
        if changed_ns is not None:
            tick_ns = _TICK_NS if changed_ns % _SECOND_NS else _COARSE_TICK_NS
            # The log's time is from the same clock. A process that only reads uses the wall clock.
            if (
                found[1].st_mtime_ns - changed_ns > tick_ns
                or _CLOCK.now() * 1_000 - changed_ns > _COARSE_TICK_NS
            ):
                self._quiet_ns = changed_ns
        return True

    def _resolve(self) -> None:
        """Set the names: SQLite puts the log beside the file itself, not beside a link to it."""
        real = os.path.realpath(self._path)
        self._names = (self._path, *(real + suffix for suffix in _LOG))

    def _found(self) -> list[Identity | None]:
        return [identity_of(name) for name in self._names]


def identity_of(path: str) -> Identity | None:
    """Which file is at the path; None if there is none."""
    found = _stat_or_none(path)
    return None if found is None else _identity(found)


def _stat_or_none(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - as above
    except OSError as error:
        raise_unless_from_system(error)
        return None


def raise_unless_from_system(error: OSError) -> None:
    """Raise an error that is not from the system: a signal handler may raise a TimeoutError."""
    if error.errno is None:
        raise error


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _are_open_here(files: list[Identity | None]) -> bool:
    """True if this process has these files open.

    All its connections to a file share one `-shm`, so a connection that was opened long ago can
    keep the others on a deleted log.
    """
    try:
        numbers = os.listdir("/dev/fd")  # noqa: PTH208 - only the names are needed
    except OSError:
        return True  # this system has no such list
    found = set[Identity]()
    for number in numbers:
        with suppress(OSError):  # the descriptor of the list itself is closed by now
            found.add(_identity(os.fstat(int(number))))
    return found.issuperset(files)
