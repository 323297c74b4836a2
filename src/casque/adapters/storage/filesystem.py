"""LocalFileSystemStorage: one file, replaced whole and durably.

A write creates and syncs a temporary file, renames it over the old one, and syncs the folder. A
crash at any point leaves the old file or the new one, never a partial one. Writers take turns with
locks on two files in that folder; the system releases them when a process dies.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import Callable
from typing import TypeVar

from casque.errors import CASConflictError, InvalidError, StorageError
from casque.system.clock import Clock, SystemClock
from casque.system.local_disk import locked, make_folder, resolved_path, sync_folder

T = TypeVar("T")


class LocalFileSystemStorage:
    """A file on a local disk of this machine. The first write creates the parent folders."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path):
            raise InvalidError("the path of the queue file is empty.")
        # Resolved, so that a rename replaces the file itself and not a link to it.
        self.path = resolved_path(path, "a queue file")
        self.name = str(self.path)
        self._clock: Clock = SystemClock()
        self._synced_etag: str | None = None
        """The etag of the newest content whose name is synced to disk."""

    async def read(self) -> tuple[bytes, str | None]:
        return await _on_a_thread(self._read_durable)

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        return await _on_a_thread(lambda: self._write(content, if_match))

    def _read_durable(self) -> tuple[bytes, str | None]:
        content, etag = self._read()
        if etag not in (None, self._synced_etag):
            # Visible is not durable: the process that renamed it may have died before its sync.
            try:
                sync_folder(self.path.parent)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EINVAL):  # a disk nobody can write to
                    raise self._trouble("read", error, unknown=False) from error
            self._synced_etag = etag
        return content, etag

    def _read(self) -> tuple[bytes, str | None]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return b"", None
        except OSError as error:
            raise self._trouble("read", error, unknown=False) from error
        return content, _etag(content)

    def _write(self, content: bytes, if_match: str | None) -> str:
        try:
            make_folder(self.path.parent)
            with locked(self.path, self._clock):
                _, current = self._read()
                if current != if_match:
                    raise CASConflictError(
                        f"{self.name} was changed by another process since it was read."
                    )
                self._replace(content)
        except OSError as error:
            raise self._trouble("write", error, unknown=False) from error
        self._synced_etag = _etag(content)
        return self._synced_etag

    def _replace(self, content: bytes) -> None:
        # Written under the lock, so one name is enough, and a crash leaves at most one file.
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("wb") as file:
            if self.path.exists():
                os.fchmod(file.fileno(), self.path.stat().st_mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        try:
            # Until the folder is synced too, a power cut can bring the old file back.
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._trouble("sync", error, unknown=True) from error

    def _trouble(self, verb: str, error: OSError, *, unknown: bool) -> StorageError:
        remedy = (
            "A folder is in its place: choose another path."
            if self.path.is_dir()
            else "Check that its folder is a directory, is writable and has free space."
        )
        what = error.filename or self.name
        return StorageError(
            f"cannot {verb} {what}: {error.strerror or error}. {remedy}",
            cause=error,
            outcome_unknown=unknown,
        )


async def _on_a_thread(work: Callable[[], T]) -> T:
    """Run `work` on a thread, to keep the event loop free.

    While the interpreter is ending, no thread can start, so `work` runs on the caller's thread.
    """
    started = False

    def run() -> T:
        nonlocal started
        started = True
        return work()

    try:
        return await asyncio.to_thread(run)
    except RuntimeError:
        if started:
            raise
        return work()


def _etag(content: bytes) -> str:
    # From the content, not from the file's times: two writes in one clock tick must differ.
    return hashlib.blake2b(content, digest_size=16).hexdigest()
