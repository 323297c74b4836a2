"""Who has a document open knows it from another in its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from casque import CorruptError, LeaseLostError, Queue


def refused(q: Queue, says: str) -> None:
    uses: tuple[Callable[[], object], ...] = (q.stats, q.dequeue, lambda: q.enqueue("e"))
    for use in uses:
        with pytest.raises(CorruptError, match=says) as caught:
            use()
        assert caught.value.is_replaced


def test_who_had_a_document_open_that_was_removed_begins_no_other(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    with Queue(path) as q, Queue(path) as idle:
        q.enqueue("e", id="k")
        [lost] = q.dequeue()
        assert idle.stats().processing == 1
        path.unlink()
        for one in (q, idle):
            refused(one, "queue.json is gone")
        assert not path.exists()
        with Queue(path) as fresh:
            fresh.enqueue("e", id="k")
            [held] = fresh.dequeue()
            refused(q, "queue.json holds another queue")
            with pytest.raises(CorruptError):
                q.ack(lost)
            with pytest.raises(LeaseLostError):
                fresh.ack(lost)
            fresh.ack(held)


def test_a_document_that_is_brought_back_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    with Queue(path) as q:
        q.enqueue("e", id="k")
        content = path.read_bytes()
        path.unlink()
        refused(q, "queue.json is gone")
        path.write_bytes(content)
        [job] = q.dequeue()
        q.ack(job)


def test_a_program_that_drops_our_fields_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    with Queue(path) as q:
        q.enqueue("e", id="k")
        document = json.loads(path.read_bytes())
        del document["casque"]
        path.write_text(json.dumps(document))
        refused(q, "queue.json holds another queue")
