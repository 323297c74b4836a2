"""The ledger when its bucket fails: at every single request, and in cases found by simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import count
from typing import Literal

import pytest

from casque import BrokerQueue, DirectQueue, StorageError
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import ABSENT, Bucket, Expect, Found, Listed, Version
from casque.queues.async_queue import AsyncQueue
from casque.stores.ledger.ledger_bucket import MARKER, PROBES
from casque.stores.ledger.log import key_of, number_in
from casque.stores.ledger.pacing import WAITING
from casque.stores.ledger.replica import Replica
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US, drive
from casque.testing import FakeClock
from casque.testing.faults import PORT_FAULTS, Fault, FaultyBucket
from tests.ledger.places import home_of


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        await test

    asyncio.run(main())


class Passing:
    """A bucket that passes every request on, as a network would; subclasses add faults."""

    blocking = False

    def __init__(self, bucket: Bucket) -> None:
        self.name = bucket.name
        self._bucket = bucket

    async def get(self, key: str) -> Found | None:
        return await self._bucket.get(key)

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        return await self._bucket.put(key, body, expect=expect)

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        return await self._bucket.list(prefix, after=after)

    async def delete(self, key: str) -> None:
        await self._bucket.delete(key)

    async def close(self) -> None:
        await self._bucket.close()


def replayed(bucket: MemoryBucket) -> Replica:
    """Return the state of the stored log."""
    replica, home = Replica(blind=False), home_of(bucket)
    while (found := drive(home.get(key_of(replica.number + 1)))) is not None:
        replica.take(found.body, key_of(replica.number + 1))
    return replica


# -- G5: one fault, at each request of a run in turn ---------------------------


async def three_jobs_start_to_finish(q: AsyncQueue) -> list[int]:
    """Take three jobs through every kind of write, two added blindly; return the tokens."""
    ids = [(await q.enqueue("mine")).id, (await q.enqueue("mine")).id, "given"]
    assert not (await q.enqueue("mine", id="given")).duplicate
    [job] = await q.dequeue("mine")
    await q.heartbeat(job)
    await q.nack(job, error="once")
    tokens, done = [job.token], list[str]()
    while len(done) < len(ids):
        jobs = await q.dequeue("mine", batch_size=2)
        assert jobs, f"a job is lost; these are done: {done}"
        for job in jobs:
            tokens.append(job.token)
            await q.ack(job)
            done.append(job.id)
    assert sorted(done) == sorted(ids)
    assert not await q.dequeue("mine")
    return tokens


def sweep(fault: Fault, kind: type[AsyncQueue], *, has_rival: bool) -> int:
    """Run with the first request failing, then the second …; return the number of runs."""

    async def one(nth: int) -> bool:
        clock = FakeClock(seed=nth)
        bucket = MemoryBucket(clock)
        rival = DirectQueue(LedgerStore(Passing(bucket), clock))

        async def three_commits() -> None:
            await rival.enqueue("theirs")
            [claimed] = await rival.dequeue("theirs")
            await rival.ack(claimed)

        begun: list[asyncio.Task[None]] = []

        async def competitor() -> None:
            # The failing request may be cancelled, because a copy of it is answered first.
            begun.append(asyncio.create_task(three_commits()))
            await asyncio.shield(begun[-1])

        faulty = FaultyBucket(bucket, fault, nth, competitor if has_rival else None)
        async with kind(LedgerStore(faulty, clock)) as q:
            tokens = await three_jobs_start_to_finish(q)
            await asyncio.gather(*begun)
        assert tokens == sorted(set(tokens)), "a token was used twice"
        state = replayed(bucket).state
        assert state is not None
        assert not state.jobs, "a job is there twice"
        assert state.token >= tokens[-1]
        return faulty.fired

    for nth in count(1):
        if not asyncio.run(one(nth)):
            return nth
    raise AssertionError


@pytest.mark.parametrize("has_rival", [False, True], ids=["alone", "with a rival"])
@pytest.mark.parametrize("fault", PORT_FAULTS)
@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
def test_one_fault_at_any_request_neither_loses_nor_doubles_a_job(
    fault: Fault, kind: type[AsyncQueue], has_rival: bool
) -> None:
    assert sweep(fault, kind, has_rival=has_rival) > 25  # it went over all of a run's requests


# -- what the simulation has found ---------------------------------------------


def test_a_refusal_after_a_lost_reply_does_not_make_the_outcome_known() -> None:
    class Moody(Passing):
        """The first entry is stored and its reply lost; then two requests are forbidden."""

        forbidden = 0

        async def get(self, key: str) -> Found | None:
            self._check(key)
            return await super().get(key)

        async def put(
            self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
        ) -> Version:
            self._check(key)
            version = await super().put(key, body, expect=expect)
            if number_in(key) == 1:
                self.forbidden = 5  # the reads ahead are as many as four at once
                raise StorageError("the reply was lost")
            return version

        def _check(self, key: str) -> None:
            if number_in(key) and self.forbidden:
                self.forbidden -= 1
                raise StorageError("403", outcome_unknown=False)

    async def test() -> None:
        clock = FakeClock()
        bucket = MemoryBucket(clock)
        q = DirectQueue(LedgerStore(Moody(bucket), clock))
        assert not (await q.enqueue("e", id="job")).duplicate
        assert replayed(bucket).number == 1

    run(test())


def test_a_stamp_whose_reply_was_lost_does_not_set_the_time() -> None:
    class Silent(Passing):
        """The first `lost` writes are carried out, and get no answer for 12 s."""

        def __init__(self, bucket: Bucket, clock: FakeClock, lost: int) -> None:
            super().__init__(bucket)
            self._clock = clock
            self._lost = lost

        async def put(
            self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
        ) -> Version:
            version = await super().put(key, body, expect=expect)
            if key.startswith(PROBES) and self._lost:
                self._lost -= 1
                self._clock.advance(timedelta(seconds=12))
                raise StorageError("the reply was lost")
            return version

    async def test(lost: int) -> None:
        clock = FakeClock()
        q = DirectQueue(LedgerStore(Silent(MemoryBucket(clock), clock, lost), clock))
        job = await q.enqueue("e")
        assert clock.now() - SECOND_US <= job.created_us <= clock.now()

    for lost in range(3):
        run(test(lost))


def test_a_ledger_that_another_process_is_just_creating_is_accepted() -> None:
    class Early(Passing):
        """It looked for the mark just before there was one."""

        def __init__(self, bucket: Bucket, meanwhile: Callable[[], Awaitable[None]]) -> None:
            super().__init__(bucket)
            self._meanwhile: Callable[[], Awaitable[None]] | None = meanwhile

        async def get(self, key: str) -> Found | None:
            found = await super().get(key)
            if key == MARKER and self._meanwhile is not None:
                await self._meanwhile()
                self._meanwhile = None
            return found

    async def test() -> None:
        clock = FakeClock()
        bucket = MemoryBucket(clock)

        async def meanwhile() -> None:
            await DirectQueue(LedgerStore(Passing(bucket), clock)).enqueue("e", id="first")
            word = f"{WAITING}018cc251-f400-7123-8abc-0123456789ab-1000"
            await home_of(bucket).put(word, b"", expect=ABSENT)

        q = DirectQueue(LedgerStore(Early(bucket, meanwhile), clock))
        assert (await q.enqueue("e", id="first")).duplicate

    run(test())


# -- lost races ----------------------------------------------------------------


class Beaten(Passing):
    """A rival writes some entries before each put to the log, as often as it `loses`."""

    loses = 0
    entries = 1
    reads = 0

    def __init__(self, bucket: Bucket, rival: DirectQueue) -> None:
        super().__init__(bucket)
        self._rival = rival

    async def get(self, key: str) -> Found | None:
        self.reads += number_in(key) is not None
        return await super().get(key)

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        if number_in(key) and self.loses:
            self.loses -= 1
            for _ in range(self.entries):
                await self._rival.enqueue("theirs")
        return await super().put(key, body, expect=expect)


@pytest.mark.parametrize(("entries", "most"), [(1, 4), (2, 4), (10, 32)])
def test_a_lost_race_costs_few_reads_more_than_there_are_entries(entries: int, most: int) -> None:
    async def test() -> None:
        clock, losses = FakeClock(), 6
        bucket = MemoryBucket(clock)
        beaten = Beaten(bucket, DirectQueue(LedgerStore(Passing(bucket), clock)))
        q = DirectQueue(LedgerStore(beaten, clock))
        await q.enqueue("mine", id="0")
        beaten.reads, beaten.loses, beaten.entries = 0, losses, entries
        await q.enqueue("mine", id="1")
        assert not beaten.loses
        assert beaten.reads <= losses * most

    run(test())
