"""Driver errors: translates SQLite's errors into ours, each with its remedy."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from casque.errors import CasqueError, CorruptError, StorageError


class NotAQueueError(sqlite3.DatabaseError):
    """The file is a database, but not a usable queue."""


class NewerFormatError(sqlite3.DatabaseError):
    """The queue was written by a later version of casque."""


def translated(error: sqlite3.Error, verb: str, path: Path) -> CasqueError:
    """The error to raise for one of SQLite's; `verb` names the action, such as `open`."""
    kind = _kind_of(error)
    if isinstance(error, NewerFormatError):
        return CorruptError(f"{path}: {error}. Nothing was overwritten.", cause=error)
    if kind.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")) or isinstance(error, NotAQueueError):
        return CorruptError(
            f"{path}: {error}. Nothing was overwritten. If the file is a queue, restore "
            "it from a backup or see docs/how-to/recover-a-damaged-file.md; otherwise choose "
            "another path.",
            cause=error,
        )
    return StorageError(
        f"cannot {verb} {path}: {error}; nothing was written. {_remedy(kind, path)}",
        cause=error,
        outcome_unknown=False,
    )


def is_busy(error: sqlite3.Error) -> bool:
    """True if another connection holds a lock: try again."""
    kind = _kind_of(error)
    return kind in ("SQLITE_LOCKED", "SQLITE_PROTOCOL") or kind.startswith("SQLITE_BUSY")


def _kind_of(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "") or ""


def _remedy(kind: str, path: Path) -> str:
    if kind == "SQLITE_FULL":
        return "The disk is full, or the file may not grow: make room."
    if kind.startswith("SQLITE_READONLY"):
        return "This user may not write the file or its folder: check their permissions."
    if kind == "SQLITE_CANTOPEN":
        return (
            f"Check that {path.parent} is a folder, and that this user may read and write it and "
            "the file."
        )
    if kind.startswith("SQLITE_IOERR"):
        return "The disk reported an error: check its free space and its health."
    return "Check the file, its folder and its disk."
