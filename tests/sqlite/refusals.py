"""Refusals: every call of a queue fails with the same error, and its folder does not change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from casque import CasqueError, CorruptError, NewJob, Queue
from casque.testing import Rig
from casque.testing.rig import FLAVOURS, Flavour
from tests.conformance.harnesses import SqliteHarness
from tests.conformance.untouched import SECOND, disk

CHANGES: dict[str, Callable[[Any], Awaitable[object]]] = {
    "enqueue": lambda q: q.enqueue("e"),
    "enqueue_many": lambda q: q.enqueue_many([NewJob("e"), NewJob("f")]),
    "dequeue": lambda q: q.dequeue(),
    "dequeue by id": lambda q: q.dequeue(id="x"),
    "dequeue with a wait": lambda q: q.dequeue(wait=SECOND),
    "ack": lambda q: q.ack("x"),
    "cancel": lambda q: q.cancel("x"),
    "purge": lambda q: q.purge(older_than=SECOND),
    "pause": lambda q: q.pause("a"),
    "drop": lambda q: q.drop("a"),
}
LOOKS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "get": lambda q: q.get("x"),
    "peek": lambda q: q.peek(),
    "stats": lambda q: q.stats(),
    "queues": lambda q: q.queues(),
    "next_run_at": lambda q: q.next_run_at("a"),
    "read_state": lambda q: q.read_state(),
}


def by_turns(name: str, cases: Iterable[Any]) -> pytest.MarkDecorator:
    """Run each case with one flavour of queue, and each flavour with some cases.

    That is enough, because the store decides.
    """
    return pytest.mark.parametrize(("flavour", name), list(zip(cycle(FLAVOURS), cases)))


@asynccontextmanager
async def opened(flavour: Flavour, folder: Path) -> AsyncIterator[Any]:
    """A queue of that flavour on folder/jobs.db; everything is closed at the end."""
    harness = SqliteHarness(folder)
    rig = Rig(harness, flavour)
    try:
        yield await rig.worker()
    finally:
        await rig.close()
        for store in harness._stores:
            await store.close()


def refuses(
    flavour: Flavour, folder: Path, says: str, error: type[CasqueError] = CorruptError
) -> None:
    """Every call on folder/jobs.db raises that error, and no byte in the folder changes.

    The error names the file, and its outcome is not unknown.
    """

    async def run() -> None:
        before = disk(folder)
        async with opened(flavour, folder) as q:
            for name, call in {**CHANGES, **LOOKS}.items():
                with pytest.raises(error, match=f"(?s){says}") as refused:
                    await call(q)
                assert re.search(rf"{re.escape(str(folder / 'jobs.db'))}\b", str(refused.value))
                assert not getattr(refused.value, "outcome_unknown", False), name
                assert disk(folder) == before, f"{name} changed something"
        assert disk(folder) == before, "closing changed something"

    asyncio.run(run())


def make_queue(folder: Path) -> bytes:
    """Create a closed queue with a few jobs in folder/jobs.db; returns the content of the file."""
    with Queue(folder / "jobs.db") as q:
        q.enqueue_many([NewJob("e", b"data" * 200, queue=name) for name in "abc" * 20])
        q.nack(q.dequeue()[0], error="no luck")
    assert [path.name for path in folder.iterdir()] == ["jobs.db"]
    return (folder / "jobs.db").read_bytes()
