"""jqueue's queues on casque's stores: its calls by id, with fencing underneath."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import casque
from casque.compat.jqueue import (
    BrokerQueue,
    CorruptError,
    DirectQueue,
    HeartbeatManager,
    InMemoryStorage,
    InvalidError,
    Job,
    JobNotFoundError,
    JobStatus,
    LeaseLostError,
    QueueState,
)
from casque.compat.jqueue.core import calls
from tests.compat.places import MINUTE, TWO_QUEUES, AnyQueue, Place


@pytest.mark.parametrize("kind", TWO_QUEUES)
def test_a_job_from_enqueue_to_ack(place: Place, kind: type[AnyQueue]) -> None:
    async def test() -> None:
        async with place.open(kind) as q:
            later = await q.enqueue("mail", b"later", 10)
            first = await q.enqueue("mail", b"first", priority=-1)
            await q.enqueue("sms", b"other")
            assert (first.status, first.heartbeat_at) == (JobStatus.QUEUED, None)
            [claimed] = await q.dequeue("mail")
            assert (claimed.id, claimed.status) == (first.id, JobStatus.IN_PROGRESS)
            assert claimed.heartbeat_at is not None
            place.clock.advance(MINUTE)
            await q.heartbeat(claimed.id)
            state = await q.read_state()
            assert isinstance(state, QueueState)
            beaten = state.find(claimed.id)
            assert beaten is not None
            assert beaten.heartbeat_at == claimed.heartbeat_at + MINUTE
            await q.nack(claimed.id)
            back = (await q.read_state()).find(claimed.id)
            assert back is not None
            assert (back.status, back.heartbeat_at) == (JobStatus.QUEUED, None)
            rest = await q.dequeue(batch_size=10)
            assert [job.payload for job in rest] == [b"first", b"other", b"later"]
            for job in rest:
                await q.ack(job.id)
            assert await q.dequeue() == []
            assert (await q.read_state()).find(later.id) is None
            assert (await q.read_state()).jobs == ()

    asyncio.run(test())


@pytest.mark.parametrize("kind", TWO_QUEUES)
def test_a_job_that_does_not_exist_is_not_found(kind: type[AnyQueue], document: Place) -> None:
    async def test() -> None:
        async with document.open(kind) as q:
            for call in (q.ack, q.nack, q.heartbeat):
                with pytest.raises(JobNotFoundError) as caught:
                    await call("nobody")
                assert caught.value.job_id == "nobody"
                assert not isinstance(caught.value, LeaseLostError)

    asyncio.run(test())


@pytest.mark.parametrize("kind", TWO_QUEUES)
@pytest.mark.parametrize("call", ["ack", "nack", "heartbeat"])
def test_a_worker_that_lost_its_job_cannot_change_it(
    place: Place, kind: type[AnyQueue], call: str
) -> None:
    async def test() -> None:
        async with place.open(kind) as a, place.open(BrokerQueue) as b:
            added = await a.enqueue("mail", b"1")
            await a.dequeue("mail")
            place.clock.advance(6 * MINUTE)
            [again] = await b.dequeue("mail")
            before = await b.read_state()
            with pytest.raises(LeaseLostError) as caught:
                await getattr(a, call)(added.id)
            assert isinstance(caught.value, JobNotFoundError)
            assert caught.value.job_id == added.id
            assert await b.read_state() == before
            await b.ack(again.id)
            assert (await b.read_state()).jobs == ()

    asyncio.run(test())


@pytest.mark.parametrize("kind", TWO_QUEUES)
def test_a_late_ack_is_accepted_while_no_other_worker_has_the_job(
    place: Place, kind: type[AnyQueue]
) -> None:
    async def test() -> None:
        async with place.open(kind) as a, place.open(BrokerQueue) as b:
            added = await a.enqueue("video", b"1")
            await a.dequeue("video")
            place.clock.advance(6 * MINUTE)
            assert await b.dequeue("mail") == []  # its sweep has queued the job again
            found = (await b.read_state()).find(added.id)
            assert found is not None
            assert found.status is JobStatus.QUEUED
            await a.ack(added.id)
            assert (await b.read_state()).jobs == ()

    asyncio.run(test())


@pytest.mark.parametrize("kind", TWO_QUEUES)
def test_a_worker_that_nacked_its_job_does_not_get_it_back_by_a_late_call(
    document: Place, kind: type[AnyQueue]
) -> None:
    async def test() -> None:
        async with document.open(kind) as a, document.open(kind) as b:
            await a.enqueue("mail", b"1")
            [job] = await a.dequeue()
            await a.nack(job.id)
            await b.dequeue()
            for call in (a.heartbeat, a.nack, a.ack):
                with pytest.raises(LeaseLostError):
                    await call(job.id)
            await b.nack(job.id)
            await a.dequeue()
            await a.ack(job.id)

    asyncio.run(test())


def test_a_queue_object_that_did_not_claim_the_job_means_the_current_claim(document: Place) -> None:
    async def test() -> None:
        jobs = [await DirectQueue(document.store).enqueue("mail", b"1") for _ in range(3)]
        assert len(await DirectQueue(document.store).dequeue("mail", batch_size=3)) == 3
        await DirectQueue(document.store).heartbeat(jobs[0].id)
        await DirectQueue(document.store).ack(jobs[0].id)
        await DirectQueue(document.store).nack(jobs[1].id)
        state = await DirectQueue(document.store).read_state()
        assert [job.status.value for job in state.jobs] == ["queued", "in_progress"]

    asyncio.run(test())


@pytest.mark.parametrize("kind", TWO_QUEUES)
def test_a_queued_job_can_be_acked_and_nacked_but_has_no_heartbeat(
    document: Place, kind: type[AnyQueue]
) -> None:
    async def test() -> None:
        async with document.open(kind) as q:
            job = await q.enqueue("mail", b"1")
            await q.nack(job.id)
            with pytest.raises(LeaseLostError):
                await q.heartbeat(job.id)
            assert [one.id for one in (await q.read_state()).queued_jobs()] == [job.id]
            await q.ack(job.id)
            assert (await q.read_state()).jobs == ()

    asyncio.run(test())


def test_a_dead_job_can_be_acked_and_nacked(document: Place) -> None:
    async def test() -> None:
        q = DirectQueue(document.store)
        first, second = [await q.enqueue("mail", b"1") for _ in range(2)]
        main = casque.DirectQueue(document.store)
        for job in await main.dequeue(batch_size=2):
            await main.fail(job)
        await q.ack(first.id)
        await q.nack(second.id)
        [left] = (await q.read_state()).jobs
        assert (left.id, left.status) == (second.id, JobStatus.QUEUED)

    asyncio.run(test())


@pytest.mark.parametrize("kind", TWO_QUEUES)
def test_a_job_is_tried_for_ever(document: Place, kind: type[AnyQueue]) -> None:
    async def test() -> None:
        async with document.open(kind) as q:
            added = await q.enqueue("mail", b"1")
            for _ in range(30):  # more than the 25 attempts of casque
                [job] = await q.dequeue()
                await q.nack(job.id)
            [job] = await q.dequeue()
            assert job.id == added.id

    asyncio.run(test())


def test_a_nacked_job_waits_behind_the_others_of_its_priority(document: Place) -> None:
    async def test() -> None:
        q = DirectQueue(document.store)
        bad = await q.enqueue("mail", b"bad")
        document.clock.advance(MINUTE)
        await q.enqueue("mail", b"good")
        document.clock.advance(MINUTE)
        await q.dequeue()
        await q.nack(bad.id)
        assert [job.payload for job in await q.dequeue(batch_size=2)] == [b"good", b"bad"]
        await q.enqueue("mail", b"new")
        document.clock.advance(MINUTE)
        assert await q.requeue_stale(timedelta(0)) == 2
        assert [job.payload for job in await q.dequeue()] == [b"new"]

    asyncio.run(test())


@pytest.mark.parametrize("kind", TWO_QUEUES)
def test_wrong_arguments_are_refused_and_nothing_is_stored(
    document: Place, kind: type[AnyQueue]
) -> None:
    async def test() -> None:
        async with document.open(kind) as q:
            for entrypoint, payload in (("", b""), ("x" * 513, b""), ("x", b"0" * (16 << 20 | 1))):
                with pytest.raises(InvalidError):
                    await q.enqueue(entrypoint, payload)
            for wrong in (5, None, bytearray(b"1")):
                with pytest.raises(ValueError, match="payload"):
                    await q.enqueue("mail", wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidError, match="batch_size"):
                await q.dequeue(batch_size=-1)
            assert (await q.read_state()).version == 0

    asyncio.run(test())


def test_wrong_times_and_counts_are_refused_with_a_remedy() -> None:
    storage = InMemoryStorage()
    with pytest.raises(InvalidError, match=r"write timedelta\(seconds=5\)"):
        BrokerQueue(storage, stale_timeout=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="`max_retries` must be a whole number"):
        DirectQueue(storage, max_retries="3")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match=r"write timedelta\(seconds=5\)"):
        asyncio.run(DirectQueue(storage).requeue_stale(5))  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="`id` must be text"):
        asyncio.run(DirectQueue(storage).ack(Job.new("mail", b"")))  # type: ignore[arg-type]
    wrong = HeartbeatManager(DirectQueue(storage), "one", interval=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match=r"write timedelta\(seconds=5\)"):
        asyncio.run(wrong.__aenter__())


def test_what_is_no_storage_is_refused() -> None:
    for kind in TWO_QUEUES:
        with pytest.raises(InvalidError, match="is not a store"):
            kind(object())


def test_bytes_that_are_no_queue_are_refused_and_kept() -> None:
    async def test() -> None:
        storage = InMemoryStorage(b'{"version": 1')
        with pytest.raises(CorruptError):
            await DirectQueue(storage).enqueue("mail", b"1")
        assert await storage.read() == (b'{"version": 1', "0")

    asyncio.run(test())


def test_jobs_with_a_status_that_jqueue_lacks_are_not_shown(document: Place) -> None:
    async def test() -> None:
        main, q = casque.DirectQueue(document.store), DirectQueue(document.store)
        await main.enqueue("mail", b"1", id="done", retain=timedelta(days=1))
        [job] = await main.dequeue()
        await main.ack(job)
        await main.cancel(await main.enqueue("mail", b"2"))
        await q.enqueue("mail", b"3")
        assert [job.payload for job in (await q.read_state()).jobs] == [b"3"]

    asyncio.run(test())


def test_a_queue_keeps_its_newest_claims(monkeypatch: pytest.MonkeyPatch, document: Place) -> None:
    async def test() -> None:
        monkeypatch.setattr(calls, "CLAIMS_KEPT", 2)
        a, b = DirectQueue(document.store), DirectQueue(document.store)
        jobs = [await a.enqueue("mail", b"%d" % n) for n in range(4)]
        await a.dequeue(batch_size=4)
        assert await b.requeue_stale(timedelta(0)) == 4
        await b.dequeue(batch_size=4)
        for job in jobs[2:]:
            with pytest.raises(LeaseLostError):
                await a.ack(job.id)
        for job in jobs[:2]:  # these claims were dropped: the call means b's
            await a.ack(job.id)

    asyncio.run(test())


def test_the_repr_shows_the_parameters() -> None:
    assert repr(DirectQueue("memory://")) == "DirectQueue(storage='memory://', max_retries=10)"
    assert "stale_timeout=" in repr(BrokerQueue("memory://"))
