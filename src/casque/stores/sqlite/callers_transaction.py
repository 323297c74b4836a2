"""Caller's transaction: adds jobs inside a transaction that the caller has open.

The jobs are stored when the caller commits, together with the other writes of the
transaction. If the caller rolls back, they never existed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from casque.errors import CasqueError, InvalidError, StorageError
from casque.job import Job
from casque.rules.operations import Enqueue
from casque.stores.callers_connection import driver_connection
from casque.stores.port import Joined, Outcome
from casque.stores.sqlite.cache import Cache
from casque.stores.sqlite.changes import Changes
from casque.stores.sqlite.connection import Database
from casque.stores.sqlite.lock_wait import is_writing, main_file_of
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.rows import STORE
from casque.stores.sqlite.tables import create_schema, has_schema
from casque.stores.sqlite.transaction import Transaction

_NOT_BELIEVED = -1
_LEGACY = -1
_SHADOWS = (
    "SELECT name FROM sqlite_temp_master "
    "WHERE type IN ('table', 'view') AND lower(name) GLOB 'casque_*'"
)


class Borrowed:
    """A connection of the caller, used without its cursor class and row factory."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Iterable[Any] = ()) -> sqlite3.Cursor:
        return self._cursor().execute(sql, tuple(parameters))

    def executemany(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> sqlite3.Cursor:
        return self._cursor().executemany(sql, rows)

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor(sqlite3.Cursor)
        cursor.row_factory = None
        return cursor


class JoinedTransaction:
    """A transaction that jobs were added to."""

    def __init__(
        self, connection: sqlite3.Connection, number: int, last_committed: Callable[[], int]
    ) -> None:
        self._connection = connection
        self._number = number
        """The number of this transaction, or of a later one if this one was rolled back."""
        self._last_committed = last_committed
        # Asked now: later, the connection may serve another caller, and a statement would wait.
        self._has_log = _has_log(connection)

    def outcome(self) -> Outcome:
        # In this order: a transaction that had ended before the read is committed, or never.
        is_open = self._is_open()
        if self._last_committed() >= self._number:
            return Outcome.ENDED
        return Outcome.UNCOMMITTED if is_open else Outcome.ROLLED_BACK

    def _is_open(self) -> bool:
        """True while this transaction, or a later one on its connection, is open."""
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError:
            return False  # the caller has closed it, which rolls back

    def hides_queue(self) -> bool:
        """A file without a log gets one when the queue is opened, and that takes every lock."""
        if self._has_log:
            return False
        try:
            with _text_as_str(self._connection):
                self._has_log = _has_log(self._connection)
            return not self._has_log and is_writing(self._connection)
        except sqlite3.Error:
            return False  # closed, or of another thread


def _has_log(connection: sqlite3.Connection) -> bool:
    [mode] = Borrowed(connection).execute("PRAGMA main.journal_mode").fetchone()
    return bool(mode == "wal")


def enqueue_within(
    database: Database,
    now: int,
    given: object,
    operation: Enqueue,
    last_committed: Callable[[], int],
) -> Joined:
    """Add the jobs of `operation` to the transaction that is open on the connection in `given`.

    `last_committed` returns the number of the last committed transaction that jobs were added to.
    """
    connection = driver_connection(given, sqlite3.Connection)
    try:
        with _text_as_str(connection):
            _check_same_file(database, connection)
            _check_not_shadowed(connection)
            with _in_transaction(connection):
                jobs, number = _add(database, Borrowed(connection), now, operation)
                transaction = JoinedTransaction(connection, number, last_committed)
        return Joined(jobs, transaction)
    except sqlite3.ProgrammingError as error:
        raise InvalidError(f"`connection` cannot be used here: {error}", cause=error) from error
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            raise StorageError(
                f"{database.name}: another connection is writing, so the job was not added "
                "to this transaction. Begin such transactions with BEGIN IMMEDIATE (in Django: "
                "the option transaction_mode), and give the connection a timeout.",
                cause=error,
                outcome_unknown=False,
            ) from error
        raise database.trouble("add a job to", error) from error
    except sqlite3.Error as error:
        raise database.trouble("add a job to", error) from error


def _add(
    database: Database, borrowed: Borrowed, now: int, operation: Enqueue
) -> tuple[list[Job], int]:
    """Add the jobs. Returns them and the number of the transaction."""
    # If anything fails in here, the caller's own part of the transaction stays.
    borrowed.execute("SAVEPOINT casque_within")
    try:
        if not has_schema(borrowed):
            # Not reported: it may be rolled back, and the caller knows the file.
            create_schema(borrowed)
        transaction = Transaction(
            borrowed, Cache(borrowed.execute, _NOT_BELIEVED), database.clock, now
        )
        [outcome] = Changes(transaction, careful=True).enqueue_all([operation])
        if isinstance(outcome, CasqueError):
            raise outcome  # noqa: TRY301 - the savepoint is rolled back below
        if transaction.wrote:
            transaction.count()
            borrowed.execute(SQL["count_joined"])
        [number, *_] = borrowed.execute(SQL["writer"], (STORE,)).fetchone()
        database.check_joined(borrowed)
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk: SQLite already rolled back everything
            borrowed.execute("ROLLBACK TO casque_within")
            borrowed.execute("RELEASE casque_within")
        raise
    borrowed.execute("RELEASE casque_within")
    return outcome, number


def _check_same_file(database: Database, connection: sqlite3.Connection) -> None:
    path, file = main_file_of(connection)
    if file is None or file != database.identity():
        raise InvalidError(
            f"`connection` is open on {path or 'a database in memory'}, but this queue is in "
            f"{database.name}: one transaction can only be in one file."
        )
    if not _is_same_entry(path, database.name):
        raise InvalidError(
            f"`connection` is open on {path}, which is another name of this queue's file, "
            f"{database.name}: a hard link, or a mount of the file alone. SQLite keeps a log "
            "beside each name, so writing by both damages the file. Open it by the queue's path."
        )


def _is_same_entry(path: str, other: str) -> bool:
    """True if the two paths of a file lead to one entry of one folder."""
    one, two = Path(path).resolve(), Path(other).resolve()
    same_name = one.name.casefold() == two.name.casefold()
    return same_name and one.parent.samefile(two.parent)


def _check_not_shadowed(connection: sqlite3.Connection) -> None:
    """Raise if a temporary table hides the table of the same name in the file."""
    row = Borrowed(connection).execute(_SHADOWS).fetchone()
    if row is not None:
        raise InvalidError(
            f"`connection` has a temporary table or view {row[0]}, which hides the queue's table: "
            "the job would be stored there, and lost with it. Drop it or rename it."
        )


@contextmanager
def _in_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Use the open transaction; if there is none, begin one."""
    if connection.in_transaction:
        yield
        return
    # Without one, a connection in autocommit mode could store half of a job's rows.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):  # on a full disk SQLite already rolled back
            connection.execute("ROLLBACK")
        raise
    if _commits_by_itself(connection):
        connection.execute("COMMIT")


def _commits_by_itself(connection: sqlite3.Connection) -> bool:
    """True if the connection commits each statement at once; otherwise the caller commits."""
    mode = getattr(connection, "autocommit", _LEGACY)  # Python 3.12 and later
    return connection.isolation_level is None if mode == _LEGACY else bool(mode)


@contextmanager
def _text_as_str(connection: sqlite3.Connection) -> Iterator[None]:
    factory: Callable[[bytes], Any] = connection.text_factory
    connection.text_factory = str
    try:
        yield
    finally:
        connection.text_factory = factory
