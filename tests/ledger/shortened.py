"""A ledger in memory whose log is shortened within seconds, and the processes that use it.

The clock is the test's. The bucket works in one of two ways: like a folder, where calls never
suspend and the housekeeping runs on a thread; or like an object storage, on an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Literal, TypeVar

import pytest

from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Bucket, Expect, Found, Listed, Version
from casque.errors import CasqueError, StorageError
from casque.job import Job
from casque.rules.operations import Ack, Batch, Dequeue, Enqueue, Operation, Request
from casque.stores.ledger.ledger_bucket import Upkeep, split_key
from casque.stores.ledger.log import number_in
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US, drive
from casque.testing import FakeClock
from tests.conformance.harnesses import BucketClock

UPKEEP = Upkeep(deletion_age_us=60 * SECOND_US, proof_age_us=5 * SECOND_US, snapshot_entries=10)
LONG = timedelta(seconds=70)
"""Longer than the deletion age, and the second by which a bucket's clock may round."""

both_kinds = pytest.mark.parametrize("blocking", [True, False], ids=["folder", "bucket"])

T = TypeVar("T")


class RemoteMemory(MemoryBucket):
    """A bucket whose requests are made on an event loop."""

    blocking = False


class Stopping:
    """A bucket as a process reaches it that is stopped in the middle of a request."""

    def __init__(self, bucket: MemoryBucket) -> None:
        self.name, self.blocking, self.close = bucket.name, bucket.blocking, bucket.close
        self.fails = "nothing"
        """Requests that begin like this are not answered, and have no effect."""
        self.refuses = "nothing"
        """Requests that begin like this are refused."""
        self.asked: list[str] = []
        """What was requested: "put log/", for example."""
        self.keeps = "nothing"
        """Objects whose keys begin like this are not deleted."""
        self.created: list[str] = []
        """The keys of the objects that this process has created."""
        self._bucket = bucket
        self._request = ""
        self._meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._carried_out = False

    def stop_at(
        self,
        request: str,
        meanwhile: Callable[[], Coroutine[Any, Any, None]],
        *,
        carried_out: bool,
    ) -> None:
        """Run `meanwhile` at the next request like "put log/", before or after its effect."""
        self._request, self._meanwhile, self._carried_out = request, meanwhile, carried_out

    @property
    def has_stopped(self) -> bool:
        return self._meanwhile is None

    async def get(self, key: str) -> Found | None:
        return await self._around(f"get {split_key(key)[1]}", lambda: self._bucket.get(key))

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        async def write() -> Version:
            version = await self._bucket.put(key, body, expect=expect)
            self.created.append(split_key(key)[1])
            return version

        return await self._around(f"put {split_key(key)[1]}", write)

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        name = f"list {split_key(prefix)[1]}"
        return await self._around(name, lambda: self._bucket.list(prefix, after=after))

    async def delete(self, key: str) -> None:
        name = split_key(key)[1]
        if not name.startswith(self.keeps):
            await self._around(f"delete {name}", lambda: self._bucket.delete(key))

    async def _around(self, name: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.asked.append(name[: name.find("/") + 1] or name)
        if name.startswith(self.refuses):
            raise StorageError("refused: 403", outcome_unknown=False)
        if name.startswith(self.fails):
            raise StorageError("no answer", outcome_unknown=True)
        meanwhile = self._meanwhile
        if meanwhile is None or not name.startswith(self._request):
            return await ask()
        self._meanwhile = None
        if self._carried_out:
            try:
                return await ask()
            finally:
                await meanwhile()
        await meanwhile()
        return await ask()


class Process:
    """One process that uses the ledger, and waits for its own housekeeping after each call."""

    def __init__(self, store: LedgerStore, name: str) -> None:
        self.store = store
        self.name = name
        self.commits = 0

    async def commit(self, *operations: Operation, number: int = 0) -> list[Any]:
        """Return the outcomes of a new commit, or of the one with this number."""
        self.commits = number or self.commits + 1
        [answer] = await self.store.commit([Batch(self.name, self.commits, list(operations))])
        await self.rest()
        if isinstance(answer, CasqueError):
            raise answer
        return answer

    async def add(self, *ids: str, queue: str = "q", minted: bool = False, number: int = 0) -> None:
        """Add jobs in one commit. If `minted`, it does not need the state."""
        requests = (Request(id, queue, "e", b"", 0, 3, minted=minted) for id in ids)
        [added] = await self.commit(Enqueue(tuple(requests), 16), number=number)
        if isinstance(added, CasqueError):
            raise added

    async def grow(self, entries: int) -> None:
        """Add entries to the log, each with one job."""
        for _ in range(entries):
            await self.add(f"{self.name}-{self.commits + 1}")

    async def claim(self, number: int = 0) -> Job:
        [outcome] = await self.commit(Dequeue(self.name, 600 * SECOND_US, 1), number=number)
        [job] = outcome.jobs
        assert isinstance(job, Job)
        return job

    async def ack(self, job: Job) -> None:
        [error] = await self.commit(Ack(job.id, job.token))
        if error is not None:
            raise error

    async def jobs(self) -> list[str]:
        """Return the ids of all jobs, as this process sees them."""
        found = await self.store.picture()
        return [job.id for job in found.jobs]

    async def rest(self) -> None:
        """Wait until its housekeeping is done."""
        await self.store.housekeeping.background.stop(60)


class Objects:
    """The objects of a ledger."""

    def __init__(self, *, blocking: bool) -> None:
        self.clock = FakeClock()
        kind = MemoryBucket if blocking else RemoteMemory
        self.bucket: MemoryBucket = kind(BucketClock(self.clock))

    def process(self, name: str, bucket: Bucket | None = None, upkeep: Upkeep = UPKEEP) -> Process:
        """Return a new process. The first one creates the ledger, with its `upkeep`."""
        return Process(LedgerStore(bucket or self.bucket, self.clock, upkeep=upkeep), name)

    def keys(self, folder: str = "") -> list[str]:
        """Return the keys in a folder of the ledger, in order."""
        found = sorted(self.bucket._objects)
        return [key for key in found if split_key(key)[1].startswith(folder)]

    def entries(self) -> list[int]:
        """Return the numbers of the entries that exist."""
        return [number for key in self.keys("log/") if (number := number_in(key))]

    def body(self, key: str) -> bytes:
        return self.bucket._objects[key].body

    def remove(self, key: str) -> None:
        del self.bucket._objects[key]

    def replace(self, key: str, body: bytes) -> None:
        self.bucket._objects[key] = self.bucket._objects[key]._replace(body=body)

    async def shorten(self) -> None:
        """Let others continue, until the log up to now is replaced by a snapshot and deleted."""
        before = self.entries()[-1]
        first, second = self.process("first"), self.process("second")
        first.commits = second.commits = before  # so that all their jobs differ
        await first.grow(12)
        self.clock.advance(LONG)
        await second.grow(2)  # its housekeeping starts with the last entry
        assert self.entries()[0] > before, "nothing was deleted"


def run(blocking: bool, main: Callable[[Objects], Coroutine[Any, Any, T]]) -> T:
    """Run `main` with the objects of a new ledger."""
    objects = Objects(blocking=blocking)
    return drive(main(objects)) if blocking else asyncio.run(main(objects))
