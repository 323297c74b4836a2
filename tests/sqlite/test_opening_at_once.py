"""Many processes that open a file which is not there yet."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from casque import Queue
from casque.stores.sqlite import connection

ROUNDS, HANDLES = 40, 6


def test_a_file_that_is_just_being_made_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    wrong: list[Exception] = []

    def look(path: Path, together: threading.Barrier) -> None:
        together.wait()
        try:
            with Queue(path) as q:
                q.enqueue("e")
        except Exception as error:  # noqa: BLE001 - told by the test
            wrong.append(error)

    for number in range(ROUNDS):
        together = threading.Barrier(HANDLES)
        path = tmp_path / f"{number}.db"
        threads = [threading.Thread(target=look, args=(path, together)) for _ in range(HANDLES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        with Queue(path) as q:
            assert q.stats().total == HANDLES


def test_a_file_that_is_locked_while_it_is_made_is_waited_for(tmp_path: Path) -> None:
    """Before it has a log, the lock of a writer keeps readers out, too: at whatever they ask."""
    path, told = tmp_path / "jobs.db", list[object]()

    def enqueue() -> None:
        try:
            with Queue(path) as q:
                told.append(q.enqueue("e").id)
        except Exception as error:  # noqa: BLE001 - told by the test
            told.append(error)

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        other.execute("CREATE TABLE theirs (name)")
        enqueueing = threading.Thread(target=enqueue)
        enqueueing.start()
        enqueueing.join(0.3)  # several times what SQLite waits for by itself
        other.execute("COMMIT")
    enqueueing.join()
    with Queue(path) as q:
        assert [job.id for job in q.peek()] == told


def test_a_queue_that_is_made_while_its_files_are_looked_at_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size_of, made = tmp_path / "jobs.db", connection._size, list[Queue]()

    def look(at: Path) -> int | None:
        found = size_of(at)
        if not made:  # between the first look and the second
            made.append(Queue(path))
            made[0].enqueue("e")
        return found

    monkeypatch.setattr(connection, "_size", look)
    with Queue(path) as q:
        q.enqueue("e")
        assert q.stats().total == 2
    made[0].close()
