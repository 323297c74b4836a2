"""Disk: the disk operations that FolderBucket uses; and LocalDisk, the disk of this machine.

`Disk` is an interface, so that a simulation can run the real bucket on a disk whose power is cut
(`casque.testing.disk`). Paths are absolute. Each method raises the same OSError as `os`.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import AbstractContextManager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Protocol

from casque.system.clock import Clock
from casque.system.local_disk import locked, network_filesystem, sync_folder


def holder(path: str) -> str:
    """Return the folder that contains a file or a folder."""
    return path.rpartition("/")[0] or "/"


class Stamp(NamedTuple):
    """Tells a file from all others that have had the same name; see `FolderBucket`."""

    inode: int
    mtime_ns: int
    size: int


class Disk(Protocol):
    """A disk. Written data is durable at once; a new name is durable once its folder is synced."""

    def write_synced(self, path: str, body: bytes, mtime_ns: int) -> Stamp:
        """Create a file with the modification time `mtime_ns`, and sync its data to disk."""
        ...

    def read(self, path: str) -> tuple[bytes, Stamp]:
        """Return a whole file. Raises IsADirectoryError if it is a folder."""
        ...

    def stat(self, path: str) -> Stamp:
        """Return a file's stamp. Raises IsADirectoryError if it is a folder."""
        ...

    def link(self, source: str, target: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def make_folder(self, path: str) -> None:
        """Make one folder, unless the name exists."""
        ...

    def sync_folder(self, path: str) -> None:
        """Sync the names in a folder to disk."""
        ...

    def scan(self, path: str) -> tuple[list[str], list[str]]:
        """Return the names of the plain files and of the folders in a folder, in no order."""
        ...

    def locked(self, path: str) -> AbstractContextManager[None]:
        """Hold the lock of `path` (files beside it). Raises StorageError after a long wait."""
        ...

    def network_drive(self, path: str) -> str | None:
        """Return the kind of network drive that `path` is on; None if it is local."""
        ...


class LocalDisk:
    """The disk of this machine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # No wrapper methods for these single calls: every put makes them.
        self.link = os.link
        self.rename = os.rename
        self.unlink = os.unlink

    def write_synced(self, path: str, body: bytes, mtime_ns: int) -> Stamp:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            left = memoryview(body)
            while left:
                left = left[os.write(descriptor, left) :]
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))
            os.fsync(descriptor)
            return _stamp(path, os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def read(self, path: str) -> tuple[bytes, Stamp]:
        # O_NONBLOCK: if the path is a pipe, do not wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            stamp = _stamp(path, os.fstat(descriptor))
            return FileIO(descriptor, closefd=False).readall() or b"", stamp
        finally:
            os.close(descriptor)

    def stat(self, path: str) -> Stamp:
        return _stamp(path, os.stat(path))  # noqa: PTH116 - a Path costs more than the call

    def make_folder(self, path: str) -> None:
        with suppress(FileExistsError):
            Path(path).mkdir()

    def sync_folder(self, path: str) -> None:
        sync_folder(Path(path))

    def scan(self, path: str) -> tuple[list[str], list[str]]:
        names: list[str] = []
        folders: list[str] = []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_file():
                    names.append(entry.name)
                elif entry.is_dir():
                    folders.append(entry.name)
        return names, folders

    def locked(self, path: str) -> AbstractContextManager[None]:
        return locked(Path(path), self._clock)

    def network_drive(self, path: str) -> str | None:
        return network_filesystem(Path(path))


def _stamp(path: str, told: os.stat_result) -> Stamp:
    if stat.S_ISDIR(told.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(told.st_mode):
        raise OSError(errno.EINVAL, "Not a plain file", path)
    return Stamp(told.st_ino, told.st_mtime_ns, told.st_size)
