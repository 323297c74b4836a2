"""Place: checks that a queue can be kept at a path, before SQLite opens it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from casque.errors import CorruptError, InvalidError, StorageError
from casque.system.local_disk import has_other_names, make_folder, network_filesystem

_OLDEST_SQLITE = (3, 35, 0)


def check_place(path: Path) -> None:
    """Raise unless SQLite can keep a queue at the path; create its folder."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StorageError(
            f"SQLite {sqlite3.sqlite_version} is too old: casque needs 3.35 or later. Use a "
            "Python built with a newer SQLite.",
            outcome_unknown=False,
        )
    try:
        make_folder(path.parent)
        is_folder = path.is_dir()
    except OSError as error:
        raise StorageError(
            f"cannot open {path}: {error.strerror or error} ({error.filename}); nothing "
            "was written. Check that its parent is a folder and is writable.",
            cause=error,
            outcome_unknown=False,
        ) from error
    if is_folder:
        raise StorageError(
            f"cannot open {path}: it is a folder. Choose another path.",
            outcome_unknown=False,
        )
    drive = network_filesystem(path.parent)
    if drive is not None:
        raise InvalidError(
            f"{path} is on a network drive ({drive}), where SQLite's locks are unreliable "
            "and jobs would be lost. Use a local disk; to share a queue between hosts, use a "
            "bucket."
        )
    if has_other_names(path):
        raise InvalidError(
            f"{path} has another name (a hard link), or is mounted by itself. Its log is "
            "beside it, so a process that opens it by the other name uses another log, and "
            "jobs would be lost. Remove the link; in a container, mount the file's folder."
        )
    _check_not_emptied(path)


def _check_not_emptied(path: Path) -> None:
    """Raise if there is a log without a database: SQLite would delete the log unread."""
    # Check the log first: a process that creates a queue writes the file before the log.
    log = Path(f"{path}-wal")
    if not size_of(log) or (size := size_of(path)):
        return
    what = "is not there" if size is None else "is empty"
    raise CorruptError(
        f"{path} {what}, but its log {log.name} has content and may hold jobs: someone "
        "moved or truncated the file without its log. Nothing was overwritten. Put the file "
        "back, or move the log away to start a new queue."
    )


def size_of(path: Path) -> int | None:
    """The size of the file; None if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None
