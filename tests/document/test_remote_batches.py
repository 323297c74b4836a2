"""A document, and a batch that two processes receive: both answer with the stored result."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from casque.adapters.storage.memory import InMemoryStorage
from casque.rules.operations import Batch, Dequeue, Enqueue, Request
from casque.stores.document.store import DocumentStore
from casque.system.clock import MINUTE_US
from casque.testing import FakeClock
from casque.testing.faults import Fault, FaultyStorage


def test_an_overtaken_process_answers_with_the_stored_claim() -> None:
    claimed, stored = asyncio.run(_overtaken())
    assert claimed == [("a", stored)]


async def _overtaken() -> tuple[list[tuple[str, int]], int]:
    """The claims in the answer of the slower process, and the stored token."""
    clock, storage = FakeClock(), InMemoryStorage()
    other = DocumentStore(storage, clock)
    await other.commit([Batch("v", 1, [Enqueue((Request("a", "q", "e", b"", 0, 25),), 16)])])
    claim = Batch("client", 1, [Dequeue("me", MINUTE_US)], is_remote=True)

    async def overtake() -> None:
        clock.advance(timedelta(seconds=1))
        await other.commit([claim])

    faulty = FaultyStorage(storage, Fault.DELAY, 2, overtake)
    [[leased]] = await DocumentStore(faulty, clock).commit([claim])  # type: ignore[misc]
    assert faulty.fired
    stored = await other.get("a")
    assert stored is not None
    return [(job.id, job.token) for job in leased.jobs], stored.token
