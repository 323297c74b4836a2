"""Close alone: closes a connection so that nothing changes for other processes.

The last connection to a file moves the log into the file and deletes the log. A connection that was
inherited by a fork, or whose log was removed, may seem to be the last one while others use the log
at the path. So this module holds a read lock: no SQLite can then take the exclusive lock that the
last connection needs.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
from pathlib import Path

from casque.stores.sqlite.files import Identity
from casque.system.clock import SECOND_US, SystemClock, drive

if sys.platform == "linux":
    import fcntl

_PATIENCE_US = 5 * SECOND_US
_PAUSE_US = 10_000
_LOCK_BYTES = 0x40000000, 512
"""The position and size of SQLite's lock bytes in a database file."""


def close_alone(connection: sqlite3.Connection, path: Path, identity: Identity | None) -> bool:
    """Close a connection to the file that was once at the path, if that is safe.

    Otherwise returns False, and the connection stays open until the process has ended.
    """
    try:
        is_closed = sys.platform == "linux" and _close(connection, path, identity)
    except (OSError, sqlite3.Error):
        is_closed = False
    if not is_closed:
        keep_for_ever(connection)
    return is_closed


def keep_for_ever(connection: sqlite3.Connection) -> None:
    """Never close this connection, not even at exit: to close it could hang or do harm."""
    import ctypes  # noqa: PLC0415 - slow to load, and rarely needed

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _close(connection: sqlite3.Connection, path: Path, identity: Identity | None) -> bool:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if (found.st_dev, found.st_ino) != identity or not _lock(file.fileno()):
            return False
        connection.close()
    return True


def _lock(file: int) -> bool:
    """Take a read lock, which excludes every write lock; False if that is not possible."""
    clock = SystemClock()
    wanted = struct.pack("hhqqi0q", fcntl.F_RDLCK, os.SEEK_SET, *_LOCK_BYTES, 0)
    give_up = clock.monotonic() + _PATIENCE_US
    while True:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
        except BlockingIOError:  # another process is closing the file's last connection
            if clock.monotonic() > give_up:
                return False
            drive(clock.sleep(_PAUSE_US, blocking=True))
        else:
            return True
