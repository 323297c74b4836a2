"""Many processes that open a file that does not exist yet."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from casque import Queue
from casque.stores.sqlite import place

ROUNDS, HANDLES = 40, 6
PLACES, PROCESSES = 2, 24


def test_a_file_that_is_being_created_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    wrong: list[Exception] = []

    def look(path: Path, together: threading.Barrier) -> None:
        together.wait()
        try:
            with Queue(path) as q:
                q.enqueue("e")
        except Exception as error:  # noqa: BLE001 - the test reports it
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


# Each process opens, enqueues and closes a few times. So again and again the file is new, or was
# just closed by its last user.
AT_ONCE = """
import os, sys
from casque import Queue

def take_part(path, number):
    for turn in range(3):
        with Queue(path) as q:
            q.enqueue("e", id=f"{number}-{turn}")

for path in sys.argv[2:]:
    start, children = os.pipe(), []
    for number in range(int(sys.argv[1])):
        child = os.fork()
        if not child:
            os.close(start[1])
            os.read(start[0], 1)  # until all have started
            try:
                take_part(path, number)
            except BaseException as error:
                os.write(1, f"{type(error).__name__}: {error}\\n".encode())
            os._exit(0)
        children.append(child)
    os.close(start[1])
    os.close(start[0])
    for child in children:
        os.waitpid(child, 0)
"""


def test_many_processes_that_create_the_same_file_at_once_all_succeed(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.db" for number in range(PLACES)]
    command = [sys.executable, "-c", AT_ONCE, str(PROCESSES), *map(str, paths)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert told.stdout == ""
    for path in paths:
        with Queue(path) as q:
            assert q.stats().total == 3 * PROCESSES


def test_a_file_that_is_locked_while_it_is_created_is_waited_for(tmp_path: Path) -> None:
    """Before there is a log, a write lock blocks readers too, at every statement."""
    path, told = tmp_path / "jobs.db", list[object]()

    def enqueue() -> None:
        try:
            with Queue(path) as q:
                told.append(q.enqueue("e").id)
        except Exception as error:  # noqa: BLE001 - the test reports it
            told.append(error)

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        other.execute("CREATE TABLE theirs (name)")
        enqueueing = threading.Thread(target=enqueue)
        enqueueing.start()
        enqueueing.join(0.3)  # several times as long as SQLite waits by itself
        other.execute("COMMIT")
    enqueueing.join()
    with Queue(path) as q:
        assert [job.id for job in q.peek()] == told


def test_a_queue_created_while_its_files_are_checked_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size_of, made = tmp_path / "jobs.db", place.size_of, list[Queue]()

    def look(at: Path) -> int | None:
        found = size_of(at)
        if not made:  # between the first check and the second
            made.append(Queue(path))
            made[0].enqueue("e")
        return found

    monkeypatch.setattr(place, "size_of", look)
    with Queue(path) as q:
        q.enqueue("e")
        assert q.stats().total == 2
    made[0].close()
