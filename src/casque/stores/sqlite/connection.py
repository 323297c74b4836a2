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

from casque.errors import CasqueError, CorruptError, InvalidError, StorageError
from casque.stores.place_errors import absent
from casque.stores.port import COMMIT_DEADLINE_US
from casque.stores.sqlite import forks
from casque.stores.sqlite.close_alone import close_alone
from casque.stores.sqlite.driver_errors import (
    NewerFormatError,
    NotAQueueError,
    is_busy,
    translated,
)
from casque.stores.sqlite.files import Identity, OpenFiles, identity_of
from casque.stores.sqlite.lock_wait import (
    LOCKED,
    LOG_REMOVED,
    LockWait,
    Obstacle,
    refuse_own_transaction,
)
from casque.stores.sqlite.rows import Connection, schema
from casque.system.clock import Clock
from casque.system.local_disk import has_other_names, make_folder, network_filesystem

Durability = Literal["full", "normal"]

SCHEMA = 1
_OLDEST_SQLITE = (3, 35, 0)
_BUSY_SECONDS = 0.05
"""How long SQLite waits for a lock by itself: briefly, so that Ctrl-C works in between."""
_ASK_AGAIN_SECONDS = 0.05
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
        self.name = self._text = str(path)
        self._durability = durability
        self._clock = clock
        self.files = OpenFiles(self._text)
        self.must_exist = False
        """True if no queue may be created here."""
        self.report: Callable[[str], object] | None = None
        """Called with the name of a queue that is created here; None to log it."""
        self._open: set[sqlite3.Connection] = set()

    def connect(self) -> sqlite3.Connection:
        """Open the database. Creates the file and the queue in it if there is none.

        If `must_exist` is True, neither the file nor its folder is created.
        """
        forks.check(self.name)
        if self.is_lost():
            raise self.lost()
        if self.must_exist and not _size(self.path):
            raise absent(f"{self.name} is gone")
        self._check_place()
        while True:
            log = self._wait_for_log()
            try:
                connection = self._connect()
            except CasqueError:
                if self.files.remove_half_of_log() and not self._open:
                    continue
                raise
            # All connections of a process share one `-shm`: a new one must use the same log.
            if self.files.are_there() if self._open else self.files.take(log):
                self._open.add(connection)
                return connection
            # Its open files are not those at the path: closing it must not write to the file.
            close_alone(connection, self.path, self.identity())
            is_changed = self.files.remove_half_of_log() or log != self.files.log()
            if self._open or log is None or not is_changed:
                raise self.lost()

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
            with self.translating("open"):
                # Other processes may be creating the file too; every step is safe to repeat.
                self.patiently(lambda: self._prepare(connection))
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def _uri(self) -> str:
        """The URI for SQLite; it creates the file unless `must_exist` is True."""
        return f"{self.path.absolute().as_uri()}?mode={'rw' if self.must_exist else 'rwc'}"

    def close(self, connection: sqlite3.Connection) -> None:
        """Close a connection that `connect` made."""
        self._open.discard(connection)
        if self.files.are_replaced():
            # Others may have written to the file since, with another log.
            close_alone(connection, self.path, self.files.file)
            return
        if not self.files.are_there():
            # No process can have opened the file since: the content of the log can still be saved.
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint").fetchall()
        with suppress(sqlite3.Error):  # committed data is safe; nothing more can be done
            connection.close()
        if not self._open:
            self.files.let_go()

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
        return identity_of(self._text)

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

    def patiently(self, attempt: Callable[[], T], obstacle: Obstacle = LOCKED) -> T:
        """Call `attempt` until no other connection holds a lock, for as long as a commit may take.

        Warns after a while. After that time it raises StorageError; `obstacle` names the cause and
        the remedy. Raises InvalidError at once if this thread certainly waits for itself.
        """
        wait: LockWait | None = None
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                if wait is None:
                    wait = LockWait(self.name, obstacle, self._clock, COMMIT_DEADLINE_US)
                    if obstacle is LOCKED:
                        refuse_own_transaction(self.name, self.identity())
                wait.check(error)

    @contextmanager
    def translating(self, verb: str) -> Iterator[None]:
        """Translate SQLite's errors into ours. Use it only while nothing is stored yet."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.trouble(verb, error) from error

    def trouble(self, verb: str, error: sqlite3.Error) -> CasqueError:
        return self.lost() if self.is_lost() else translated(error, verb, self.path)

    def check_schema(self, connection: Connection) -> bool:
        """True if the file has a casque queue. Raises if this version cannot read it."""
        tables = dict(
            connection.execute(
                "SELECT name, type FROM sqlite_master WHERE name LIKE 'casque\\_%' ESCAPE '\\'"
            )
        )
        if not tables:
            return False
        found = None
        if "casque_meta" in tables:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(casque_meta)")}
            if {"key", "value"} <= columns:
                asked = "SELECT value FROM casque_meta WHERE key = 'schema'"
                found = connection.execute(asked).fetchone()
        if found is None or not str(found[0]).isdecimal():
            raise NotAQueueError("it has tables named casque_…, but no schema version")
        if int(found[0]) > SCHEMA:
            raise NewerFormatError(
                f"it was written by a newer casque (schema {found[0]}; this version reads up to "
                f"{SCHEMA}): upgrade casque"
            )
        return True

    # -- opening ---------------------------------------------------------------

    def _check_place(self) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise StorageError(
                f"SQLite {sqlite3.sqlite_version} is too old: casque needs 3.35 or later. Use a "
                "Python built with a newer SQLite.",
                outcome_unknown=False,
            )
        try:
            make_folder(self.path.parent)
            is_folder = self.path.is_dir()
        except OSError as error:
            raise StorageError(
                f"cannot open {self.name}: {error.strerror or error} ({error.filename}); nothing "
                "was written. Check that its parent is a folder and is writable.",
                cause=error,
                outcome_unknown=False,
            ) from error
        if is_folder:
            raise StorageError(
                f"cannot open {self.name}: it is a folder. Choose another path.",
                outcome_unknown=False,
            )
        drive = network_filesystem(self.path.parent)
        if drive is not None:
            raise InvalidError(
                f"{self.name} is on a network drive ({drive}), where SQLite's locks are unreliable "
                "and jobs would be lost. Use a local disk; to share a queue between hosts, use a "
                "bucket."
            )
        if has_other_names(self.path):
            raise InvalidError(
                f"{self.name} has another name (a hard link), or is mounted by itself. Its log is "
                "beside it, so a process that opens it by the other name uses another log, and "
                "jobs would be lost. Remove the link; in a container, mount the file's folder."
            )
        self._check_not_emptied()

    def _check_not_emptied(self) -> None:
        """Raise if there is a log without a database: SQLite would delete the log unread."""
        # Check the log first: a process that creates a queue writes the file before the log.
        log = Path(f"{self._text}-wal")
        if not _size(log) or (size := _size(self.path)):
            return
        what = "is not there" if size is None else "is empty"
        raise CorruptError(
            f"{self.name} {what}, but its log {log.name} has content and may hold jobs: someone "
            "moved or truncated the file without its log. Nothing was overwritten. Put the file "
            "back, or move the log away to start a new queue."
        )

    def _wait_for_log(self) -> list[Identity] | None:
        """Return the log beside the file. None: SQLite may create one, as no process uses one.

        If the log in use was deleted, SQLite would create a second one. A process that still uses
        the deleted log holds a read lock on the file, so this waits for an exclusive lock.
        """

        def ask() -> list[Identity] | None:
            log = self.files.log()
            if log is None and _size(self.path):
                try:
                    self._have_alone()
                except sqlite3.OperationalError:
                    # Processes that try at the same time block each other, so wait a random time.
                    threading.Event().wait(self._clock.random() * _ASK_AGAIN_SECONDS)
                    raise
            return log

        try:
            return self.patiently(ask, LOG_REMOVED)
        except sqlite3.Error:
            return None  # it cannot be opened at all: `_connect` will raise the reason

    def _have_alone(self) -> None:
        with closing(sqlite3.connect(self._uri, uri=True, timeout=0)) as alone:
            alone.execute("PRAGMA locking_mode = EXCLUSIVE")
            alone.execute("SELECT count(*) FROM sqlite_master").fetchone()

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
        is_ours = self.check_schema(connection)
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
        if not is_ours:
            self._make_schema(connection)
        connection.execute("SELECT count(*) FROM casque_meta").fetchone()  # opens the log

    def _bound_log(self, connection: sqlite3.Connection) -> None:
        """Set the log size at which SQLite checkpoints, independent of the page size."""
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // page_size}")

    def _check_whole(self, connection: sqlite3.Connection) -> None:
        """Raise if the file was truncated within its last page. SQLite would not notice."""
        size = _size(self.path) or 0
        # Ask for the page size after this read: for a file that is just being created, SQLite
        # returns the default.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
        log = self.path.with_name(f"{self.path.name}-wal")
        # With a log, a checkpoint may have been interrupted in the middle of a page.
        if size % page_size and not _size(log):
            raise NotAQueueError("it ends in the middle of a page: it was truncated")

    def _make_schema(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            is_new = not self.check_schema(connection)
            if is_new:
                create_schema(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if is_new:
            from casque.stores.creation import report_created  # noqa: PLC0415 - loads logging

            report_created(self.name, self.report)


def create_schema(connection: Connection) -> None:
    """Create our tables inside the open transaction."""
    statement = ""
    for line in schema().splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
