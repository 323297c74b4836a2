"""jqueue's queues on casque's stores: stale jobs, group commit, entering again, conflicts."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from casque.compat.jqueue import (
    BrokerQueue,
    CASConflictError,
    DirectQueue,
    InMemoryStorage,
    InvalidError,
    JobNotFoundError,
    JobStatus,
    JQueueError,
    LeaseLostError,
)
from casque.compat.jqueue.core.group_commit import GroupCommitLoop
from casque.stores.document.store import DocumentStore
from casque.testing import FakeClock
from tests.compat.places import MINUTE, Place


def test_only_requeue_stale_takes_a_job_from_a_direct_queue(place: Place) -> None:
    async def test() -> None:
        a, b = DirectQueue(place.store), DirectQueue(place.store)
        [one, two] = [await a.enqueue("mail", b"1"), await a.enqueue("mail", b"2")]
        await a.dequeue(batch_size=2)
        place.clock.advance(timedelta(days=30))
        assert await b.dequeue() == []
        await a.heartbeat(two.id)
        place.clock.advance(MINUTE)
        assert await b.requeue_stale(timedelta(hours=1)) == 1
        assert [job.id for job in await b.dequeue(batch_size=5)] == [one.id]
        assert await b.requeue_stale(timedelta(seconds=-1)) == 2
        assert await b.requeue_stale(timedelta(0)) == 0

    asyncio.run(test())


def test_a_broker_takes_back_a_job_without_heartbeats_with_any_write(place: Place) -> None:
    async def test() -> None:
        a, broker = DirectQueue(place.store), BrokerQueue(place.store, stale_timeout=MINUTE)
        job = await a.enqueue("mail", b"1")
        await a.dequeue()
        async with broker:
            place.clock.advance(timedelta(seconds=59))
            await broker.enqueue("sms", b"")
            assert len((await broker.read_state()).in_progress_jobs()) == 1
            place.clock.advance(timedelta(seconds=1))
            await broker.enqueue("sms", b"")
            assert (await broker.read_state()).in_progress_jobs() == ()
            assert [one.id for one in await broker.dequeue("mail")] == [job.id]

    asyncio.run(test())


def test_a_stale_timeout_of_nothing_makes_every_job_stale(document: Place) -> None:
    async def test() -> None:
        async with BrokerQueue(document.store, timedelta(seconds=-1)) as q:
            added = await q.enqueue("mail", b"1")
            for _ in range(3):
                [job] = await q.dequeue()
                assert (job.id, job.status) == (added.id, JobStatus.IN_PROGRESS)

    asyncio.run(test())


class CountsWrites(InMemoryStorage):
    writes = 0

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        self.writes += 1
        return await super().write(content, if_match)


def test_concurrent_calls_share_a_commit_and_fail_alone() -> None:
    async def test() -> None:
        storage = CountsWrites()
        async with BrokerQueue(storage) as q:
            wrong = q.ack("nobody")
            told = await asyncio.gather(
                *(q.enqueue("mail", b"%d" % n) for n in range(50)), wrong, return_exceptions=True
            )
            assert isinstance(told.pop(), JobNotFoundError)
            assert storage.writes < 5
            assert len((await q.read_state()).jobs) == 50
            before = storage.writes
            assert await q.dequeue("sms") == []
            assert await q.dequeue("mail", batch_size=0) == []
            assert storage.writes == before  # an empty dequeue writes nothing
            [job] = await q.dequeue("mail")
            assert storage.writes == before + 1
            await q.ack(job.id)

    asyncio.run(test())


def test_a_broker_may_be_entered_again_and_its_claims_still_hold(place: Place) -> None:
    q = BrokerQueue(place.store)

    async def claim() -> str:
        async with q:
            await q.enqueue("mail", b"1")
            [job] = await q.dequeue("mail")
            return job.id

    async def finish(job_id: str) -> None:
        assert len((await q.read_state()).jobs) == 1  # not entered
        async with q, BrokerQueue(place.store) as other:
            place.clock.advance(6 * MINUTE)
            [job] = await other.dequeue("mail")
            with pytest.raises(LeaseLostError):
                await q.ack(job_id)
            await other.ack(job.id)
        async with q:
            assert await q.dequeue() == []

    job_id = asyncio.run(claim())
    asyncio.run(finish(job_id))  # another event loop


def test_a_broker_opens_and_closes_a_store_from_its_address(tmp_path: Path) -> None:
    async def test() -> None:
        q = BrokerQueue(f"sqlite:///{tmp_path}/queue.db")
        async with q:
            await q.enqueue("mail", b"1")
        assert len((await q.read_state()).jobs) == 1
        async with q:
            [job] = await q.dequeue()
            await q.ack(job.id)

    asyncio.run(test())


class Slow(InMemoryStorage):
    async def write(self, content: bytes, if_match: str | None = None) -> str:
        for _ in range(3):
            await asyncio.to_thread(int)
        return await super().write(content, if_match)


def test_leaving_the_context_stores_calls_that_are_under_way() -> None:
    async def test() -> None:
        q = BrokerQueue(Slow())
        async with q:
            calls_under_way = [asyncio.create_task(q.enqueue("mail", b"1")) for _ in range(5)]
            ready = asyncio.Event()
            asyncio.get_running_loop().call_soon(ready.set)
            await ready.wait()
        stored = {job.id for job in (await q.read_state()).jobs}
        assert len(stored) == 5  # before the callers continue
        assert {(await call).id for call in calls_under_way} == stored

    asyncio.run(test())


def test_a_broker_outside_of_its_context_refuses_at_once() -> None:
    async def test() -> None:
        q = BrokerQueue(InMemoryStorage())
        for _ in range(2):
            with pytest.raises(InvalidError, match="write `async with BrokerQueue"):
                await q.enqueue("mail", b"1")
            async with q:
                with pytest.raises(RuntimeError, match="already running"):
                    await q.__aenter__()
        with pytest.raises(JQueueError):
            await q.dequeue()

    asyncio.run(test())


def test_a_loop_that_was_stopped_can_be_started_again() -> None:
    async def test() -> None:
        loop = GroupCommitLoop(storage=InMemoryStorage(), stale_timeout=MINUTE)
        await loop.stop()
        for _ in range(2):
            await loop.start()
            await loop.enqueue("mail", b"1")
            await loop.stop()
        assert len((await loop.read_state()).jobs) == 2

    asyncio.run(test())


class LosesEveryRace(InMemoryStorage):
    tries = 0

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        self.tries += 1
        raise CASConflictError("another writer was faster")


@pytest.mark.parametrize("max_retries", [0, 1, 2, 10])
def test_max_retries_is_the_number_of_writes_that_may_lose(max_retries: int) -> None:
    storage = LosesEveryRace()
    q = DirectQueue(DocumentStore(storage, FakeClock()), max_retries)
    with pytest.raises(CASConflictError):
        asyncio.run(q.enqueue("mail", b"1"))
    assert storage.tries == max(max_retries, 1)


def test_a_broker_gives_up_after_30_seconds_of_lost_races() -> None:
    async def test() -> None:
        clock = FakeClock()
        async with BrokerQueue(DocumentStore(LosesEveryRace(), clock)) as q:
            before = clock.monotonic()
            with pytest.raises(JQueueError):
                await q.enqueue("mail", b"1")
            assert 30e6 < clock.monotonic() - before < 40e6

    asyncio.run(test())
