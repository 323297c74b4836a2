"""A SQLite file of another program, opened read-only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from casque.errors import CorruptError, StorageError

HEADER = b"SQLite format 3\0"

_PATIENCE_SECONDS = 10.0
_UNWRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


class SqliteFile:
    """The tables of one file, as of one moment."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path

    def tables(self) -> list[str]:
        """The names of the tables. A view is none: its query may never end."""
        rows = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE %'"
        )
        return sorted(str(name) for (name,) in rows)

    def columns(self, table: str) -> set[str]:
        rows = self._connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
        return {str(name).lower() for (name,) in rows}

    def has(self, table: str, *columns: str) -> bool:
        is_table = table.lower() in (name.lower() for name in self.tables())
        return is_table and {*columns} <= self.columns(table)

    def rows(
        self, table: str, columns: Sequence[str], order: str, *, where: str = "1"
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of a table. A column that it lacks is None."""
        there = self.columns(table)
        wanted = ", ".join(_quoted(name) if name in there else "NULL" for name in columns)
        # The names come from the file's own schema, and are quoted.
        return self._connection.execute(
            f"SELECT {wanted} FROM {_quoted(table)} WHERE {where} ORDER BY {order}"  # noqa: S608
        )

    def count(self, table: str) -> int:
        [count] = self._connection.execute(
            f"SELECT count(*) FROM {_quoted(table)}"  # noqa: S608 - as above
        ).fetchone()
        return int(count)


@contextmanager
def opened(path: Path) -> Iterator[SqliteFile]:
    """The file in one read transaction. Raises CorruptError or StorageError."""
    try:
        with closing(_connected(path)) as connection:
            # Text that is not UTF-8 must not end the import of the other rows.
            connection.text_factory = lambda data: data.decode(errors="surrogateescape")
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("BEGIN")
            yield SqliteFile(connection, path)
    except sqlite3.OperationalError as error:
        raise StorageError(
            f"{path} cannot be read: {error}. Nothing was changed; stop the program that uses it, "
            "and import again.",
            cause=error,
            outcome_unknown=False,
        ) from error
    except sqlite3.DatabaseError as error:
        raise CorruptError(
            f"{path} is damaged: {error}. Nothing was changed. Repair it with SQLite's own "
            "tools first, or import a backup of it.",
            cause=error,
        ) from error


def _connected(path: Path) -> sqlite3.Connection:
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=_PATIENCE_SECONDS, isolation_level=None)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF not in _UNWRITABLE or _exists(path, "-wal"):
            raise
        if _exists(path, "-journal"):
            raise StorageError(
                f"{path} has an unfinished write: its journal is beside it. Nothing was changed. "
                "Stop the program that uses it, open the file once with that program or with "
                "`sqlite3`, which undoes the write, and import again.",
                cause=error,
                outcome_unknown=False,
            ) from error
        # A folder that we may not write to, and no log to read: the file alone is complete.
        return sqlite3.connect(f"{address}&immutable=1", uri=True, isolation_level=None)
    return connection


def _exists(path: Path, ending: str) -> bool:
    return path.with_name(f"{path.name}{ending}").exists()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
