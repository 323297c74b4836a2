"""LockWait: one wait for a lock on the database file.

It warns after five seconds and ends after thirty. It ends at once if the calling thread waits for
its own transaction, where that is certain.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from contextlib import closing, suppress
from typing import Any, NamedTuple

from casque.errors import StorageError
from casque.stores.port import OwnTransactionError
from casque.stores.sqlite.files import Identity, identity_of
from casque.system.clock import SECOND_US, Clock

WARN_AFTER_US = 5 * SECOND_US


class Obstacle(NamedTuple):
    """What the wait is for. The state is completed with the seconds that it has lasted."""

    state: str
    remedy: str


LOCKED = Obstacle(
    "locked by another connection for {} s",
    "Check for a transaction left open or a suspended process. If it is your own transaction, "
    "enqueue inside it: `task.using(connection=…).enqueue(…)`, or `queue.enqueue(…, "
    "connection=…)`; or commit it first.",
)
LOG_REMOVED = Obstacle(
    "open in another program for {} s, but its log (-wal, -shm) is missing: it seems that someone "
    "removed the log",
    "A new log would lose jobs. Stop or restart every process that uses the file; the last one to "
    "exit saves its copy of the log.",
)
OPENING = Obstacle(
    "blocked for {} s by another process that is opening or closing a queue in the same folder",
    "Check for a suspended process.",
)


class BlockedError(Exception):
    """The attempt met an obstacle. Nothing was written; `Database.patiently` tries again."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.state)
        self.obstacle = obstacle


class LockWait:
    """A wait that begins when something first blocks a call."""

    def __init__(self, name: str, clock: Clock, limit_us: int) -> None:
        self._name = name
        self._clock = clock
        self._limit_us = limit_us
        self._begun_us = clock.monotonic()
        self._has_warned = False
        self._found: Obstacle | None = None
        self._found_us = 0

    def check(self, obstacle: Obstacle, error: BaseException) -> None:
        """Return if another attempt may follow. Raises StorageError when the time is over."""
        waited = self._clock.monotonic() - self._begun_us
        state, remedy = self._lasting(obstacle, waited)
        if waited >= self._limit_us:
            raise StorageError(
                f"{self._name} has been {state.format(self._limit_us // SECOND_US)}; nothing was "
                f"written. {remedy}",
                cause=error,
                outcome_unknown=False,
            ) from error
        if waited >= WARN_AFTER_US and not self._has_warned:
            self._has_warned = True
            _warn(
                f"process {os.getpid()}, thread {threading.current_thread().name}, waits for "
                f"{self._name}, which has been {state.format(waited // SECOND_US)}. This call "
                f"waits up to {self._limit_us // SECOND_US} s. {remedy}"
            )

    def _lasting(self, obstacle: Obstacle, waited: int) -> Obstacle:
        """Return the obstacle to name: the processes that wait open the file in turn, briefly."""
        if obstacle is not OPENING:
            self._found, self._found_us = obstacle, waited
        elif self._found is not None and waited - self._found_us < WARN_AFTER_US:
            return self._found
        return obstacle


def _warn(message: str) -> None:
    try:
        import logging  # noqa: PLC0415 - loading it takes as long as an enqueue

        logging.getLogger("casque").warning("%s", message)
    except Exception:  # noqa: BLE001, S110 - a handler that fails must not end the commit
        pass


def refuse_own_transaction(name: str, file: Identity | None) -> None:
    """Raise if this thread has itself written to the file, in a transaction of Django."""
    alias = _own_transaction(file)
    if alias is None:
        return
    django = "connection" if alias == "default" else f"connections[{alias!r}]"
    raise OwnTransactionError(
        f"{name} is locked by this thread's own transaction, Django's "
        "`transaction.atomic()`: the call would wait for itself. Nothing was written. "
        f"Enqueue inside the transaction: `task.using(connection={django}).enqueue(…)`, "
        f"or `queue.enqueue(…, connection={django})`, with `from django.db import "
        f"{django.partition('[')[0]}`. Or make this call after the commit, with "
        "`transaction.on_commit(…)`."
    )


def refuse_waiting(name: str, file: Identity | None) -> None:
    """Raise if no worker can finish a job before this thread ends its transaction of Django."""
    if _own_transaction(file) is not None:
        raise OwnTransactionError(
            f"{name} is locked by this thread's own transaction, Django's "
            "`transaction.atomic()`, so no worker can finish the job: the call would wait for "
            "itself. Commit first: wait for the result after the `atomic()` block."
        )


def _own_transaction(file: Identity | None) -> str | None:
    """The alias in Django of a connection on which this thread has written to the file."""
    for alias, connection in _transactions_of_django():
        with suppress(sqlite3.Error):  # then nothing is certain
            if file is not None and main_file_of(connection)[1] == file and is_writing(connection):
                return alias
    return None


def _transactions_of_django() -> list[tuple[str, sqlite3.Connection]]:
    """This thread's transactions of Django on SQLite. Loads nothing and opens nothing."""
    django: Any = sys.modules.get("django.db")
    if django is None:
        return []
    try:
        return [
            (one.alias, one.connection)
            for one in django.connections.all(initialized_only=True)
            if one.in_atomic_block and isinstance(one.connection, sqlite3.Connection)
        ]
    except (AttributeError, TypeError):
        return []  # it is being loaded, or is older than 4.1


def is_writing(connection: sqlite3.Connection) -> bool:
    """True if the connection has a transaction open that has the write lock."""
    if not connection.in_transaction or not _refuses_backup(connection):
        return False
    # Without a log, another connection's exclusive lock is a reason too. It also refuses this
    # read, which raises an error then. After the read, only a write is a reason.
    connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    return _refuses_backup(connection)


class _Status(Exception):  # noqa: N818 - it ends a backup after its first step
    pass


def _refuses_backup(connection: sqlite3.Connection) -> bool:
    """True if SQLite does not copy from the connection now.

    Python does not offer SQLite's function for the state of a transaction. But a connection that
    is writing refuses the first step of a backup; the step takes no lock and changes nothing.
    """

    def stop(status: int, *_: object) -> None:
        raise _Status(status)

    with closing(sqlite3.connect(":memory:")) as target:
        try:
            connection.backup(target, pages=1, progress=stop, sleep=0)
        except _Status as first:
            return first.args == (sqlite3.SQLITE_BUSY,)
    return False


def main_file_of(connection: sqlite3.Connection) -> tuple[str, Identity | None]:
    """The path of the connection's main database, and the file there; "" if it is in memory."""
    cursor = connection.cursor(sqlite3.Cursor)
    cursor.row_factory = None
    rows = cursor.execute("PRAGMA database_list").fetchall()
    path = next((file for _, name, file in rows if name == "main"), "")
    return path, identity_of(path) if path else None
