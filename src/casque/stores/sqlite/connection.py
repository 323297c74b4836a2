"""Connections: opening the database file and its schema, and waiting for its locks.

The file is never opened or closed by hand: on POSIX that would drop the locks
which SQLite holds on it in this process.
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
from casque.stores.sqlite.rows import Connection, schema
from casque.system.clock import SECOND_US, Clock
from casque.system.local_disk import has_other_names, make_folder, network_filesystem

Durability = Literal["full", "normal"]

SCHEMA = 1
_OLDEST_SQLITE = (3, 35, 0)
_BUSY_SECONDS = 0.05
"""How long SQLite waits for a lock by itself: briefly, so that Ctrl-C gets through in between."""
_ASK_AGAIN_SECONDS = 0.05
_STATEMENTS_CACHED = 256
_PAGE_BYTES = 2048
"""Half of SQLite's own: a commit of one job changes two or three pages by a few hundred bytes, and
writes them whole to its log. Smaller ones would cost large payloads and lists of jobs too much."""
_LOG_BYTES = 4_096_000
"""What SQLite's own thousand pages come to."""
_FRAME_HEADER = 24
_SHARE_OF_FREE_SPACE = 20
"""The log takes its full size early only where there is so many times as much room."""

_LOCKED = (
    "locked by another program for {} s; nothing was written. Is a transaction left open, or a "
    "process stopped? To enqueue inside a transaction of your own, pass `connection=`."
)
_LOG_REMOVED = (
    "open in another program for {} s, though its log (-wal, -shm) is not there: it seems that "
    "somebody removed the log. Nothing was written: by a new log, jobs would be lost. Stop or "
    "restart every process that uses the file; the last to end saves what it has of the log."
)

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
        """Whether no queue may be made here."""
        self._open: set[sqlite3.Connection] = set()

    def connect(self) -> sqlite3.Connection:
        """A connection to a database that holds a queue; it is made when there is none.

        Unless it must exist: then neither the file nor its folder is made.
        """
        forks.check(self.name)
        if self.is_lost():
            raise self.lost()
        if self.must_exist and not _size(self.path):
            raise absent(f"{self.name} is gone")
        self._check_place()
        while True:
            log = self._wait_for_log()
            connection = self._connect()
            # All connections of a process share one `-shm`: beside others only their log will do.
            if self.files.are_there() if self._open else self.files.take(log):
                self._open.add(connection)
                return connection
            # What it has open is not what is there: its close must not write to the file.
            close_alone(connection, self.path, self.identity())
            if self._open or log is None or log == self.files.log():
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
                # Any step may meet others who are making the file; all are safe to repeat.
                self.patiently(lambda: self._prepare(connection))
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def _uri(self) -> str:
        """By which SQLite opens the file, and makes it if it may."""
        return f"{self.path.absolute().as_uri()}?mode={'rw' if self.must_exist else 'rwc'}"

    def close(self, connection: sqlite3.Connection) -> None:
        """Let go of a connection that `connect` made."""
        self._open.discard(connection)
        if self.files.are_replaced():
            # Others may have written to the file since, by another log.
            close_alone(connection, self.path, self.files.file)
            return
        if not self.files.are_there():
            # Nobody can have opened the file since: what is in the log can still be saved.
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint").fetchall()
        with suppress(sqlite3.Error):  # what is committed is; more cannot be done about it
            connection.close()
        if not self._open:
            self.files.let_go()

    def let_go(self) -> None:
        """In a child: what its parent has open is not open here."""
        self._open.clear()

    def is_lost(self) -> bool:
        """Whether what is open here is not what is at the path any more."""
        return self.files.is_lost or (bool(self._open) and not self.files.are_there())

    def lost(self) -> CorruptError:
        """The error to raise from now on, since that is so."""
        self.files.is_lost = self.files.is_lost or bool(self._open)
        return CorruptError(
            f"{self.name}: somebody removed or replaced the file, {self.path.name}-wal or "
            f"{self.path.name}-shm while it was in use. The first call that failed may be stored "
            "or not, and this queue object stores nothing more. Restart every process that uses "
            "the file, and look the last jobs up by id. Stop them before you move or delete it: "
            "docs/how-to/use-sqlite.md.",
            is_replaced=True,
        )

    def check_joined(self, connection: Connection) -> None:
        """Raise if a connection of the user's, with a transaction open, is not to what is there."""
        if self.is_lost():
            raise self.lost()
        [mode] = connection.execute("PRAGMA main.journal_mode").fetchone()
        if mode == "wal" and not self._open and not self.files.take():
            raise self.lost()

    def identity(self) -> Identity | None:
        """Which file is at the path now; None when there is none."""
        return identity_of(self._text)

    def grow_log(self, connection: sqlite3.Connection) -> None:
        """Give the log its full size at once; afterwards it is written over and over.

        While a file grows, every sync has to bring its new size to disk too, which
        takes about as long again. Zeros behind the last frame are no frames to SQLite.
        """
        if self._durability != "full":
            return
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
        [pages] = connection.execute("PRAGMA wal_autocheckpoint").fetchone()
        try:
            connection.execute("BEGIN IMMEDIATE")  # nobody else appends to it meanwhile
        except sqlite3.OperationalError:
            return  # somebody does; then it grows as it may
        try:
            with Path(self.files.log_name).open("r+b", buffering=0) as log:
                if self.is_lost():
                    return  # and this may be another's
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

    def patiently(self, attempt: Callable[[], T], what: str = _LOCKED) -> T:
        """Try until no other process is in the way, for as long as a commit may take.

        After that, `what` says what was in the way, and what to do.
        """
        give_up: int | None = None
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                now = self._clock.monotonic()
                give_up = give_up or now + COMMIT_DEADLINE_US
                if now >= give_up:
                    raise StorageError(
                        f"{self.name} has been {what.format(COMMIT_DEADLINE_US // SECOND_US)}",
                        cause=error,
                        outcome_unknown=False,
                    ) from error

    @contextmanager
    def translating(self, verb: str) -> Iterator[None]:
        """SQLite's errors as ours. Whatever was asked for in here was not done."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.trouble(verb, error) from error

    def trouble(self, verb: str, error: sqlite3.Error) -> CasqueError:
        return self.lost() if self.is_lost() else translated(error, verb, self.path)

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
            raise NotAQueueError("it has tables named casque_…, but does not say by which version")
        if int(found[0]) > SCHEMA:
            raise NewerFormatError(
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
            "or move the log away to begin again."
        )

    def _wait_for_log(self) -> list[Identity] | None:
        """Which log to open the file by; None for a new one, if nobody has another one open.

        SQLite would make a new log beside the one that is in use, if that has lost its name. While
        it is open somebody has the file locked for reading, so nobody can have it for themselves.
        """

        def ask() -> list[Identity] | None:
            log = self.files.log()
            if log is None and _size(self.path):
                try:
                    self._have_alone()
                except sqlite3.OperationalError:
                    # Those who ask at the same time are in each other's way.
                    threading.Event().wait(self._clock.random() * _ASK_AGAIN_SECONDS)
                    raise
            return log

        try:
            return self.patiently(ask, _LOG_REMOVED)
        except sqlite3.Error:
            return None  # it cannot be opened at all: the opening will say why

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
        # Before anything is changed: another's file keeps its journal mode.
        is_ours = self.check_schema(connection)
        if self.must_exist and not is_ours:
            raise absent(f"{self.name} holds no queue")
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
        connection.execute("SELECT count(*) FROM casque_meta").fetchone()  # by now it has its log

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
            raise NotAQueueError("it ends in the middle of a page: it was cut short")

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


def create_schema(connection: Connection) -> None:
    """Make our tables, inside the transaction that is open."""
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
