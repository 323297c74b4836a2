"""Copies of a queue, made while others write to it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from casque import InvalidError, NewJob, Queue, StorageError
from casque.stores.sqlite import backup
from casque.stores.sqlite.store import SqliteStore
from tests.notes import without_notes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def store_of(q: Queue) -> SqliteStore:
    assert isinstance(q.store, SqliteStore)
    return q.store


def fill(q: Queue, jobs: int) -> None:
    for start in range(0, jobs, 1_000):
        q.enqueue_many([NewJob("e", b"x" * 1_000, id=f"{start + n}") for n in range(1_000)])


def test_a_backup_beside_a_writer_is_of_one_instant_and_ends(path: Path) -> None:
    copy, moved = path.with_name("copy.db"), list[tuple[int, int]]()
    with Queue(path) as q, Queue(path) as writer:
        fill(q, 10_000)

        def write(copied: int, all_: int) -> None:
            # A commit between any two steps: that makes SQLite's own backup start over.
            moved.append((copied, all_))
            writer.enqueue_many([NewJob("e", id=f"{side}-{len(moved)}") for side in ("l", "r")])

        made = store_of(q).backup(copy, progress=write)
        assert q.stats().total == 10_000 + 2 * len(moved)
    assert made == backup.Backup(copy, 10_000, copy.stat().st_size)
    assert len(moved) > 2
    assert moved == sorted(moved)
    assert moved[-1][0] == moved[-1][1] == made.size_bytes
    assert sorted(one.name for one in path.parent.iterdir()) == ["copy.db", "jobs.db"]
    with Queue(copy) as q:
        assert q.stats().total == 10_000
        assert len(q.dequeue(batch_size=5)) == 5


def test_a_backup_holds_what_is_only_in_the_log(path: Path) -> None:
    with Queue(path) as q:
        q.enqueue("e", id="job")
        store_of(q).backup(path.with_name("copy.db"))
    with Queue(path.with_name("copy.db")) as q:
        assert [job.id for job in q.dequeue()] == ["job"]


def test_an_existing_file_is_replaced_only_on_request(path: Path) -> None:
    copy = path.with_name("copy.db")
    copy.write_text("precious")
    with Queue(path) as q:
        q.enqueue("e")
        with pytest.raises(InvalidError, match=r"copy\.db already exists"):
            store_of(q).backup(copy)
        assert copy.read_text() == "precious"
        assert store_of(q).backup(copy, replace=True).jobs == 1
        with pytest.raises(InvalidError, match="is the queue itself"):
            store_of(q).backup(path, replace=True)
        with pytest.raises(InvalidError, match="is a folder"):
            store_of(q).backup(path.parent, replace=True)
        with Queue(copy) as other:
            other.enqueue("e")
            with pytest.raises(InvalidError, match=r"a log, copy\.db-wal"):
                store_of(q).backup(copy, replace=True)


def test_an_incomplete_copy_is_reported_and_deleted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_pages = backup._copy_pages

    def copy_badly(
        source: sqlite3.Connection, made: sqlite3.Connection, progress: backup.Progress
    ) -> tuple[int, int]:
        counts = copy_pages(source, made, progress)
        made.execute("DELETE FROM casque_job WHERE seq IN (SELECT seq FROM casque_job LIMIT 1)")
        made.commit()
        return counts

    monkeypatch.setattr(backup, "_copy_pages", copy_badly)
    with Queue(path) as q:
        fill(q, 1_000)
        with pytest.raises(StorageError, match=r"copy differs.*deleted"):
            store_of(q).backup(path.with_name("copy.db"))
    assert [one.name for one in path.parent.iterdir()] == ["jobs.db"]


def test_a_backup_that_is_interrupted_leaves_nothing_behind(path: Path) -> None:
    with Queue(path) as q:
        fill(q, 10_000)

        def interrupt(*_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store_of(q).backup(path.with_name("copy.db"), progress=interrupt)
        q.enqueue("e")
    assert [one.name for one in path.parent.iterdir()] == ["jobs.db"]


def test_only_a_file_is_replaced(path: Path) -> None:
    pipe = path.with_name("pipe")
    os.mkfifo(pipe)
    with Queue(path) as q:
        q.enqueue("e")
        with pytest.raises(InvalidError, match="not a regular file"):
            store_of(q).backup(pipe, replace=True)
    assert pipe.is_fifo()


_FORKS = """
import os, sys, threading
from casque import Queue, StorageError
from casque.stores.sqlite import forks

forks.PATIENCE_SECONDS = 0.1
q, begun, go = Queue(sys.argv[1]), threading.Event(), threading.Event()
q.enqueue("e")

def wait(copied, of):
    begun.set()
    go.wait()

copying = threading.Thread(target=q.store.backup, args=(sys.argv[2],), kwargs={"progress": wait})
copying.start()
begun.wait()
if (child := os.fork()) == 0:
    try:
        q.enqueue("e")
    except StorageError as error:
        os._exit(7 if "fork" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
go.set()
copying.join()
q.enqueue("e")
print(q.stats().total)
q.close()
"""


def test_the_child_of_a_fork_during_a_backup_is_refused(path: Path) -> None:
    copy = path.with_name("copy.db")
    command = [sys.executable, "-c", _FORKS, str(path), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, without_notes(done.stderr)) == ("2\n", "")
    with Queue(copy) as q:
        assert q.stats().total == 1
