"""Backup: a copy of a database at one instant, made while other processes write to it.

One transaction reads everything, so the copy blocks no writer. Unlike `.backup` in SQLite's shell,
it never starts over because another process wrote. The copy is checked before it gets its name.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from casque.errors import InvalidError, StorageError
from casque.stores.sqlite.connection import Database
from casque.stores.sqlite.connection_handle import ConnectionHandle
from casque.stores.sqlite.reads import Snapshot
from casque.system.local_disk import make_folder, sync_folder

Progress = Callable[[int, int], object]
"""Called with the number of bytes copied so far, and the total."""

_PAGES_AT_ONCE = 2_000
_COUNTS = "SELECT (SELECT count(*) FROM casque_job), (SELECT count(*) FROM casque_record)"


class Backup(msgspec.Struct, frozen=True):
    """A copy that was made."""

    path: Path
    jobs: int
    """The number of jobs in the copy, in all states."""
    size_bytes: int


def back_up(
    database: Database, handle: ConnectionHandle, target: Path, *, replace: bool, progress: Progress
) -> Backup:
    """Copy a database to the file `target`, which must not exist unless `replace` is True.

    The caller holds the handle's lock, because this opens the handle.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 - a link is replaced, not followed
    _check_free(database, target, replace=replace)
    # Beside the target, so that it can be renamed, with a name that no other process uses.
    copy = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        make_folder(target.parent)
        jobs = _copy(database, handle, copy, progress)
        with copy.open("rb") as file:
            os.fsync(file.fileno())
        _check_free(database, target, replace=replace)  # it has taken a while
        copy.replace(target)
        sync_folder(target.parent)
        return Backup(target, jobs, target.stat().st_size)
    except OSError as error:
        raise StorageError(
            f"cannot write the copy {target}: {error.strerror or error}; no copy was made.",
            cause=error,
            outcome_unknown=False,
        ) from error
    finally:
        for suffix in ("", "-journal"):
            with suppress(OSError):
                copy.with_name(copy.name + suffix).unlink()


def _check_free(database: Database, target: Path, *, replace: bool) -> None:
    if target.is_dir():
        raise InvalidError(f"{target} is a folder: name a file for the copy.")
    if target.exists() and target.samefile(database.path):
        raise InvalidError(f"{target} is the queue itself: name another file for the copy.")
    if target.exists() and not replace:
        raise InvalidError(
            f"{target} already exists: name another file, or replace it (`--force`, "
            "`replace=True`)."
        )
    if target.exists() and not target.is_file():
        raise InvalidError(
            f"{target} exists and is not a regular file. Choose another path for the copy."
        )
    log = target.with_name(f"{target.name}-wal")
    if log.exists():
        raise InvalidError(
            f"{target} has a log, {log.name}: it is or was a queue in use, and that log would "
            "damage the copy. Name another file."
        )


def _copy(database: Database, handle: ConnectionHandle, copy: Path, progress: Progress) -> int:
    try:
        source = handle.open()
        try:
            with closing(sqlite3.connect(copy)) as made:
                made.execute("PRAGMA journal_mode = OFF")  # an incomplete copy is worthless anyway
                made.execute("PRAGMA synchronous = OFF")
                counts = _copy_pages(source, made, progress)
        finally:
            handle.close()
        _check_whole(copy, counts)
    except sqlite3.Error as error:
        raise database.trouble("copy", error) from error
    jobs: int = counts[0]
    return jobs


def _copy_pages(
    source: sqlite3.Connection, made: sqlite3.Connection, progress: Progress
) -> tuple[int, int]:
    [page_bytes] = source.execute("PRAGMA page_size").fetchone()

    def copied(_: int, left: int, all_: int) -> None:
        progress((all_ - left) * page_bytes, all_ * page_bytes)

    with Snapshot(source):
        counts: tuple[int, int] = source.execute(_COUNTS).fetchone()
        source.backup(made, pages=_PAGES_AT_ONCE, progress=copied)
    return counts


def _check_whole(copy: Path, counts: tuple[int, int]) -> None:
    """Raise unless the copy is an intact database with the counted rows."""
    # No other process uses the copy, so it can be read without a log.
    with closing(sqlite3.connect(f"{copy.as_uri()}?immutable=1", uri=True)) as made:
        found = made.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found == "ok" and made.execute(_COUNTS).fetchone() == counts:
            return
    raise StorageError(
        f"the copy differs from the queue ({found}); it was deleted. Check the disk, and check the "
        "queue with `PRAGMA integrity_check`.",
        outcome_unknown=False,
    )


def refusal(name: str, kind: str) -> InvalidError:
    """The error for a store that is not in a SQLite file; it says what to do instead."""
    if kind == "MemoryStore":
        return InvalidError(f"{name}: a memory store has no file, so there is nothing to copy.")
    how = _INSTEAD.get(kind, "copy it with the tools of its storage while no process uses it.")
    return InvalidError(f"{name}: backup supports only a queue in a SQLite file; {how}")


_INSTEAD = {
    "DocumentStore": "copy the one file or object at any time: it is always complete.",
    "LedgerStore": "stop its workers, then copy everything in its folder or under its prefix.",
}
