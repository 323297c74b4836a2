"""Which holder may write about a job: statements L3 to L5, L9, L10, L12, L13 and L15."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from casque.errors import CasqueError, CorruptError, JobNotFoundError, LeaseLostError
from casque.job import Job, JobStatus
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue
from casque.system.clock import span_us
from casque.testing.rig import Rig, counted
from casque.testing.statement import Statements, statement
from casque.testing.suite.leases import HOUR, LEASE

WRITES = (
    *("ack", "nack", "fail", "discard", "heartbeat", "release"),
    *("ack_many", "heartbeat_many"),
)
"""The calls that only the holder of a job may make."""


class FencingStatements(Statements):
    @statement("L3")
    async def test_a_stalled_holder_cannot_ack_a_new_job_with_the_same_id(self, rig: Rig) -> None:
        a, b, c = await rig.worker(), await rig.worker(), await rig.worker()
        await a.enqueue("e", b"first", id="k")
        [stalled] = await a.dequeue(lease=LEASE)
        rig.advance(seconds=31)
        [job] = await b.dequeue()
        await b.ack(job)
        assert rig.harness.raw().jobs == {}
        again = await b.enqueue("e", b"second", id="k")
        assert not again.duplicate
        [held] = await c.dequeue()
        assert stalled.token < job.token < held.token
        before = rig.harness.raw()
        with counted(rig.harness.writes) as grown:
            for handle in (stalled, "k"):
                with pytest.raises(LeaseLostError):
                    await a.ack(handle)
            assert grown() == 0
        assert rig.harness.raw() == before
        assert await c.get("k") == held
        await c.ack(held)

    @statement("L15")
    async def test_a_claim_from_a_wiped_store_is_refused_by_its_replacement(self, rig: Rig) -> None:
        a = await rig.worker()
        await a.enqueue("e", b"first", id="k")
        [lost] = await a.dequeue()
        if not rig.harness.wipe():
            return
        rig.advance(seconds=2)
        b = await rig.worker()
        await b.enqueue("e", b"second", id="k")
        [held] = await b.dequeue()
        before = rig.harness.raw()
        for handle in (lost, "k"):
            with pytest.raises((LeaseLostError, CorruptError)):
                await a.ack(handle)
        with pytest.raises((LeaseLostError, CorruptError)):
            await a.heartbeat(lost)
        with pytest.raises(LeaseLostError):
            await (await rig.worker()).ack(lost)
        assert rig.harness.raw() == before
        assert await b.get("k") == held
        await b.ack(held)

    @statement("L3")
    async def test_all_tokens_of_a_store_come_from_one_counter_that_is_never_reset(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(), await rig.worker()
        last = 0

        async def claims(q: AsyncQueue, **how: Any) -> list[Job]:
            nonlocal last
            jobs = await q.dequeue(batch_size=10, **how)
            assert jobs
            tokens = sorted(job.token for job in jobs)
            assert len(set(tokens)) == len(tokens)
            assert tokens[0] > last
            last = tokens[-1]
            raw = rig.harness.raw()
            assert raw.token >= last
            assert [raw.jobs[job.id]["token"] for job in jobs] == [job.token for job in jobs]
            return jobs

        await a.enqueue_many([NewJob(f"e{n % 2}", queue=f"q{n % 3}") for n in range(9)])
        for queue in ("q0", "q1", "q2"):
            await (b if queue == "q1" else a).ack_many(
                await claims(b if queue == "q1" else a, queue=queue)
            )
        assert rig.harness.raw().jobs == {}
        await b.enqueue("e", id="k")
        [job] = await claims(b)
        await b.release(job)
        [job] = await claims(a)
        await a.nack(job)
        [job] = await claims(b)
        await b.fail(job)
        await a.retry("k")
        [job] = await claims(a)
        await a.drop("default")
        await a.enqueue("e", id="k")
        await claims(await rig.worker())  # on a newly opened handle
        assert rig.harness.raw().token >= last

    @statement("L4")
    async def test_a_holder_that_lost_its_job_to_another_writes_nothing(self, rig: Rig) -> None:
        a, b = await rig.worker(), await rig.worker()
        for write in WRITES:
            await a.enqueue("e", id=write)
            [lost] = await a.dequeue(lease=LEASE)
            rig.advance(seconds=31)
            [held] = await b.dequeue(lease=LEASE)
            await refused(rig, a, write, lost)
            await refused(rig, a, write, lost.id)
            assert await b.get(write) == held
            await b.ack(held)

    @statement("L5")
    async def test_a_holder_may_write_after_its_lease_expired_until_the_job_is_taken(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(), await rig.worker()
        for write in WRITES:
            for attempts in (25, 1):
                # On its last attempt a read shows it as dead, but no dequeue has stored that yet.
                job_id = f"{write} {attempts}"
                await a.enqueue("e", id=job_id, max_attempts=attempts)
                [job] = await a.dequeue(id=job_id, lease=LEASE)
                rig.advance(seconds=90)
                await call(a, write, job)
                stored = rig.harness.raw().jobs.get(job_id)
                if write in ("ack", "ack_many"):
                    assert stored is None
                elif write in ("heartbeat", "heartbeat_many"):
                    assert stored is not None
                    assert stored["token"] == job.token
                    assert stored["due_us"] == rig.clock.now() + span_us(LEASE)
                    await b.peek()
                    assert await b.dequeue(id=job_id) == []
                    await a.ack(job)
                else:
                    assert stored is not None
                    assert stored["status"] != JobStatus.IN_PROGRESS

    @statement("L5")
    async def test_an_expired_lease_is_void_once_the_job_is_claimed_dead_cancelled_or_requeued(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(), await rig.worker()
        ends: dict[str, tuple[int, Callable[[], Awaitable[object]]]] = {
            "reclaimed": (25, lambda: b.dequeue(id="reclaimed", lease=HOUR)),
            "buried": (1, lambda: b.dequeue(id="buried")),
            "cancelled": (25, lambda: b.cancel("cancelled")),
            "revoked": (25, lambda: b.requeue_stale(LEASE)),
            "retried": (1, lambda: b.retry("retried")),
        }
        for job_id, (attempts, end) in ends.items():
            await a.enqueue("e", id=job_id, max_attempts=attempts)
            [job] = await a.dequeue(id=job_id, lease=LEASE)
            rig.advance(seconds=31)
            await end()
            for write in WRITES:
                await refused(rig, a, write, job)

    @statement("L9")
    async def test_a_second_ack_has_no_effect(self, rig: Rig) -> None:
        a, b = await rig.worker(), await rig.worker()
        for retain, refusal in ((None, JobNotFoundError), (HOUR, LeaseLostError)):
            await a.enqueue("e", id="k", retain=retain)
            [job] = await a.dequeue("e")
            await a.ack(job, result=b"first", enqueue=[NewJob("next", id=f"after {retain}")])
            before = rig.harness.raw()
            with counted(rig.harness.writes) as grown:
                for handle in (job, "k"):
                    for q in (a, b):
                        with pytest.raises(refusal) as refused_with:
                            await q.ack(handle, result=b"second", enqueue=[NewJob("e")])
                        assert refused_with.value.job_id == "k"
                assert grown() == 0
            assert rig.harness.raw() == before
            kept = await b.get("k")
            assert (kept and kept.result) == (retain and b"first")
            assert await b.dequeue("e") == []

    @statement("L9")
    async def test_only_one_of_several_concurrent_acks_takes_effect(self, rig: Rig) -> None:
        a, b = await rig.worker(), await rig.worker()
        await a.enqueue("e", id="k")
        [job] = await a.dequeue(lease=HOUR)
        acks = [q.ack(job, enqueue=[NewJob("next")]) for q in (a, a, b)]
        outcomes = await rig.until_done(asyncio.gather(*acks, return_exceptions=True))
        assert outcomes.count(None) == 1
        assert sum(isinstance(outcome, JobNotFoundError) for outcome in outcomes) == 2
        assert [job["entrypoint"] for job in rig.harness.raw().jobs.values()] == ["next"]

    @statement("L10")
    async def test_an_unknown_id_raises_an_error_that_names_it(self, rig: Rig) -> None:
        a = await rig.worker()
        await a.enqueue("e", id="known")
        with counted(rig.harness.writes) as grown:
            for write in (*WRITES, "cancel", "retry"):
                if write.endswith("_many"):
                    with pytest.raises(LeaseLostError) as lost:
                        await call(a, write, "nobody")
                    assert lost.value.job_ids == ("nobody",)
                    continue
                with pytest.raises(JobNotFoundError, match="nobody") as unknown:
                    await call(a, write, "nobody")
                assert unknown.value.job_id == "nobody"
            assert await a.get("nobody") is None
            assert await a.dequeue(id="nobody") == []
            assert grown() == 0

    @statement("L12")
    async def test_an_id_stands_for_the_last_claim_of_this_queue_object(self, rig: Rig) -> None:
        a, b = await rig.worker(), await rig.worker()
        for write in WRITES:
            await a.enqueue("e", id=write)
            [first] = await a.dequeue(id=write, lease=LEASE)
            rig.advance(seconds=31)
            [second] = await a.dequeue(id=write, lease=LEASE)
            await refused(rig, a, write, first)
            await refused(rig, b, write, write)  # B has no claim on it
            assert await b.get(write) == second
            with counted(rig.harness.writes) as grown:
                await call(a, write, write)
                assert grown() == 1
            if write.startswith("heartbeat"):
                await a.ack(write)
            await refused(rig, a, write, write)  # the call above ended the claim

    @statement("L12")
    async def test_an_id_that_this_queue_object_has_not_claimed_is_refused(self, rig: Rig) -> None:
        a, b = await rig.worker(), await rig.worker()
        await a.enqueue("e", id="queued")
        await a.enqueue("e", id="scheduled", delay=HOUR)
        await a.enqueue("e", id="dead")
        await a.fail((await a.dequeue(id="dead"))[0])
        await a.enqueue("e", id="anothers")
        await a.dequeue(id="anothers", lease=HOUR)
        for job_id in ("queued", "scheduled", "dead", "anothers"):
            for write in WRITES:
                await refused(rig, b, write, job_id)

    @statement("L13")
    async def test_requeue_stale_fences_and_counts_holders_without_a_recent_heartbeat(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(), await rig.worker()
        await a.enqueue_many([NewJob("e", id=name) for name in ("beating", "silent", "queued")])
        await a.enqueue("e", id="last", max_attempts=1)
        jobs = {}
        for name in ("beating", "silent", "last"):
            [jobs[name]] = await a.dequeue(id=name, lease=HOUR)
        rig.advance(seconds=30)
        await a.heartbeat(jobs["beating"])
        rig.advance(seconds=30, milliseconds=-1)
        minute = timedelta(minutes=1)
        await b.peek()
        with counted(rig.harness.writes) as grown:
            assert await b.requeue_stale(minute) == 0
            assert grown() == 0
        rig.advance(milliseconds=1)
        with counted(rig.harness.writes) as grown:
            assert await b.requeue_stale(minute) == 2
            assert grown() == 1
        stored = rig.harness.raw().jobs
        assert {name: job["status"] for name, job in stored.items()} == {
            "beating": JobStatus.IN_PROGRESS,
            "silent": JobStatus.QUEUED,
            "queued": JobStatus.QUEUED,
            "last": JobStatus.DEAD,
        }
        for write in WRITES:
            for name in ("silent", "last"):
                await refused(rig, a, write, jobs[name])
        assert await b.requeue_stale(minute) == 0
        [again] = await b.dequeue(id="silent")
        assert (again.attempts, again.token > jobs["silent"].token) == (2, True)
        await a.ack(jobs["beating"])


async def call(q: AsyncQueue, write: str, job: Job | str) -> None:
    """Call the method `write` for one job."""
    await getattr(q, write)([job] if write.endswith("_many") else job)


async def refused(rig: Rig, q: AsyncQueue, write: str, job: Job | str) -> None:
    """`q` does not hold the job: the call raises, and nothing changes."""
    job_id = job if isinstance(job, str) else job.id
    before = rig.harness.raw()
    with counted(rig.harness.writes) as grown:
        with pytest.raises(CasqueError) as refusal:
            await call(q, write, job)
        assert grown() == 0
    assert rig.harness.raw() == before
    is_there = job_id in before.jobs or write.endswith("_many")
    assert type(refusal.value) is (LeaseLostError if is_there else JobNotFoundError)
    assert refusal.value.job_id == job_id
