"""Connections: opening the database file, and what SQLite's errors mean to our callers.

The file is never opened or closed by hand: on POSIX that would drop the locks
which SQLite holds on it in this process.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from casque.clock import SECOND_US, Clock
from casque.errors import CasqueError, CorruptError, InvalidError, StorageError
from casque.localdisk import has_other_names, make_folder, network_filesystem
from casque.stores.port import COMMIT_DEADLINE_US
from casque.stores.sqlite.rows import Connection, schema

Durability = Literal["full", "normal"]
Identity = tuple[int, int]
"""A file, whatever its name: its device and its inode."""

SCHEMA = 1
_OLDEST_SQLITE = (3, 35, 0)
_BUSY_SECONDS = 0.05
"""How long SQLite waits for a lock by itself: briefly, so that Ctrl-C gets through in between."""
_STATEMENTS_CACHED = 256
_PAGE_BYTES = 2048
"""Half of SQLite's own: a commit of one job changes two or three pages by a few hundred bytes, and
writes them whole to its log. Smaller ones would cost large payloads and lists of jobs too much."""
_LOG_BYTES = 4_096_000
"""What SQLite's own thousand pages come to."""
_FRAME_HEADER = 24
_SHARE_OF_FREE_SPACE = 20
"""The log takes its full size early only where there is so many times as much room."""

T = TypeVar("T")


class Database:
    """One database file, and how to open it."""

    def __init__(self, path: Path, durability: Durability, clock: Clock) -> None:
        self.path = path
        self.name = self._text = str(path)
        self._durability = durability
        self._clock = clock
        self._logs: dict[Identity, Identity] = {}
        """By file that was at the path, its log."""

    def connect(self) -> sqlite3.Connection:
        """A connection to a database that holds a queue; it is made when there is none."""
        self.check_log()
        self._check_place()
        with self.translated("open"):
            connection = sqlite3.connect(
                self.path,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=_STATEMENTS_CACHED,
            )
        try:
            with self.translated("open"):
                # Any step may meet others who are making the file; all are safe to repeat.
                self.patiently(lambda: self._prepare(connection))
        except BaseException:
            connection.close()
            raise
        self.note_log()
        return connection

    def log_identity(self) -> Identity | None:
        """Which file is its log now; None when there is none."""
        return _identity(f"{self._text}-wal")

    def note_log(self) -> None:
        """Remember which log the file at the path has, while it is known to be its own."""
        identity, log = self.identity(), self.log_identity()
        if identity is not None and log is not None:
            self._logs[identity] = log

    def check_log(self) -> None:
        """Refuse a file that came in the place of another, while the other's log is still there.

        SQLite would play the log into the file that is there now, and so ruin it. Asked first
        while the other is still open: then no new log can have come by the old one's number.
        """
        identity, log = self.identity(), self.log_identity()
        others = [known for file, known in self._logs.items() if file != identity]
        if log in others and _size(Path(f"{self._text}-wal")):
            raise CorruptError(
                f"{self.name} was moved or replaced while it was in use, and its log "
                f"{self.path.name}-wal belongs to the file that was there before. Nothing was "
                "overwritten. Put that file back; or, if it is not needed and no process uses "
                f"either, move the log and the {self.path.name}-shm away."
            )
        self._logs = {file: known for file, known in self._logs.items() if file == identity}

    def identity(self) -> Identity | None:
        """Which file is at the path now; None when there is none."""
        return _identity(self._text)

    def grow_log(self, connection: sqlite3.Connection, identity: Identity | None) -> None:
        """Give the log its full size at once; afterwards it is written over and over.

        While a file grows, every sync has to bring its new size to disk too, which
        takes about as long again. Zeros behind the last frame are no frames to SQLite.
        """
        if self._durability != "full" or self.identity() != identity:
            return
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
        [pages] = connection.execute("PRAGMA wal_autocheckpoint").fetchone()
        try:
            connection.execute("BEGIN IMMEDIATE")  # nobody else appends to it meanwhile
        except sqlite3.OperationalError:
            return  # somebody does; then it grows as it may
        try:
            with Path(f"{self._text}-wal").open("r+b", buffering=0) as log:
                missing = pages * (page_size + _FRAME_HEADER) - log.seek(0, os.SEEK_END)
                disk = os.fstatvfs(log.fileno())
                if 0 < missing < disk.f_bavail * disk.f_frsize // _SHARE_OF_FREE_SPACE:
                    # Page by page: Linux keeps what is written at once as one piece in memory, and
                    # at every later write to it goes over all of that.
                    log.writelines(bytes(page_size) for _ in range(0, missing, page_size))
                    os.fsync(log.fileno())
        except OSError:
            return  # no room for it, say: it is not needed
        finally:
            connection.execute("ROLLBACK")

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Try until no other process is in the way, for as long as a commit may take."""
        give_up: int | None = None
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise
                now = self._clock.monotonic()
                give_up = give_up or now + COMMIT_DEADLINE_US
                if now >= give_up:
                    raise StorageError(
                        f"{self.name} has been locked by another program for "
                        f"{COMMIT_DEADLINE_US // SECOND_US} s; nothing was written. Is a "
                        "transaction left open, or a process stopped? To enqueue inside a "
                        "transaction of your own, pass `connection=`.",
                        cause=error,
                        outcome_unknown=False,
                    ) from error

    @contextmanager
    def translated(self, verb: str) -> Iterator[None]:
        """SQLite's errors as ours. Whatever was asked for in here was not done."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.trouble(verb, error) from error

    def trouble(self, verb: str, error: sqlite3.Error) -> CasqueError:
        kind = _kind_of(error)
        if isinstance(error, _Newer):
            return CorruptError(f"{self.name}: {error}. Nothing was overwritten.", cause=error)
        if kind.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")) or isinstance(error, _Foreign):
            return CorruptError(
                f"{self.name}: {error}. Nothing was overwritten. If the file is a queue, restore "
                "it from a backup or see docs/how-to/recover-a-damaged-file.md; otherwise choose "
                "another path.",
                cause=error,
            )
        return StorageError(
            f"cannot {verb} {self.name}: {error}; nothing was written. {_remedy(kind, self.path)}",
            cause=error,
            outcome_unknown=False,
        )

    def check_schema(self, connection: Connection) -> bool:
        """Whether a queue of ours is there. Raises when it is one that we cannot read."""
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
            raise _Foreign("it has tables named casque_…, but does not say by which version")
        if int(found[0]) > SCHEMA:
            raise _Newer(
                f"it was written by a newer casque (schema {found[0]}, and this one knows "
                f"{SCHEMA}): upgrade casque"
            )
        return True

    # -- opening ---------------------------------------------------------------

    def _check_place(self) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise StorageError(
                f"SQLite {sqlite3.sqlite_version} is too old: casque needs 3.35 or later. Use a "
                "Python built with a newer one.",
                outcome_unknown=False,
            )
        try:
            make_folder(self.path.parent)
            is_folder = self.path.is_dir()
        except OSError as error:
            raise StorageError(
                f"cannot open {self.name}: {error.strerror or error} ({error.filename}); nothing "
                "was written. Check that its folder is a folder and is writable.",
                cause=error,
                outcome_unknown=False,
            ) from error
        if is_folder:
            raise StorageError(
                f"cannot open {self.name}: a folder is in its place. Choose another path.",
                outcome_unknown=False,
            )
        drive = network_filesystem(self.path.parent)
        if drive is not None:
            raise InvalidError(
                f"{self.name} lies on a network drive ({drive}), where SQLite's locks cannot be "
                "trusted and jobs would be lost. Use a local disk; to share a queue between hosts, "
                "use a bucket or PostgreSQL."
            )
        if has_other_names(self.path):
            raise InvalidError(
                f"{self.name} has another name (a hard link), or is mounted by itself. Its log "
                "lies beside it, so who opens it by the other name has another log, and jobs would "
                "be lost. Remove the link; into a container, mount the folder that the file is in."
            )
        self._check_not_emptied()

    def _check_not_emptied(self) -> None:
        """Where SQLite finds no database, it throws a log that lies there away unread."""
        # The log first: who makes a queue meanwhile writes the file before the log.
        log = Path(f"{self._text}-wal")
        if not _size(log) or (size := _size(self.path)):
            return
        what = "is not there" if size is None else "is empty"
        raise CorruptError(
            f"{self.name} {what}, while its log {log.name} has content and may hold jobs: somebody "
            "moved or truncated the file without it. Nothing was overwritten. Put the file back, "
            "or move the log away to begin anew."
        )

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
        # Before anything is changed: another's file keeps its journal mode.
        is_ours = self.check_schema(connection)
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # of a file that is yet to be made
        [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise sqlite3.OperationalError(f"its journal mode is {mode} and cannot be made WAL")
        self._bound_log(connection)
        connection.execute(f"PRAGMA synchronous = {self._durability}")
        # Debian's SQLite overwrites what is deleted, to which end it writes pages that nobody needs
        # any more. This overwrites it too, where that writes nothing extra.
        connection.execute("PRAGMA secure_delete = FAST")
        connection.execute("PRAGMA fullfsync = ON")  # on macOS fsync alone does not reach the disk
        if not is_ours:
            self._make_schema(connection)

    def _bound_log(self, connection: sqlite3.Connection) -> None:
        """From this size on its content is moved to the file, whatever its pages."""
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // page_size}")

    def _check_whole(self, connection: sqlite3.Connection) -> None:
        """A file that was cut short in its last page opens like any other."""
        size = _size(self.path) or 0
        # After that, and after it was read: of a file that is only being made SQLite says what it
        # would give it.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
        log = self.path.with_name(f"{self.path.name}-wal")
        # While a log is there, the file may have ended in the middle of a checkpoint.
        if size % page_size and not _size(log):
            raise _Foreign("it ends in the middle of a page: it was cut short")

    def _make_schema(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not self.check_schema(connection):
                create_schema(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


class _Foreign(sqlite3.DatabaseError):
    """The file is a database, but not one that we can use."""


class _Newer(sqlite3.DatabaseError):
    """A queue of a later version of ours."""


def create_schema(connection: Connection) -> None:
    """Make our tables, inside the transaction that is open."""
    statement = ""
    for line in schema().splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def _is_busy(error: sqlite3.Error) -> bool:
    kind = _kind_of(error)
    return kind in ("SQLITE_LOCKED", "SQLITE_PROTOCOL") or kind.startswith("SQLITE_BUSY")


def _kind_of(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "") or ""


def _remedy(kind: str, path: Path) -> str:
    if kind == "SQLITE_FULL":
        return "The disk is full, or the file may not grow: make room."
    if kind.startswith("SQLITE_READONLY"):
        return "The file or its folder may not be written by this user: check their permissions."
    if kind == "SQLITE_CANTOPEN":
        return (
            f"Check that {path.parent} is a folder, and that this user may read and write it and "
            "the file."
        )
    if kind.startswith("SQLITE_IOERR"):
        return "The disk did not do what was asked: check its space and its health."
    return "Check the file, its folder and its disk."


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - at every commit; a Path takes twice as long
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
