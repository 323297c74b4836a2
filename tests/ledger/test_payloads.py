"""Large payloads: objects of their own, which burden neither the log nor any memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Literal

import pytest

from casque import BrokerQueue, DirectQueue, JobStatus, NewJob, Queue, StorageError
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Expect, Found, Version
from casque.job import Job
from casque.rules.operations import Batch, Enqueue, Request
from casque.stores.ledger.apart_payload import LARGE_BYTES, is_payload
from casque.stores.ledger.ledger_bucket import Upkeep, split_key
from casque.stores.ledger.log import number_in
from casque.stores.ledger.payload_objects import PayloadObjects
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US, drive
from casque.testing.fakeclock import FakeClock
from casque.testing.simulation.clock import SimClock
from tests.ledger.virtual import Distant, in_virtual_time

LARGE = bytes(range(256)) * 64
SHORT = Upkeep(deletion_age_us=60 * SECOND_US, proof_age_us=10 * SECOND_US, snapshot_entries=10_000)
ORPHAN_SECONDS = SHORT.orphan_age_us / SECOND_US


def payloads(bucket: MemoryBucket) -> list[str]:
    return [key for key in sorted(bucket._objects) if is_payload(split_key(key)[1])]


def log_bytes(bucket: MemoryBucket) -> int:
    return sum(one.size for one in drive(bucket.list()) if number_in(one.key))


def test_a_large_payload_is_neither_in_the_log_nor_in_the_state() -> None:
    bucket = MemoryBucket()
    store = LedgerStore(bucket)
    with Queue(store) as q:
        small, large = q.enqueue("e", bytes(LARGE_BYTES)), q.enqueue("e", bytes(LARGE_BYTES + 1))
        assert len(payloads(bucket)) == 1
        assert LARGE_BYTES < log_bytes(bucket) < LARGE_BYTES + 500
        q.queues()  # reads the log
        assert store._reader.replica is not None
        assert store._reader.replica.state is not None
        kept = store._reader.replica.state.jobs[large.id].payload
        assert kept.__sizeof__() < 100
        assert q.get(small.id) is not None


READS: dict[str, Callable[[Queue, Job], Job | None]] = {
    "get": lambda q, job: q.get(job.id),
    "peek": lambda q, job: q.peek()[0],
    "jobs": lambda q, job: q.jobs()[0],
    "read_state": lambda q, job: q.read_state().find(job.id),
    "dequeue": lambda q, job: q.dequeue()[0],
    "enqueue again": lambda q, job: q.enqueue("e", b"", id=job.id),
    "nack": lambda q, job: q.nack(q.dequeue()[0]),
    "release": lambda q, job: q.release(q.dequeue()[0]),
}


@pytest.mark.parametrize("name", READS)
def test_every_answer_has_the_whole_payload(name: str) -> None:
    bucket = MemoryBucket()
    with Queue(LedgerStore(bucket)) as q, Queue(LedgerStore(bucket)) as other:
        added = q.enqueue("e", LARGE, id="mine")
        assert added.payload == LARGE
        found = READS[name](other, added)
        assert found is not None
        assert found.payload == LARGE


def test_every_call_that_adds_a_job_stores_its_payload_apart() -> None:
    bucket = MemoryBucket()
    with Queue(LedgerStore(bucket)) as q:
        jobs = q.enqueue_many([NewJob("e", LARGE + bytes([n])) for n in range(40)])
        assert [job.payload[-1] for job in jobs] == list(range(40))
        [job] = q.dequeue()
        q.ack(job, enqueue=[NewJob("next", LARGE)])
        [after] = q.dequeue("next")
        assert after.payload == LARGE
    assert len(payloads(bucket)) == 40
    assert log_bytes(bucket) < 10_000


def test_heartbeats_do_not_read_the_payload_again() -> None:
    class Counting(MemoryBucket):
        read = 0

        async def get(self, key: str) -> Found | None:
            self.read += is_payload(split_key(key)[1])
            return await super().get(key)

    bucket = Counting()
    with Queue(LedgerStore(bucket)) as q, Queue(LedgerStore(bucket)) as other:
        other.enqueue("e", LARGE)
        [job] = q.dequeue()
        for _ in range(5):
            assert q.heartbeat(job).payload == LARGE
        assert bucket.read == 1


ENDS: dict[str, Callable[[Queue, Job], Any]] = {
    "ack": lambda q, job: q.ack(q.dequeue()[0]),
    "purge": lambda q, job: (q.fail(q.dequeue()[0]), q.purge(older_than=timedelta(0))),
    "drop": lambda q, job: q.drop("default"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_payload_is_deleted_with_its_job(name: str) -> None:
    bucket = MemoryBucket()
    with Queue(LedgerStore(bucket)) as q:
        job = q.enqueue("e", LARGE)
        assert payloads(bucket)
        ENDS[name](q, job)
        assert not payloads(bucket)


def test_a_completed_job_that_is_kept_has_no_large_payload() -> None:
    bucket = MemoryBucket()
    with Queue(LedgerStore(bucket)) as q:
        job = q.enqueue("e", LARGE, retain=timedelta(days=1))
        q.ack(q.dequeue()[0])
        kept = q.get(job.id)
        assert kept is not None
        assert (kept.status, kept.payload) == (JobStatus.COMPLETED, b"")
    assert not payloads(bucket)


class Refusing(MemoryBucket):
    """A bucket that does not answer while `what` is asked for."""

    what = ""

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        if self.what == "log" and number_in(key):
            raise StorageError("refused", outcome_unknown=False)
        if self.what == "payload" and is_payload(split_key(key)[1]):
            raise StorageError("refused", outcome_unknown=False)
        return await super().put(key, body, expect=expect)


def test_a_payload_outlives_an_ack_that_is_not_stored() -> None:
    bucket = Refusing()
    with Queue(LedgerStore(bucket)) as q:
        q.enqueue("e", LARGE)
        [job] = q.dequeue()
        bucket.what = "log"
        with pytest.raises(StorageError):
            q.ack(job)
        assert payloads(bucket)
        bucket.what = ""
        q.release(job)
        assert q.dequeue()[0].payload == LARGE


def test_an_enqueue_whose_payload_is_refused_stores_nothing() -> None:
    bucket = Refusing()
    with Queue(LedgerStore(bucket)) as q:
        bucket.what = "payload"
        with pytest.raises(StorageError, match="Nothing was enqueued") as refused:
            q.enqueue("e", LARGE)
        assert not refused.value.outcome_unknown
        bucket.what = ""
        assert q.stats().total == 0


def test_a_job_whose_payload_is_missing_is_dead_and_holds_nobody_up() -> None:
    bucket = MemoryBucket()
    with Queue(LedgerStore(bucket)) as q:
        lost, whole = q.enqueue("e", LARGE), q.enqueue("e", b"small")
        [key] = payloads(bucket)
        drive(bucket.delete(key))
        assert [job.id for job in q.dequeue(batch_size=2)] == [whole.id]
        dead = q.get(lost.id)
        assert dead is not None
        assert dead.status is JobStatus.DEAD
        assert "payload missing" in str(dead.error)
        assert q.dequeue() == []


def late_main(
    main: Callable[[SimClock, Distant, LedgerStore], Awaitable[None]],
) -> Callable[[SimClock], Any]:
    async def run(clock: SimClock) -> None:
        bucket = Distant(clock)
        await main(clock, bucket, LedgerStore(bucket, clock, upkeep=SHORT))

    return run


async def sleep(clock: SimClock, seconds: float) -> None:
    await clock.sleep(int(seconds * SECOND_US), blocking=False)


def test_payloads_that_no_job_refers_to_are_deleted_when_they_are_old() -> None:
    async def main(clock: SimClock, bucket: Distant, store: LedgerStore) -> None:
        async with BrokerQueue(store) as q:
            await q.queues()  # a producer that knows no state deletes nothing
            kept = await q.enqueue("e", LARGE, queue="later")
            [used] = payloads(bucket)
            await PayloadObjects(store._requests).put(
                [Batch("w", 1, [Enqueue((Request("r", "default", "e", LARGE, 0, 1),), 1)])]
            )
            assert len(payloads(bucket)) == 2
            for _ in range(20):  # nothing is deleted early
                await sleep(clock, ORPHAN_SECONDS / 24)
                await q.enqueue("e")
            assert len(payloads(bucket)) == 2
            for _ in range(10):
                await sleep(clock, ORPHAN_SECONDS / 24)
                await q.enqueue("e")
            await sleep(clock, 10)
            assert payloads(bucket) == [used]
            found = await q.get(kept.id)
            assert found is not None
            assert found.payload == LARGE

    in_virtual_time(late_main(main))


def test_payloads_stored_long_before_their_commit_are_stored_again() -> None:
    """Between the two, the process was suspended: they may be deleted as left behind."""

    async def main(clock: SimClock, bucket: Distant, store: LedgerStore) -> None:
        real = store._payloads.put

        async def put(batches: Any) -> Any:
            prepared = await real(batches)
            if len(payloads(bucket)) == 1:
                await sleep(clock, 2 * ORPHAN_SECONDS)
            return prepared

        store._payloads.put = put  # type: ignore[method-assign]
        async with DirectQueue(store) as q:
            job = await q.enqueue("e", LARGE)
            first, _ = payloads(bucket)
            await bucket.delete(first)
            found = await q.get(job.id)
            assert found is not None
            assert found.payload == LARGE

    in_virtual_time(late_main(main))


@pytest.mark.parametrize("is_suspended", [True, False])
def test_an_entry_that_lands_after_its_payload_was_deleted_is_not_acknowledged(
    is_suspended: bool,
) -> None:
    """The process is suspended, or its request is under way, until the payload counts as left."""

    async def main(clock: SimClock, bucket: Distant, store: LedgerStore) -> None:
        async with DirectQueue(store) as q, DirectQueue(LedgerStore(bucket, clock)) as worker:
            await q.enqueue("warm up")
            real, tasks = bucket.put, list[asyncio.Task[Version]]()

            async def late(key: str, body: bytes, **options: Any) -> Version:
                await sleep(clock, 2 * ORPHAN_SECONDS)
                del bucket._objects[payloads(bucket)[0]]  # by another process, as left behind
                return await real(key, body, **options)

            async def put(key: str, body: bytes, **options: Any) -> Version:
                if number_in(key) != 2:
                    return await real(key, body, **options)
                if is_suspended:
                    version = await real(key, body, **options)
                    clock._world.elapsed_us += int(2 * ORPHAN_SECONDS * SECOND_US)
                    del bucket._objects[payloads(bucket)[0]]
                    return version
                if not tasks:
                    tasks.append(asyncio.ensure_future(late(key, body, **options)))
                raise StorageError("no answer")

            bucket.put = put  # type: ignore[method-assign]
            with pytest.raises(StorageError) as unknown:
                await q.enqueue("e", LARGE)
            assert unknown.value.outcome_unknown
            await asyncio.gather(*tasks)
            assert await worker.dequeue("e") == []
            [dead] = await worker.jobs(status=JobStatus.DEAD)
            assert "payload missing" in str(dead.error)

    in_virtual_time(late_main(main))


def test_a_snapshot_keeps_references_and_not_payloads() -> None:
    clock, bucket = FakeClock(), MemoryBucket()
    short = SHORT._replace(snapshot_entries=3)
    store = LedgerStore(bucket, clock, upkeep=short)
    with Queue(store) as q:
        for number in range(8):
            q.enqueue("e", LARGE, id=str(number))
        drive(store.close())  # waits for the snapshot
    parts = [one for one in drive(bucket.list()) if "/part/" in one.key]
    assert parts
    assert sum(one.size for one in parts) < len(LARGE)
    with Queue(LedgerStore(bucket, clock)) as q:
        assert [job.payload for job in q.dequeue(batch_size=9)] == [LARGE] * 8
