"""SimDisk: a disk whose power can be cut, for the real FolderBucket to run on.

It keeps only what POSIX promises: data lasts once its file is synced, and a name
once its folder is synced. A power cut keeps a random part of the rest, as a
random.Random chooses. The names of one folder are independent of each other, and
each may point to anything it pointed to since the last sync.

    disk = SimDisk()
    one, other = (FolderBucket("/bucket", clock, files=disk.process()) for _ in range(2))
    …
    disk.power_cut(random.Random(7))  # both are gone; open new ones
"""

from __future__ import annotations

import errno
import heapq
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from casque.buckets.disk import Stamp, holder
from casque.errors import StorageError


class GoneError(BaseException):
    """The calling process has ended: killed, or without power. No code may catch this."""


class _File:
    def __init__(self, inode: int, body: bytes, mtime_ns: int) -> None:
        self.stamp = Stamp(inode, mtime_ns, len(body))
        self.body = body
        self.links = 0
        self.is_synced = False


class _Folder:
    def __init__(self) -> None:
        self.names: dict[str, _File | _Folder] = {}
        self.unsynced: dict[str, list[_File | _Folder | None]] = {}
        """By name: all that it pointed to since the last sync, in order."""

    def point(self, name: str, node: _File | _Folder | None) -> None:
        self.unsynced.setdefault(name, [self.names.get(name)]).append(node)
        self._set(name, node)

    def power_cut(self, chance: random.Random) -> None:
        for name, nodes in sorted(self.unsynced.items()):
            self._set(name, chance.choice(nodes))
        self.unsynced.clear()
        for _, node in sorted(self.names.items()):
            if isinstance(node, _Folder):
                node.power_cut(chance)
            elif not node.is_synced:
                node.body = node.body[: chance.randint(0, len(node.body))]
                node.stamp = node.stamp._replace(size=len(node.body))
                node.is_synced = True

    def _set(self, name: str, node: _File | _Folder | None) -> None:
        if node is None:
            self.names.pop(name, None)
        else:
            self.names[name] = node


class SimDisk:
    """One disk. `before`, if given, is called before each disk call.

    It may cut the power, kill the caller or another process, let another process
    work in between, or raise an OSError, which the disk call then raises.
    """

    def __init__(self, before: Callable[[SimFiles, str], None] | None = None) -> None:
        self.before = before
        self.calls = 0
        self.root = _Folder()
        self.locks: dict[str, SimFiles] = {}
        self._processes: list[SimFiles] = []
        self._inodes = 0
        self._freed: list[int] = []

    def process(self) -> SimFiles:
        """Return the disk as seen by one more process."""
        self._processes.append(SimFiles(self))
        return self._processes[-1]

    def power_cut(self, chance: random.Random) -> None:
        """End all processes. `chance` chooses what is kept of the data that is not synced."""
        for process in self._processes:
            process.kill()
        self._processes.clear()
        self.root.power_cut(chance)

    def new_file(self, body: bytes, mtime_ns: int) -> _File:
        # As on real disks, a new file gets the inode number of a removed one.
        if self._freed:
            return _File(heapq.heappop(self._freed), body, mtime_ns)
        self._inodes += 1
        return _File(self._inodes, body, mtime_ns)

    def linked(self, file: _File, by: int) -> None:
        file.links += by
        if not file.links:
            heapq.heappush(self._freed, file.stamp.inode)


class SimFiles:
    """A SimDisk as seen by one process: the `Disk` of its buckets."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.is_alive = True

    def kill(self) -> None:
        """End this process: every call from now on raises GoneError."""
        self.is_alive = False
        for path in [path for path, owner in self.disk.locks.items() if owner is self]:
            del self.disk.locks[path]

    def write_synced(self, path: str, body: bytes, mtime_ns: int) -> Stamp:
        self._call("write")
        folder, name = self._place(path)
        if name in folder.names:
            raise _error(errno.EEXIST, path)
        file = self.disk.new_file(bytes(body), mtime_ns)
        self.disk.linked(file, 1)
        folder.point(name, file)
        self._call("sync")
        file.is_synced = True
        return file.stamp

    def read(self, path: str) -> tuple[bytes, Stamp]:
        self._call("read")
        file = self._file(path)
        return file.body, file.stamp

    def stat(self, path: str) -> Stamp:
        self._call("stat")
        return self._file(path).stamp

    def link(self, source: str, target: str) -> None:
        self._call("link")
        file = self._file(source)
        folder, name = self._place(target)
        if name in folder.names:
            raise _error(errno.EEXIST, target)
        self.disk.linked(file, 1)
        folder.point(name, file)

    def rename(self, source: str, target: str) -> None:
        self._call("rename")
        file = self._file(source)
        folder, name = self._place(target)
        self._unlink(target, missing_is_fine=True)
        folder.point(name, file)
        folder, name = self._place(source)
        folder.point(name, None)

    def unlink(self, path: str) -> None:
        self._call("unlink")
        self._unlink(path)
        folder, name = self._place(path)
        folder.point(name, None)

    def make_folder(self, path: str) -> None:
        self._call("make folder")
        folder, name = self._place(path)
        if name not in folder.names:
            folder.point(name, _Folder())

    def sync_folder(self, path: str) -> None:
        self._call("sync folder")
        self._folder(path).unsynced.clear()

    def scan(self, path: str) -> tuple[list[str], list[str]]:
        self._call("scan")
        nodes = self._folder(path).names.items()
        names = [name for name, node in nodes if isinstance(node, _File)]
        return names[::-1], [name for name, node in nodes if isinstance(node, _Folder)]

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        self._call("lock")
        self._folder(holder(path))
        if path in self.disk.locks:  # by an interrupted process: waiting would never end
            raise StorageError(f"{path} is locked.", outcome_unknown=False)
        self.disk.locks[path] = self
        try:
            yield
        finally:
            if self.disk.locks.get(path) is self:
                del self.disk.locks[path]

    def network_drive(self, _: str) -> str | None:
        return None

    def _call(self, what: str) -> None:
        if not self.is_alive:
            raise GoneError
        self.disk.calls += 1
        if self.disk.before is not None:
            self.disk.before(self, what)
            if not self.is_alive:
                raise GoneError

    def _unlink(self, path: str, *, missing_is_fine: bool = False) -> None:
        try:
            self.disk.linked(self._file(path), -1)
        except FileNotFoundError:
            if not missing_is_fine:
                raise

    def _node(self, path: str) -> _File | _Folder:
        node: _File | _Folder = self.disk.root
        for name in path.split("/"):
            if not name:
                continue
            if isinstance(node, _File):
                raise _error(errno.ENOTDIR, path)
            if name not in node.names:
                raise _error(errno.ENOENT, path)
            node = node.names[name]
        return node

    def _file(self, path: str) -> _File:
        node = self._node(path)
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR, path)
        return node

    def _folder(self, path: str) -> _Folder:
        node = self._node(path)
        if isinstance(node, _File):
            raise _error(errno.ENOTDIR, path)
        return node

    def _place(self, path: str) -> tuple[_Folder, str]:
        return self._folder(holder(path)), path.rpartition("/")[2]


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
