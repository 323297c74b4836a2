"""The page size of the file, and the size of the log at which it is checkpointed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from casque import NewJob, Queue
from casque.stores.sqlite.connection import Database
from casque.stores.sqlite.store import BUSY_AT

LOG_BYTES = 4_096_000


def page_size(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        [size] = connection.execute("PRAGMA page_size").fetchone()
        assert isinstance(size, int)
        return size


def test_a_new_file_has_small_pages(tmp_path: Path) -> None:
    with Queue(tmp_path / "jobs.db") as q:
        q.enqueue("e")
    assert page_size(tmp_path / "jobs.db") == 2048


@pytest.mark.parametrize("size", [512, 4096, 65536])
def test_an_existing_file_keeps_its_page_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {size}")
        connection.execute("CREATE TABLE users (name TEXT)")
    with Queue(path) as q:
        [job] = q.enqueue_many([NewJob("e", b"x" * 100_000)])
        assert q.dequeue()[0].payload == job.payload
    assert page_size(path) == size


@pytest.mark.parametrize("size", [1024, 2048, 4096])
def test_the_log_is_checkpointed_at_the_same_size_for_every_page_size(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {size}")
        connection.execute("VACUUM")
    with Queue(f"sqlite:///{path}?durability=normal") as q:
        for _ in range(80):
            q.enqueue("e", b"x" * 100_000)
        written = (tmp_path / "jobs.db-wal").stat().st_size
    assert page_size(path) == size
    assert LOG_BYTES <= written <= 1.2 * LOG_BYTES


def test_the_log_gets_its_full_size_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown: list[object] = []
    monkeypatch.setattr(Database, "grow_log", lambda *args: grown.append(args))
    with Queue(tmp_path / "jobs.db") as q:
        for number in range(50):
            q.enqueue("e")
            for _ in range(3):
                assert q.dequeue("nobody") == []
            assert len(grown) == (number >= BUSY_AT - 1)
