"""The caller's own bucket instead of an address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casque import BrokerQueue, Bucket, DirectQueue, InvalidError, Lock, Queue, open_store
from casque.buckets.folder import FolderBucket
from casque.buckets.memory import MemoryBucket
from casque.testing import FakeClock

KINDS: list[Callable[[Any], object]] = [Queue, DirectQueue, BrokerQueue, open_store]


@pytest.fixture(params=["memory", "folder"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    return MemoryBucket() if request.param == "memory" else FolderBucket(tmp_path / "queue")


def test_a_queue_lives_in_a_bucket_that_is_passed_to_it(bucket: Bucket) -> None:
    with Queue(bucket) as q:
        q.enqueue("greet", b"Ada", id="greet-ada")
    # The queue closed it, and it may be used again.
    with Queue(bucket) as q, Lock(bucket, "one", timeout=None):
        assert q.enqueue("greet", b"Ada", id="greet-ada").duplicate
        [job] = q.dequeue("greet")
        q.ack(job)
        assert not q.stats().total


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
def test_async_queues_take_a_bucket_too(
    kind: type[DirectQueue | BrokerQueue], bucket: Bucket
) -> None:
    async def run() -> None:
        async with kind(bucket) as q:
            await q.enqueue("greet", b"Ada")
            [job] = await q.dequeue("greet")
            await q.ack(job)

    asyncio.run(run())


def test_a_bucket_is_opened_with_the_clock_of_a_test() -> None:
    clock = FakeClock()
    store = open_store(MemoryBucket(clock), clock=clock)
    assert store.clock is clock
    with Queue(store) as q:
        assert q.enqueue("e").created_us <= clock.now()


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_in_the_place_of_a_bucket_is_refused(kind: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidError, match=r"MemoryBucket is a class; pass an instance"):
        kind(MemoryBucket)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", ["get", "put", "list", "delete"])
def test_an_object_with_some_methods_of_a_bucket_is_refused(
    kind: Callable[[Any], object], missing: str
) -> None:
    class Most:
        name, blocking = "most", True

    for method in {"get", "put", "list", "delete", "close"} - {missing}:
        setattr(Most, method, getattr(MemoryBucket, method))
    with pytest.raises(InvalidError, match=r"Most is not a store: .*`Bucket`"):
        kind(Most())


@pytest.mark.parametrize("kind", KINDS)
def test_the_missing_parts_of_a_bucket_are_named(kind: Callable[[Any], object]) -> None:
    class Almost:
        name = "almost"
        get, put = MemoryBucket.get, MemoryBucket.put
        list, delete = MemoryBucket.list, MemoryBucket.delete

    with pytest.raises(
        InvalidError, match=r"Almost is not a complete .* lacks blocking and close\."
    ):
        kind(Almost())
