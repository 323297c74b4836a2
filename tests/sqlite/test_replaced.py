"""A file that goes away, or is replaced, while a dequeue waits for a job in it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from casque import Queue
from casque.stores.sqlite.store import SqliteStore
from tests.sqlite.waiting import PROMPTLY, remove, waiting_dequeue


def test_a_dequeue_that_waits_sees_a_job_in_the_file_that_was_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Queue(path) as q, waiting_dequeue(q) as waiting:
        remove(path)
        with Queue(path) as other:
            other.enqueue("e", id="job")
            assert [job.id for job in waiting.result(PROMPTLY)] == ["job"]


def test_a_file_that_was_deleted_is_not_made_anew_by_whoever_only_waits(tmp_path: Path) -> None:
    # Somebody may be putting another in its place, which a log that is made meanwhile would spoil.
    path = tmp_path / "jobs.db"
    with Queue(path) as q, waiting_dequeue(q, timedelta(milliseconds=500)) as waiting:
        remove(path)
        while not waiting.done():
            assert not path.exists() or waiting.done()


def test_who_is_rung_for_another_file_does_not_look_at_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Queue(path) as q:
        q.enqueue("e", id="old")
        store = q.store
        assert isinstance(store, SqliteStore)
        assert q.dequeue()  # its file was looked at just now, and is for a while to come
        remove(path)
        with Queue(path) as other:
            other.enqueue("e", id="new")
            store._watch._doubt()
            assert [job.id for job in q.dequeue()] == ["new"]
