"""Connections: opens the database file and its schema, and waits for its locks.

Only SQLite opens and closes the file: on POSIX, closing it elsewhere in this process
would drop the locks that SQLite holds on it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

from casque.errors import CasqueError, CorruptError, StorageError
from casque.stores.place_errors import absent
from casque.stores.port import COMMIT_DEADLINE_US
from casque.stores.sqlite import forks
from casque.stores.sqlite.close_alone import close_alone
from casque.stores.sqlite.driver_errors import NotAQueueError, is_busy, translated
from casque.stores.sqlite.files import Identity, OpenFiles, identity_of
from casque.stores.sqlite.lock_wait import (
    LOCKED,
    LOG_REMOVED,
    OPENING,
    BlockedError,
    LockWait,
    refuse_own_transaction,
)
from casque.stores.sqlite.opening_lock import OpeningLock
from casque.stores.sqlite.place import check_place, size_of
from casque.stores.sqlite.rows import Connection
from casque.stores.sqlite.tables import add_schema, has_schema
from casque.system.clock import Clock

Durability = Literal["full", "normal"]

_BUSY_SECONDS = 0.05
"""How long SQLite waits for a lock by itself: briefly, so that Ctrl-C works in between."""
_ASK_AGAIN_SECONDS = 0.01
_CLOSE_PATIENCE_SECONDS = 5.0
"""After that time a connection is closed although another process is opening or closing one, or
still saves or reads a removed log."""
_STATEMENTS_CACHED = 256
_PAGE_BYTES = 2048
"""Half of SQLite's default. A commit of one job changes a few hundred bytes in two or three pages,
and writes those whole pages to the log. Still smaller pages would slow down large payloads and
lists of jobs."""
_LOG_BYTES = 4_096_000
"""The size of SQLite's default of a thousand pages."""
_FRAME_HEADER = 24
_SHARE_OF_FREE_SPACE = 20
"""The log gets its full size early only if the disk has this many times as much free space."""

T = TypeVar("T")


class Database:
    """One database file, and how to open it."""

    def __init__(self, path: Path, durability: Durability, clock: Clock) -> None:
        self.path = path
        self.name = str(path)
        self._durability = durability
        self.clock = clock
        self.files = OpenFiles(self.name)
        self.must_exist = False
        """True if no queue may be created here."""
        self.report: Callable[[str], object] | None = None
        """Called with the name of a queue that is created here; None to log it."""
        self._open: set[sqlite3.Connection] = set()
        self._opening_lock = OpeningLock(path, clock.random)

    def connect(self) -> sqlite3.Connection:
        """Open the database. Creates the file and the queue in it if there is none.

        If `must_exist` is True, neither the file nor its folder is created.
        """
        forks.check(self.name)
        if self.is_lost():
            raise self.lost()
        if self.must_exist and not size_of(self.path):
            raise absent(f"{self.name} is gone")
        check_place(self.path)
        return self.patiently(lambda: self._opening_lock.run(self._open_next))

    def _open_next(self, has_lock: bool) -> sqlite3.Connection:  # noqa: FBT001 - as `run` passes it
        """Open the database, unless another process is opening it or uses a removed log."""
        if not has_lock:
            raise BlockedError(OPENING)
        log = self._log_to_open()
        try:
            connection = self._connect()
        except BaseException as error:
            is_removed = self.files.remove_new_log()
            if is_removed and isinstance(error, (CasqueError, BlockedError)):
                raise self._removed() from error
            raise
        # All connections of a process share one `-shm`: a new one must use the same log.
        if self.files.are_there() if self._open else self.files.take(log):
            self._open.add(connection)
            return connection
        # Its open files are not those at the path: closing it must not write to the file.
        close_alone(connection, self.path, self.identity())
        raise self._removed() if self.files.remove_new_log() else self.lost()

    def _removed(self) -> BlockedError | CorruptError:
        """The error after the log was removed during an opening."""
        return self.lost() if self._open else BlockedError(LOG_REMOVED)

    def _log_to_open(self) -> list[Identity] | None:
        """Return the log beside the file. None: SQLite may create one, as no process uses one.

        If the log in use was deleted, SQLite would create a second one. A process that still uses
        the deleted log holds a read lock on the file.
        """
        log = self.files.log()
        if log is None and size_of(self.path):
            try:
                self._have_alone()
            except sqlite3.Error as error:
                if is_busy(error):
                    raise BlockedError(LOG_REMOVED) from error
                # It cannot be opened at all: `_connect` raises the reason.
        return log

    def _have_alone(self) -> None:
        with closing(sqlite3.connect(self._uri, uri=True, timeout=0)) as alone:
            alone.execute("PRAGMA locking_mode = EXCLUSIVE")
            alone.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def _connect(self) -> sqlite3.Connection:
        with self.translating("open"):
            connection = sqlite3.connect(
                self._uri,
                uri=True,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=_STATEMENTS_CACHED,
            )
        try:
            self._prepare(connection)
        except BaseException as error:
            connection.close()
            if not isinstance(error, sqlite3.Error):
                raise
            if is_busy(error):
                raise BlockedError(LOCKED) from error
            raise self.trouble("open", error) from error
        return connection

    @property
    def _uri(self) -> str:
        """The URI for SQLite; it creates the file unless `must_exist` is True."""
        return f"{self.path.absolute().as_uri()}?mode={'rw' if self.must_exist else 'rwc'}"

    def is_used(self) -> bool:
        """True if another connection has the database open. Call it with no connection open."""
        if not size_of(self.path):
            raise absent(f"{self.name} is gone")

        def look(has_lock: bool) -> bool:  # noqa: FBT001 - as `run` passes it
            if not has_lock:
                raise BlockedError(OPENING)
            try:
                self._have_alone()
            except sqlite3.Error as error:
                return is_busy(error)  # for any other error the opening raises the reason
            return False

        return self.patiently(lambda: self._opening_lock.run(look))

    def close(self, connection: sqlite3.Connection) -> None:
        """Close a connection that `connect` made."""
        self._open.discard(connection)
        self._opening_lock.run(lambda _: self._close(connection), _CLOSE_PATIENCE_SECONDS)
        if not self._open:
            self.files.let_go()

    def _close(self, connection: sqlite3.Connection) -> None:
        if self.files.are_replaced():
            # Others may have written to the file since, with another log.
            close_alone(connection, self.path, self.files.file)
            return
        if not self.files.are_there():
            with suppress(sqlite3.Error):
                self._save_log(connection)
        with suppress(sqlite3.Error):  # committed data is safe; nothing more can be done
            connection.close()

    def _save_log(self, connection: sqlite3.Connection) -> None:
        """Move the content of a removed log to the file: no process can have opened it since.

        Another process may be doing this now. If it is killed, the file is incomplete, and only a
        process that still has the log open can complete it. So this waits for the other one.
        """
        patience_seconds = _CLOSE_PATIENCE_SECONDS
        while patience_seconds > 0:
            blocked, logged, saved = connection.execute("PRAGMA wal_checkpoint").fetchone()
            if not blocked and logged == saved:
                return
            pause = self.clock.random() * _ASK_AGAIN_SECONDS
            threading.Event().wait(pause)
            patience_seconds -= pause

    def let_go(self) -> None:
        """Forget the connections of the parent, in the child of a fork."""
        self._open.clear()

    def is_lost(self) -> bool:
        """True if the open files are no longer those at the path."""
        return self.files.is_lost or (bool(self._open) and not self.files.are_there())

    def lost(self) -> CorruptError:
        """The error to raise once `is_lost` is True."""
        self.files.is_lost = self.files.is_lost or bool(self._open)
        return CorruptError(
            f"{self.name}: someone removed or replaced the file, {self.path.name}-wal or "
            f"{self.path.name}-shm while it was in use. The first failed call may or may not be "
            "stored; this queue object stores nothing more. Restart every process that uses the "
            "file, and look the last jobs up by id. Stop the processes before you move or delete "
            "the file: docs/how-to/use-sqlite.md.",
            is_replaced=True,
        )

    def check_joined(self, connection: Connection) -> None:
        """Raise unless the caller's connection has the same files open as this store."""
        if self.is_lost():
            raise self.lost()
        [mode] = connection.execute("PRAGMA main.journal_mode").fetchone()
        if mode == "wal" and not self._open and not self.files.take():
            raise self.lost()

    def identity(self) -> Identity | None:
        """Which file is at the path now; None if there is none."""
        return identity_of(self.name)

    def grow_log(self, connection: sqlite3.Connection) -> None:
        """Give the log its full size at once; from then on SQLite overwrites it in place.

        While a file grows, every sync must write its new size to disk too, which
        doubles the time. SQLite ignores zeros after the last frame.
        """
        if self._durability != "full":
            return
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
        [pages] = connection.execute("PRAGMA wal_autocheckpoint").fetchone()
        try:
            connection.execute("BEGIN IMMEDIATE")  # no other process appends meanwhile
        except sqlite3.OperationalError:
            return  # another process is writing: then the log grows as usual
        try:
            with Path(self.files.log_name).open("r+b", buffering=0) as log:
                if self.is_lost():
                    return  # this log may belong to another file
                missing = pages * (page_size + _FRAME_HEADER) - log.seek(0, os.SEEK_END)
                disk = os.fstatvfs(log.fileno())
                if 0 < missing < disk.f_bavail * disk.f_frsize // _SHARE_OF_FREE_SPACE:
                    # Page by page: Linux caches one large write as one piece, and every later
                    # write to it walks over the whole piece.
                    log.writelines(bytes(page_size) for _ in range(0, missing, page_size))
                    os.fsync(log.fileno())
        except OSError:
            return  # no space, for example; the full size is not required
        finally:
            connection.execute("ROLLBACK")

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until nothing blocks it, for as long as a commit may take.

        Warns after a while. After that time it raises StorageError, which names the cause and the
        remedy. Raises CorruptError once an open file is gone, and InvalidError at once if this
        thread certainly waits for itself.
        """
        wait: LockWait | None = None
        while True:
            try:
                return attempt()
            except BlockedError as error:
                obstacle, cause = error.obstacle, error.__cause__ or error
                # Processes that try at the same time block each other, so wait a random time.
                threading.Event().wait(self.clock.random() * _ASK_AGAIN_SECONDS)
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                obstacle, cause = LOCKED, error
            # While this process has a removed log open, no process can open the file. So this one
            # must let it go: it may be waiting for itself.
            if self.is_lost():
                raise self.lost() from cause
            if wait is None:
                wait = LockWait(self.name, self.clock, COMMIT_DEADLINE_US)
                if obstacle is LOCKED:
                    refuse_own_transaction(self.name, self.identity())
            wait.check(obstacle, cause)

    @contextmanager
    def translating(self, verb: str) -> Iterator[None]:
        """Translate SQLite's errors into ours. Use it only while nothing is stored yet."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.trouble(verb, error) from error

    def trouble(self, verb: str, error: sqlite3.Error) -> CasqueError:
        return self.lost() if self.is_lost() else translated(error, verb, self.path)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("SELECT 1 FROM json_each('[]')").fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            raise StorageError(
                f"SQLite {sqlite3.sqlite_version} was built without JSON, which casque needs. Use "
                "a Python built with SQLite 3.38 or later.",
                outcome_unknown=False,
            ) from error
        self._check_whole(connection)
        # Before any change: the file of another program keeps its journal mode.
        is_ours = has_schema(connection)
        if self.files.is_log_new():
            raise BlockedError(LOG_REMOVED)  # others may still have the queue in the removed log
        if self.must_exist and not is_ours:
            raise absent(f"{self.name} holds no queue")
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # takes effect only in a new file
        [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise sqlite3.OperationalError(f"its journal mode is {mode} and cannot become WAL")
        self._bound_log(connection)
        connection.execute(f"PRAGMA synchronous = {self._durability}")
        # Debian's SQLite overwrites deleted content, so it also writes pages that are free. FAST
        # overwrites only where that causes no extra write.
        connection.execute("PRAGMA secure_delete = FAST")
        connection.execute("PRAGMA fullfsync = ON")  # on macOS fsync alone does not reach the disk
        if not is_ours and add_schema(connection):
            from casque.stores.creation import report_created  # noqa: PLC0415 - loads logging

            report_created(self.name, self.report)
        connection.execute("SELECT count(*) FROM casque_meta").fetchone()  # opens the log

    def _bound_log(self, connection: sqlite3.Connection) -> None:
        """Set the log size at which SQLite checkpoints, independent of the page size."""
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // page_size}")

    def _check_whole(self, connection: sqlite3.Connection) -> None:
        """Raise if the file was truncated within its last page. SQLite would not notice."""
        size = size_of(self.path) or 0
        # Ask for the page size after this read: for a file that is just being created, SQLite
        # returns the default.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
        log = self.path.with_name(f"{self.path.name}-wal")
        # With a log, a checkpoint may have been interrupted in the middle of a page.
        if size % page_size and not size_of(log):
            raise NotAQueueError("it ends in the middle of a page: it was truncated")
