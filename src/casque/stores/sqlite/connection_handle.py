"""ConnectionHandle: a connection that is opened when needed, and its lock."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from casque.stores.sqlite.connection import Database
from casque.stores.sqlite.files import Identity


class ConnectionHandle:
    """A connection that is opened when needed, and its lock."""

    def __init__(self, database: Database) -> None:
        self.lock = threading.RLock()
        self._database = database
        self.opened: sqlite3.Connection | None = None
        """The connection, if it is open."""

    def connection(self) -> tuple[sqlite3.Connection, bool]:
        """Return the connection, and True if this call opened it. The caller holds the lock."""
        if self.opened is None:
            return self.open(), True
        if self._database.is_lost():
            raise self._database.lost()
        return self.opened, False

    def open(self) -> sqlite3.Connection:
        """Open the connection. Call it with the lock held."""
        self.opened = self._database.connect()
        return self.opened

    @property
    def file(self) -> tuple[Path, Identity | None]:
        return self._database.path, self._database.files.file

    def grow_log(self) -> None:
        if self.opened is not None:
            self._database.grow_log(self.opened)

    def abandon(self) -> None:
        """Roll back uncommitted changes, by closing the connection if necessary."""
        connection = self.opened
        if connection is None:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        connection, self.opened = self.opened, None
        if connection is not None:
            self._database.close(connection)
