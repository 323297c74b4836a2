"""Storages of users: their bugs are reported, and their errors are handled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from casque import (
    DirectQueue,
    HeartbeatManager,
    InMemoryStorage,
    InvalidError,
    Queue,
    StorageError,
)
from casque.stores.document.store import DocumentStore
from casque.testing import FakeClock


class Adapter:
    """A storage that each subclass breaks in one place."""

    def __init__(self) -> None:
        self.inner = InMemoryStorage()

    async def read(self) -> Any:
        return await self.inner.read()

    async def write(self, content: bytes, if_match: str | None = None) -> Any:
        return await self.inner.write(content, if_match)


class ForgetsItsEtag(Adapter):
    async def write(self, content: bytes, if_match: str | None = None) -> Any:
        await super().write(content, if_match)


class IsNotAsync(Adapter):
    def read(self) -> Any:
        return b"", None


class ReadsText(Adapter):
    async def read(self) -> Any:
        return "", None


class TakesTooLittle(Adapter):
    async def write(self, content: bytes) -> Any:  # type: ignore[override]
        return content


@pytest.mark.parametrize(
    ("adapter", "says"),
    [
        (ForgetsItsEtag, "must return the new etag as str, not NoneType"),
        (IsNotAsync, "`read` must be `async def`"),
        (ReadsText, "must return .bytes, etag as str or None., not .str"),
        (TakesTooLittle, "the storage adapter has a bug.*Fix it"),
    ],
)
def test_a_broken_adapter_is_reported_at_once(adapter: type[Adapter], says: str) -> None:
    clock = FakeClock()
    before = clock.monotonic()
    q = DirectQueue(DocumentStore(adapter(), clock))
    with pytest.raises((InvalidError, StorageError), match=says):
        asyncio.run(q.enqueue("e"))
    assert clock.monotonic() == before  # it did not retry


def test_an_error_that_cannot_be_copied_reaches_its_caller() -> None:
    class ThrottledError(StorageError):
        def __init__(self, status: int, reason: str) -> None:
            super().__init__(f"{status} {reason}", outcome_unknown=False)

    class Throttles(Adapter):
        async def write(self, content: bytes, if_match: str | None = None) -> Any:
            raise ThrottledError(503, "slow down")

    q = DirectQueue(DocumentStore(Throttles(), FakeClock()))
    with pytest.raises(StorageError, match="503 slow down"):
        asyncio.run(q.enqueue("e"))


def test_a_class_is_not_a_storage() -> None:
    with pytest.raises(InvalidError, match=r"pass an instance: InMemoryStorage\("):
        Queue(InMemoryStorage)  # type: ignore[arg-type]


def test_heartbeats_end_quietly_when_the_body_acks_the_job_itself() -> None:
    async def test() -> None:
        clock = FakeClock()
        q = DirectQueue(DocumentStore(InMemoryStorage(), clock))
        await q.enqueue("e")
        [job] = await q.dequeue()
        async with HeartbeatManager(q, job) as beating:
            await q.ack(job)
            for _ in range(5):
                clock.advance_to_next()
                for _ in range(20):
                    await asyncio.to_thread(int)
        assert not beating.lost

    asyncio.run(test())


def test_a_list_that_is_too_long_is_refused_whole_and_the_queue_still_works() -> None:
    with Queue("memory://") as q:
        with pytest.raises(StorageError, match="one call has too many") as refusal:
            q.ack_many([str(place) for place in range(100_001)])
        assert not refusal.value.outcome_unknown
        q.enqueue("e")
        assert q.stats().pending == 1


def test_a_queue_says_that_it_cannot_be_pickled() -> None:
    import pickle

    with Queue("memory://") as q, pytest.raises(TypeError, match="pass its URL"):
        pickle.dumps(q)
