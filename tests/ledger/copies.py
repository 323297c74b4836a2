"""Copies: the objects of a bucket in memory, copied, damaged and restored as an operator would."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

from casque import Job, Queue
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import ABSENT, Bucket, Expect, Found, Listed, Version
from casque.stores.ledger.ledger_bucket import MARKER, Upkeep
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import HOUR_US, drive
from casque.testing import FakeClock

EVERY = 10
"""A snapshot is due after this many entries."""
STEPS = ("enqueue", "enqueue", "enqueue", "dequeue", "ack")


class Relayed:
    """A bucket that passes every request on, and calls `before` and `after` around each."""

    blocking = True

    def __init__(
        self,
        bucket: Bucket,
        before: Callable[[str], object] = lambda _: None,
        after: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.name = bucket.name
        self.bucket = bucket
        self._before, self._after = before, after

    async def get(self, key: str) -> Found | None:
        self._before(f"get {key}")
        found = await self.bucket.get(key)
        self._after(f"get {key}")
        return found

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        self._before(f"put {key}")
        version = await self.bucket.put(key, body, expect=expect)
        self._after(f"put {key}")
        return version

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        self._before(f"list {prefix}")
        found = await self.bucket.list(prefix, after=after)
        self._after(f"list {prefix}")
        return found

    async def delete(self, key: str) -> None:
        self._before(f"delete {key}")
        await self.bucket.delete(key)
        self._after(f"delete {key}")

    async def close(self) -> None:
        await self.bucket.close()


def objects(bucket: Bucket) -> dict[str, bytes]:
    """Return everything in the bucket, by key."""
    found: dict[str, bytes] = {}
    while page := drive(bucket.list(after=max(found, default=""))):
        for one in page:
            content = drive(bucket.get(one.key))
            assert content is not None
            found[one.key] = content.body
    return found


def bucket_of(content: dict[str, bytes], clock: FakeClock) -> MemoryBucket:
    """Return a new bucket with these objects, as a tool restores them: all are dated now."""
    bucket = MemoryBucket(clock)
    for key, body in content.items():
        drive(bucket.put(key, body, expect=ABSENT))
    return bucket


def replace(bucket: Bucket, key: str, body: bytes) -> None:
    drive(bucket.delete(key))
    drive(bucket.put(key, body, expect=ABSENT))


def identity_of(bucket: Bucket) -> str:
    found = drive(bucket.get(MARKER))
    assert found is not None
    identity: str = json.loads(found.body)["identity"]
    return identity


def store_on(bucket: Bucket, clock: FakeClock, deletion_age_us: int = HOUR_US) -> LedgerStore:
    upkeep = Upkeep(deletion_age_us=deletion_age_us, snapshot_entries=EVERY)
    store = LedgerStore(bucket, clock, upkeep=upkeep)
    store.announce_to(lambda _: None)
    return store


def worked_on(store: LedgerStore, entries: int) -> None:
    """Write this many entries of every kind, and wait for the snapshots that become due."""
    q, held = Queue(store), list[Job]()
    for number in range(entries):
        step = number % len(STEPS)
        if STEPS[step] == "enqueue":
            q.enqueue("e", b"%d" % number, queue=f"q{number % 3}")
        elif STEPS[step] == "dequeue":
            held += q.dequeue(batch_size=2)
        else:
            q.ack(held.pop())
        drive(store.housekeeping.background.stop(10))
