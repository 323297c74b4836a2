"""FolderBucket: objects as files in a folder of this machine.

A create writes and syncs a temporary file, links it to its name, and syncs the folder before
it returns. The link fails if the name is taken. An update takes a lock, compares the old file, and
renames the temporary file over it. A delete takes the same lock, so it cannot remove the file
between the comparison and the rename.
"""

from __future__ import annotations

import errno
import heapq
import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Literal

from casque.buckets.disk import Disk, LocalDisk, Stamp, holder
from casque.buckets.port import PAGE, Expect, Found, Listed, Version
from casque.buckets.synced_names import SyncedNames
from casque.errors import CASConflictError, InvalidError, StorageError
from casque.system.clock import DAY_US, Clock, SystemClock
from casque.system.local_disk import resolved_folder

_TEMPORARY = ".casque-"
"""The prefix of a file's name while it is written. The lock files are `.casque.…`."""
# Names of 255 bytes fit every file system in use. A name that begins with a dot is no object's.
_WORD = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}"
_KEY = re.compile(rf"{_WORD}(?:/{_WORD})*")

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NOBODY_WRITES = {errno.EROFS, errno.EINVAL}


class FolderBucket:
    """A folder on a local disk of this machine, shared by all its processes.

    The first put creates the folder and its parents. The file system must have hard links and times
    in nanoseconds, as every usual local file system does.

    A version is the file's inode number, modification time and size. No two contents of one key
    share a version. An update writes a new file beside the old one, so the inode differs, and sets
    a later time, whatever the clock says. Only after a delete can a new file get the same inode
    number. A created file gets its time from the clock, which can be set back and repeat a
    microsecond, so the nanoseconds are random. The change time (ctime) is not part of the version,
    because removing a second link changes it too.
    """

    blocking = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock | None = None,
        *,
        files: Disk | None = None,
    ) -> None:
        if not os.fspath(path):
            raise InvalidError("the path of the bucket's folder is empty.")
        self.path = resolved_folder(path)
        self.name = f"file://{self.path}"
        self._root = str(self.path)
        self._lock = f"{self._root}/casque"
        self._clock = clock or SystemClock()
        self._files = files or LocalDisk(self._clock)
        self._synced_names = SyncedNames(self._files, self._root)
        self._is_local = False

    async def get(self, key: str) -> Found | None:
        path = self._path_of(key)
        try:
            body, stamp = self._files.read(path)
        except (FileNotFoundError, IsADirectoryError):
            return None
        except OSError as error:
            if self._is_below_an_object(error):
                return None
            raise _trouble("read", path, error) from error
        self._believe({path: stamp})
        return Found(body, _version(stamp), stamp.mtime_ns // 1000)

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        path = self._path_of(key)
        try:
            stamp = self._placed(path, body, expect)
        except OSError as error:
            raise _trouble("write", path, error) from error
        try:
            # Until the folder is synced too, a power cut can remove the name.
            self._synced_names.sync([holder(path)])
        except OSError as error:
            raise _trouble("sync", path, error, unknown=True) from error
        self._synced_names.learn(path, stamp)
        return _version(stamp)

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        self._check_place()
        base = prefix[: prefix.rfind("/") + 1]
        if base and not _KEY.fullmatch(base[:-1]):
            return []
        found: dict[str, tuple[str, Stamp]] = {}
        try:
            for key in self._walk(base, prefix, after):
                path = f"{self._root}/{key}"
                try:
                    found[path] = key, self._files.stat(path)
                except (FileNotFoundError, IsADirectoryError):
                    continue  # deleted since the scan
                if len(found) == PAGE:
                    break
        except OSError as error:
            if self._is_below_an_object(error):
                return []
            raise _trouble("list", f"{self._root}/{base}", error) from error
        self._believe({path: stamp for path, (_, stamp) in found.items()})
        return [Listed(key, stamp.size, stamp.mtime_ns // 1000) for key, stamp in found.values()]

    async def delete(self, key: str) -> None:
        path = self._path_of(key)
        try:
            self._files.stat(path)
            with self._files.locked(self._lock):
                self._files.unlink(path)
        except FileNotFoundError:
            pass  # but the process that removed it may have died before its sync
        except IsADirectoryError:
            return
        except OSError as error:
            if self._is_below_an_object(error):
                return
            raise _trouble("delete", path, error) from error
        self._synced_names.forget(path)
        try:
            self._synced_names.sync([holder(path)])
        except FileNotFoundError:
            return  # the folder does not exist
        except OSError as error:
            raise _trouble("sync", path, error, unknown=True) from error

    async def close(self) -> None:
        """Do nothing: no file is open between calls."""

    def time_us(self) -> int:
        return self._clock.now()  # the clock that dates every file

    # -- where -----------------------------------------------------------------

    def _path_of(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise InvalidError(
                f"{key!r} cannot be a key in a folder. A key is made of words separated by "
                "slashes. Each word has at most 255 letters, digits and `-_.`, and does not begin "
                "with a dot."
            )
        self._check_place()
        return f"{self._root}/{key}"

    def _check_place(self) -> None:
        if self._is_local:
            return
        kind = self._files.network_drive(self._root)
        if kind is not None:
            raise StorageError(
                f"{self.name} is on a network drive ({kind}), where locks and syncs are not "
                "reliable. Nothing was done. Choose a folder on a local disk.",
                outcome_unknown=False,
            )
        self._is_local = True

    def _is_below_an_object(self, error: OSError) -> bool:
        """True if the object `a/b` cannot exist because `a` is an object; so `a/b` is absent."""
        if not isinstance(error, NotADirectoryError):
            return False
        try:
            self._files.stat(self._root)
        except OSError as other:
            return isinstance(other, IsADirectoryError)
        return False

    # -- put -------------------------------------------------------------------

    def _placed(self, path: str, body: bytes, expect: Literal[Expect.ABSENT] | Version) -> Stamp:
        """Write the file under its name. The caller must still sync the name to disk."""
        if isinstance(expect, Expect):
            place = partial(self._created, path, body)
        else:
            place = partial(self._updated, path, body, expect)
        try:
            return place()
        except FileNotFoundError:
            # The folder is missing, or this took a day and `list` removed the temporary file.
            self._synced_names.make_folder(holder(path))
            return place()

    def _created(self, path: str, body: bytes) -> Stamp:
        if self._current(path) is not None:  # refuse early, before writing and syncing
            raise CASConflictError(f"{path} exists.")
        temporary, stamp = self._written(path, body, self._mtime_ns())
        try:
            self._files.link(temporary, path)
        except FileExistsError:
            raise CASConflictError(f"{path} exists.") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise StorageError(
                f"{self.name} is on a file system without hard links ({error.strerror}). Nothing "
                "was written. Choose a folder on another disk.",
                cause=error,
                outcome_unknown=False,
            ) from error
        finally:
            self._discard(temporary)
        return stamp

    def _updated(self, path: str, body: bytes, expect: Version) -> Stamp:
        self._as_expected(path, expect)  # refuse early, before waiting for the lock
        with self._files.locked(self._lock):
            current = self._as_expected(path, expect)
            mtime_ns = max(self._mtime_ns(), current.mtime_ns + 1)
            temporary, stamp = self._written(path, body, mtime_ns)
            try:
                self._files.rename(temporary, path)
            except BaseException:
                self._discard(temporary)
                raise
        return stamp

    def _as_expected(self, path: str, expect: Version) -> Stamp:
        current = self._current(path)
        if current is None or _version(current) != expect:
            what = "changed" if current else "deleted"
            raise CASConflictError(f"{path} was {what} since it was read.")
        return current

    def _current(self, path: str) -> Stamp | None:
        try:
            return self._files.stat(path)
        except FileNotFoundError:
            return None

    def _mtime_ns(self) -> int:
        return self._clock.now() * 1000 + int(self._clock.random() * 1000)

    def _written(self, path: str, body: bytes, mtime_ns: int) -> tuple[str, Stamp]:
        """Write a temporary file in the same folder, and sync its data to disk."""
        temporary = f"{holder(path)}/{_TEMPORARY}{self._clock.new_id()}"
        try:
            stamp = self._files.write_synced(temporary, body, mtime_ns)
        except BaseException:
            self._discard(temporary)
            raise
        if stamp.mtime_ns == mtime_ns:
            return temporary, stamp
        self._discard(temporary)
        raise StorageError(
            f"{self.name} is on a file system that keeps no nanoseconds in file times, which "
            "distinguish versions. Nothing was written. Choose a folder on another disk.",
            outcome_unknown=False,
        )

    def _discard(self, temporary: str) -> None:
        try:
            self._files.unlink(temporary)
        except OSError:
            return  # it does not exist, or `list` removes it when it is a day old

    # -- get, list and delete --------------------------------------------------

    def _believe(self, found: dict[str, Stamp]) -> None:
        """Sync the names of these objects to disk, except those that are known to be synced."""
        unsure = [
            path for path, stamp in found.items() if not self._synced_names.knows(path, stamp)
        ]
        try:
            self._synced_names.sync({holder(path) for path in unsure})
        except FileNotFoundError:
            return  # deleted meanwhile, with its folder
        except OSError as error:
            if error.errno not in _NOBODY_WRITES:
                raise _trouble("sync", self._root, error) from error
        for path in unsure:
            self._synced_names.learn(path, found[path])

    def _walk(self, base: str, prefix: str, after: str) -> Iterator[str]:
        """Yield the keys in the folder `base` and below it, in order, after `after`."""
        if base < after and not after.startswith(base):
            return
        try:
            names, folders = self._files.scan(f"{self._root}/{base}")
        except FileNotFoundError:
            return
        # Compared without the common prefix, for speed: there may be 100,000 names.
        last = after[len(base) :] if after.startswith(base) else ""
        start = prefix[len(base) :]
        heap = [name for name in names if name > last and name.startswith(start)]
        # With its slash, a folder sorts among the files as the keys in it do.
        insides = [f"{name}/" for name in folders if name.startswith(start)]
        heap += [inside for inside in insides if inside > last or last.startswith(inside)]
        heapq.heapify(heap)  # most are on later pages: no need to sort them
        while heap:
            name = heapq.heappop(heap)
            if name.endswith("/") and _KEY.fullmatch(name[:-1]):
                yield from self._walk(f"{base}{name}", "", after)
            elif _KEY.fullmatch(name):
                yield f"{base}{name}"
        for name in names:
            if name.startswith(_TEMPORARY):
                self._remove_if_old(f"{self._root}/{base}{name}")

    def _remove_if_old(self, temporary: str) -> None:
        """Remove a temporary file that is older than a day: its writer was killed."""
        try:
            if self._files.stat(temporary).mtime_ns // 1000 < self._clock.now() - DAY_US:
                self._files.unlink(temporary)
        except OSError:
            return  # gone already, or not ours to remove


def _version(stamp: Stamp) -> Version:
    return Version("-".join(f"{number:x}" for number in stamp))


def _trouble(verb: str, path: str, error: OSError, *, unknown: bool = False) -> StorageError:
    if error.errno in _NO_ROOM:
        remedy = "Make room on its disk, or raise the limit."
    elif error.errno in _NOT_ALLOWED:
        remedy = "Give this user read and write permission there, or choose another folder."
    elif error.errno in _IN_THE_WAY:
        remedy = "A file is where a folder should be, or a folder where a file should be: move it."
    else:
        remedy = "Check the folder and its disk."
    effect = "The change may still have been made" if unknown else "Nothing was changed"
    return StorageError(
        f"cannot {verb} {path}: {error.strerror or error}. {effect}. {remedy}",
        cause=error,
        outcome_unknown=unknown,
    )
