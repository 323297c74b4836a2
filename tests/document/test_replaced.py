"""A process with an open document does not mistake another document for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from casque import CorruptError, DirectQueue, InMemoryStorage, LeaseLostError, Queue
from casque.system.clock import SystemClock


def refused(q: Queue, says: str) -> None:
    uses: tuple[Callable[[], object], ...] = (q.stats, q.dequeue, lambda: q.enqueue("e"))
    for use in uses:
        with pytest.raises(CorruptError, match=says) as caught:
            use()
        assert caught.value.is_replaced


def test_a_process_whose_open_document_was_removed_creates_no_new_one(tmp_path: Path) -> None:
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


def test_a_restored_document_can_be_used_again(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    with Queue(path) as q:
        q.enqueue("e", id="k")
        content = path.read_bytes()
        path.unlink()
        refused(q, "queue.json is gone")
        path.write_bytes(content)
        [job] = q.dequeue()
        q.ack(job)


def test_a_claim_made_after_the_restored_copy_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    with Queue(path) as q, Queue(path) as other:
        q.enqueue("e", id="first")
        q.enqueue("e", id="k")
        q.ack(q.dequeue()[0])
        copy = path.read_bytes()
        [lost] = q.dequeue()
        path.write_bytes(copy)
        [held] = other.dequeue()
        assert held.id == lost.id
        with pytest.raises(LeaseLostError):
            q.ack(lost)
        other.ack(held)


def test_a_document_without_our_fields_is_another_queue(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    with Queue(path) as q:
        q.enqueue("e", id="k")
        document = json.loads(path.read_bytes())
        del document["casque"]
        path.write_text(json.dumps(document))
        refused(q, "queue.json holds another queue")


def test_a_read_begun_before_the_queue_was_created_does_not_report_it_gone() -> None:
    class Slow(InMemoryStorage):
        """A storage whose first answer is late."""

        def __init__(self) -> None:
            super().__init__()
            self.late: list[asyncio.Event] = [asyncio.Event()]

        async def read(self) -> tuple[bytes, str | None]:
            found = await super().read()
            if self.late:
                await self.late.pop().wait()
            return found

    async def main() -> None:
        storage = Slow()
        [gate] = storage.late
        async with DirectQueue(storage) as q:
            look = asyncio.create_task(q.stats())
            await SystemClock().sleep(0, blocking=False)
            await q.enqueue("e")
            gate.set()
            assert (await look).pending == 0

    asyncio.run(main())
