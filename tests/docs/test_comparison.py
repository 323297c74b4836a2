"""What the comparison says of other libraries is so, as far as they are installed here."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import huey
import litequeue
import persistqueue
import pytest

from casque import LeaseLostError, Queue
from tests.docs.pages import DOCS

PAGE = " ".join((DOCS / "comparison.md").read_text().split())


@pytest.mark.parametrize("name", ["huey", "litequeue", "persist-queue"])
def test_the_page_names_the_versions_that_were_read(name: str) -> None:
    assert f"{name} {version(name)}" in PAGE


def test_huey_removes_a_task_from_the_storage_when_it_is_taken(tmp_path: Path) -> None:
    assert "huey removes a task from the storage when a worker takes it" in PAGE
    app = huey.SqliteHuey(filename=str(tmp_path / "huey.db"))
    task = app.task()(print)
    task("hello")
    assert app.storage.queue_size() == 1
    assert app.dequeue() is not None
    assert app.storage.queue_size() == 0
    app.storage.close()


def test_an_ack_queue_hands_out_again_what_another_process_has_taken(tmp_path: Path) -> None:
    assert "a process that opens it hands out again what the others have taken" in PAGE
    first = persistqueue.SQLiteAckQueue(str(tmp_path), auto_commit=True)
    first.put("item")
    assert first.get() == "item"
    second = persistqueue.SQLiteAckQueue(str(tmp_path), auto_commit=True)
    assert second.get() == "item"
    first.close()
    second.close()


def test_a_message_of_litequeue_stays_locked_and_a_late_done_is_accepted(tmp_path: Path) -> None:
    assert "stays locked until you call `retry`" in PAGE
    queue = litequeue.LiteQueue(str(tmp_path / "lite.db"))
    queue.put("message")
    taken = queue.pop()
    assert queue.pop() is None
    queue.retry(taken.message_id)
    again = queue.pop()
    queue.done(taken.message_id)  # by the one that lost it
    assert queue.get(again.message_id).status == litequeue.MessageStatus.DONE
    queue.conn.close()


def test_a_late_ack_of_ours_is_refused(tmp_path: Path) -> None:
    with Queue(tmp_path / "jobs.db") as one, Queue(tmp_path / "jobs.db") as two:
        one.enqueue("a")
        [slow] = one.dequeue()
        one.release(slow)
        [again] = two.dequeue()
        with pytest.raises(LeaseLostError):
            one.ack(slow)
        two.ack(again)
