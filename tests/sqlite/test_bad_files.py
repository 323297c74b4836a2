"""A file that is not a usable queue is refused with a remedy, and left unchanged."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from casque import CorruptError, Queue, StorageError
from casque.testing.rig import FLAVOURS, Flavour
from tests.conformance.untouched import disk
from tests.sqlite.refusals import by_turns, make_queue, opened, refuses


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    flavour: Flavour = request.param
    return flavour


def change(path: Path, *statements: str) -> None:
    """Change a database as another program."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement).fetchall()


LEAVE_IT = "Nothing was overwritten"

NOT_DATABASES: dict[str, bytes] = {
    "text": b"hello",
    "one byte": b"\0",
    "JSON": b'{"version": 1, "jobs": []}',
    "much text": b"To whom it may concern:\n" * 1_000,
    "bytes": bytes(range(256)) * 100,
    "a header and nothing else": b"SQLite format 3\0",
    "a header and noise": b"SQLite format 3\0" + bytes(range(256)) * 100,
}


@by_turns("name", NOT_DATABASES)
def test_a_file_that_is_no_database_is_left_alone(
    flavour: Flavour, tmp_path: Path, name: str
) -> None:
    (tmp_path / "jobs.db").write_bytes(NOT_DATABASES[name])
    refuses(flavour, tmp_path, f"{LEAVE_IT}.*choose another path")


@by_turns("part", range(1, 10))
def test_a_database_that_was_cut_short_is_left_alone(
    flavour: Flavour, tmp_path: Path, part: int
) -> None:
    content = make_queue(tmp_path)
    (tmp_path / "jobs.db").write_bytes(content[: part * len(content) // 10])
    refuses(flavour, tmp_path, f"{LEAVE_IT}.*restore it from a backup")


@by_turns("pages", [1, 2, -1])
def test_a_database_that_was_cut_between_two_pages_is_left_alone(
    flavour: Flavour, tmp_path: Path, pages: int
) -> None:
    content = make_queue(tmp_path)
    (tmp_path / "jobs.db").write_bytes(content[: pages * 4096])
    refuses(flavour, tmp_path, f"{LEAVE_IT}.*restore it from a backup")


@pytest.mark.parametrize("what", ["empty", "not there"])
def test_a_log_without_its_file_is_left_alone(flavour: Flavour, tmp_path: Path, what: str) -> None:
    with Queue(tmp_path / "jobs.db") as q:
        q.enqueue("e")
        log = (tmp_path / "jobs.db-wal").read_bytes()
    (tmp_path / "jobs.db").unlink()
    if what == "empty":
        (tmp_path / "jobs.db").write_bytes(b"")
    (tmp_path / "jobs.db-wal").write_bytes(log)
    refuses(flavour, tmp_path, f"{what}.*jobs.db-wal.*{LEAVE_IT}.*start a new queue")


def test_an_empty_file_is_a_new_queue(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"")
    with Queue(tmp_path / "jobs.db") as q:
        q.enqueue("e")
        assert q.stats().pending == 1


NEWER = "UPDATE casque_meta SET value = '999' WHERE key = 'schema'"
# VACUUM INTO, a restored dump and most other tools leave this mode.
NOT_WAL = "PRAGMA journal_mode = DELETE"

FOREIGN: dict[str, tuple[Callable[[Path], None], str]] = {
    "of a newer casque": (lambda path: change(path, NEWER), "newer casque.*999.*upgrade casque"),
    "of a newer casque, copied": (
        lambda path: change(path, NEWER, NOT_WAL),
        "newer casque.*999.*upgrade casque",
    ),
    "of a newer casque, with other tables": (
        lambda path: change(path, NEWER, "DROP VIEW casque_jobs", "DROP TABLE casque_job"),
        "newer casque.*999.*upgrade casque",
    ),
    "without its meta table": (
        lambda path: change(path, "DROP TABLE casque_meta"),
        "no schema version",
    ),
    "without its meta table, copied": (
        lambda path: change(path, "DROP TABLE casque_meta", NOT_WAL),
        "no schema version",
    ),
    "without its version": (
        lambda path: change(path, "DELETE FROM casque_meta"),
        "no schema version",
    ),
    "with a version that is none": (
        lambda path: change(path, "UPDATE casque_meta SET value = 'new'"),
        "no schema version",
    ),
    "with another program's meta table": (
        lambda path: change(path, "DROP TABLE casque_meta", "CREATE TABLE casque_meta (name TEXT)"),
        "casque",
    ),
}


@by_turns("name", FOREIGN)
def test_a_database_that_we_cannot_read_is_left_alone(
    flavour: Flavour, tmp_path: Path, name: str
) -> None:
    make_queue(tmp_path)
    spoil, says = FOREIGN[name]
    spoil(tmp_path / "jobs.db")
    assert list(disk(tmp_path)) == ["jobs.db"]
    refuses(flavour, tmp_path, f"{says}.*{LEAVE_IT}")


def test_a_table_of_the_users_with_our_prefix_is_left_alone(
    flavour: Flavour, tmp_path: Path
) -> None:
    change(tmp_path / "jobs.db", "CREATE TABLE casque_bottles (year INTEGER)")
    refuses(flavour, tmp_path, f"no schema version.*{LEAVE_IT}.*choose another path")


def test_a_database_of_the_users_gets_our_tables_beside_its_own(
    flavour: Flavour, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.db"
    change(path, "CREATE TABLE casquette (size)", "INSERT INTO casquette VALUES (57)")
    change(path, "PRAGMA user_version = 7", "PRAGMA application_id = 8")

    async def run() -> None:
        async with opened(flavour, tmp_path) as q:
            await q.enqueue("e")
            assert (await q.stats()).pending == 1

    asyncio.run(run())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT size FROM casquette").fetchall() == [(57,)]
        assert connection.execute("PRAGMA user_version").fetchall() == [(7,)]
        assert connection.execute("PRAGMA application_id").fetchall() == [(8,)]


def test_a_queue_made_by_this_version_opens_again(tmp_path: Path) -> None:
    make_queue(tmp_path)
    path = tmp_path / "jobs.db"
    with Queue(path) as q:
        before = q.read_state().jobs
    for _ in range(2):
        with Queue(path) as q:
            assert q.read_state().jobs == before
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT key, value FROM casque_meta").fetchall() == [
            ("schema", "1")
        ]


def test_a_queue_goes_on_once_its_file_is_restored(flavour: Flavour, tmp_path: Path) -> None:
    content = make_queue(tmp_path)

    async def run() -> None:
        async with opened(flavour, tmp_path) as q:
            (tmp_path / "jobs.db").write_bytes(content[:5_000])
            with pytest.raises(CorruptError):
                await q.enqueue("e")
            (tmp_path / "jobs.db").write_bytes(content)
            await q.enqueue("e")
            assert (await q.stats()).total == 61

    asyncio.run(run())


def test_damage_inside_the_file_is_reported(tmp_path: Path) -> None:
    content = make_queue(tmp_path)
    spoilt = content[: 2 * 4096] + b"\xff" * (len(content) - 2 * 4096)
    (tmp_path / "jobs.db").write_bytes(spoilt)
    with (
        Queue(tmp_path / "jobs.db") as q,
        pytest.raises(CorruptError, match=r"jobs\.db.*restore it from a backup"),
    ):
        q.enqueue("e")
    assert (tmp_path / "jobs.db").read_bytes() == spoilt


# -- things in the way ---------------------------------------------------------


def test_a_folder_in_the_place_of_the_file_is_left_alone(flavour: Flavour, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    (tmp_path / "jobs.db" / "kept").write_text("kept")
    refuses(flavour, tmp_path, "is a folder.*[Cc]hoose another path", StorageError)


@pytest.mark.parametrize("below", [".", "sub"])
def test_a_file_in_the_place_of_the_folder_is_left_alone(
    flavour: Flavour, tmp_path: Path, below: str
) -> None:
    (tmp_path / "file").write_text("kept")
    refuses(flavour, tmp_path / "file" / below, "Check that its parent is a folder", StorageError)
    assert disk(tmp_path) == {"file": b"kept"}


@pytest.mark.parametrize("place", ["jobs.db-wal", "jobs.db-shm"])
def test_a_folder_in_the_place_of_a_file_beside_it_stops_changes_until_it_is_gone(
    tmp_path: Path, place: str
) -> None:
    content = make_queue(tmp_path)
    (tmp_path / place).mkdir()
    with Queue(tmp_path / "jobs.db") as q:
        for _ in range(2):
            with pytest.raises(StorageError, match=r"jobs\.db.*[Cc]heck") as refused:
                q.enqueue("e")
            assert not refused.value.outcome_unknown
            assert (tmp_path / "jobs.db").read_bytes() == content
    (tmp_path / place).rmdir()
    with Queue(tmp_path / "jobs.db") as q:
        q.enqueue("e")
        assert q.stats().total == 61
