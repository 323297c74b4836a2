"""How a lease is renewed and how it ends: statements L1, L2, L6 to L8, L11 and L14."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from casque.errors import LeaseLostError, StorageError
from casque.job import Job, JobStatus, Lease
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue
from casque.queues.heartbeat import HeartbeatManager
from casque.rules.operations import Dequeue
from casque.system.clock import span_us
from casque.testing.batches import commit_batch
from casque.testing.relays import Gate, Outage
from casque.testing.rig import Rig, counted
from casque.testing.statement import Statements, statement
from casque.testing.suite.body import Body

LEASE = timedelta(seconds=30)
HOUR = timedelta(hours=1)


class LeaseStatements(Statements):
    @statement("L1")
    async def test_a_claimed_job_goes_to_nobody_else_before_its_lease_ends(self, rig: Rig) -> None:
        a, b = await rig.worker(worker="a"), await rig.worker(worker="b")
        await a.enqueue("e", id="k")
        [job] = await a.dequeue(lease=LEASE)
        assert job.lease_until is not None
        assert job.claimed_at is not None
        assert job.lease_until - job.claimed_at == LEASE
        assert job.lease == Lease("a", job.token, job.lease_until)
        assert rig.harness.raw().jobs["k"]["due_us"] == job.lease_until_us
        rig.advance(seconds=30, milliseconds=-1)
        await b.peek()  # B reads the newest state: a lost race would make time pass
        for q in (a, b):
            assert await q.dequeue(batch_size=10) == []
            assert await q.dequeue("e", queue="default") == []
            assert await q.dequeue(id="k") == []
        rig.advance(milliseconds=1)
        assert [(job.id, job.worker) for job in await b.dequeue()] == [("k", "b")]

    @statement("L1")
    async def test_concurrent_dequeues_claim_each_job_once(self, rig: Rig) -> None:
        workers = [await rig.worker() for _ in range(8)]
        jobs = await workers[0].enqueue_many([NewJob("e") for _ in range(10)])
        asked = [q.dequeue(batch_size=3, lease=HOUR) for q in workers]
        claims = await rig.until_done(asyncio.gather(*asked))
        claims.append(await workers[0].dequeue(batch_size=10, lease=HOUR))
        claimed = [job for claim in claims for job in claim]
        assert sorted(job.id for job in claimed) == sorted(job.id for job in jobs)
        assert len({job.token for job in claimed}) == len(jobs)

    @statement("L2")
    async def test_the_next_dequeue_after_a_lease_expires_returns_the_job_with_no_write_before_it(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(), await rig.worker(worker="b")
        ways: list[dict[str, Any]] = [{}, {"id": "k"}, {"entrypoint": "e"}, {"queue": "default"}]
        for how in ways:
            await a.enqueue("e", id="k")
            [lost] = await a.dequeue(lease=LEASE)  # A never uses the job again
            before = rig.harness.raw()
            with counted(rig.harness.writes) as grown:
                rig.advance(seconds=30)
                assert [job.id for job in await b.peek()] == ["k"]
                assert await b.queues(due=True) == ["default"]
                assert rig.harness.raw() == before
                assert grown() == 0
                [job] = await b.dequeue(**how)
                assert grown() == 1
            assert (job.id, job.worker, job.attempts) == ("k", "b", 2)
            assert job.token > lost.token
            await b.ack(job)

    @statement("L6")
    async def test_the_dequeued_job_can_be_acked_after_any_number_of_heartbeats(
        self, rig: Rig
    ) -> None:
        a = await rig.worker()
        await a.enqueue("e", id="k")
        [first] = await a.dequeue(lease=LEASE)
        for _ in range(10):
            rig.advance(seconds=20)
            renewed = await a.heartbeat(first)
            assert (renewed.token, renewed.attempts) == (first.token, 1)
        await a.ack(first)
        raw = rig.harness.raw()
        assert (raw.jobs, raw.lines) == ({}, [])
        assert (await a.stats()).total == 0
        assert await a.get("k") is None

    @statement("L7")
    async def test_a_heartbeat_restarts_the_lease_at_its_own_time(self, rig: Rig) -> None:
        a, b = await rig.worker(), await rig.worker()
        await a.enqueue("e", id="k")
        [job] = await a.dequeue(lease=LEASE)
        for lease in (None, timedelta(minutes=10), timedelta(seconds=7), LEASE):
            rig.advance(seconds=5)
            sent = rig.clock.now()
            renewed = await a.heartbeat(job, lease=lease)
            until = sent + span_us(lease or LEASE)
            assert (renewed.heartbeat_us, renewed.lease_until_us) == (sent, until)
            assert rig.harness.raw().jobs["k"]["due_us"] == until
            assert await b.get("k") == renewed
        rig.advance(seconds=30, milliseconds=-1)
        assert await b.dequeue() == []
        rig.advance(milliseconds=1)
        assert [job.id for job in await b.dequeue()] == ["k"]

    @statement("L7")
    async def test_heartbeat_many_renews_in_one_write_and_names_the_lost_jobs(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(), await rig.worker()
        await a.enqueue_many([NewJob("e", id=name) for name in ("gone", "kept", "taken", "too")])
        jobs = {job.id: job for job in await a.dequeue(batch_size=4, lease=LEASE)}
        await a.heartbeat_many([jobs["kept"], jobs["too"]], lease=HOUR)
        await a.ack(jobs["gone"])
        rig.advance(seconds=31)
        [taken] = await b.dequeue(batch_size=4, lease=HOUR)
        assert taken.id == "taken"
        await a.peek()  # A reads the newest state: a lost race would make time pass
        with counted(rig.harness.writes) as grown:
            sent = rig.clock.now()
            with pytest.raises(LeaseLostError) as lost:
                await a.heartbeat_many(jobs.values(), lease=2 * HOUR)
            assert sorted(lost.value.job_ids) == ["gone", "taken"]
            assert grown() == 1
        raw = rig.harness.raw()
        assert {raw.jobs[name]["due_us"] - sent for name in ("kept", "too")} == {span_us(2 * HOUR)}
        assert await b.get("taken") == taken
        with counted(rig.harness.writes) as grown:
            await a.heartbeat_many(["kept", "too"], lease=HOUR)
            assert grown() == 1
            await a.heartbeat_many([])
            assert grown() == 1

    @statement("L8")
    async def test_a_handler_keeps_its_lease_for_as_long_as_it_works(self, rig: Rig) -> None:
        a, b = await rig.worker(), await rig.worker()
        for by_id in (False, True):
            await a.enqueue("e", id="k")
            [job] = await a.dequeue(lease=LEASE)
            claimed = rig.clock.monotonic()
            async with handling(rig, a, "k" if by_id else job) as handler:
                for _ in range(10):
                    until = rig.harness.raw().jobs["k"]["due_us"]
                    await handler.beat(rig)
                    assert rig.clock.now() < until
                    assert await b.dequeue() == []
                assert rig.clock.monotonic() - claimed > span_us(3 * LEASE)
                await handler.finish()
            await a.ack(job)
        assert rig.harness.raw().jobs == {}

    @statement("L8")
    async def test_a_handler_that_lost_its_job_is_cancelled_and_writes_nothing(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(), await rig.worker()
        ends: dict[str, Callable[[], Awaitable[object]]] = {
            "cancelled": lambda: b.cancel("cancelled"),
            "revoked": lambda: b.requeue_stale(timedelta(0)),
            "dropped": lambda: b.drop("default"),
            "taken": lambda: b.dequeue(id="taken", lease=HOUR),
        }
        for job_id, end in ends.items():
            await a.enqueue("e", id=job_id)
            [job] = await a.dequeue(id=job_id, lease=LEASE)
            if job_id == "taken":
                rig.advance(seconds=31)
            await end()
            before = rig.harness.raw()
            with counted(rig.harness.writes) as grown:
                async with handling(rig, a, job) as handler:
                    loss = await handler.until_lost(rig)
                assert loss.job_id == job_id
                assert grown() == 0
            assert rig.harness.raw() == before

    @statement("L8")
    async def test_an_unanswered_heartbeat_is_repeated_and_the_handler_goes_on(
        self, rig: Rig
    ) -> None:
        store = Outage(rig.harness.open())
        a, b = await rig.worker(store=store), await rig.worker()
        await a.enqueue("e", id="k")
        [job] = await a.dequeue(lease=LEASE)
        claimed = rig.clock.monotonic()
        async with handling(rig, a, job) as handler:
            store.unanswered = 3
            for _ in range(10):
                await handler.beat(rig)
                assert not handler.context.lost
                assert await b.dequeue() == []
            assert store.unanswered == 0
            assert rig.clock.monotonic() - claimed > span_us(LEASE)
            await handler.finish()
        await a.ack(job)

    @statement("L8")
    async def test_a_handler_with_unanswered_heartbeats_is_cancelled_when_its_lease_ends(
        self, rig: Rig
    ) -> None:
        store = Outage(rig.harness.open())
        a, b = await rig.worker(store=store), await rig.worker()
        await a.enqueue("e", id="k")
        [job] = await a.dequeue(lease=LEASE)
        claimed = rig.clock.monotonic()
        with counted(rig.harness.writes) as grown:
            async with handling(rig, a, job) as handler:
                store.unanswered, asked = 1_000, store.asked
                loss = await handler.until_lost(rig)
            assert isinstance(loss.cause, StorageError)
            assert store.asked - asked > 2
            held = rig.clock.monotonic() - claimed
            assert span_us(LEASE) <= held <= span_us(LEASE * 4 / 3)
            assert grown() == 0
        [again] = await b.dequeue()
        assert (again.id, again.attempts) == ("k", 2)

    @statement("L8")
    async def test_a_lease_runs_from_its_claim_however_late_the_handler_starts(
        self, rig: Rig
    ) -> None:
        store = Outage(rig.harness.open())
        a = await rig.worker(store=store)
        await a.enqueue("e", id="k")
        [job] = await a.dequeue(lease=LEASE)
        claimed = rig.clock.monotonic()
        rig.clock.advance(LEASE / 2)
        store.unanswered = 1_000
        async with handling(rig, a, job) as handler:
            await handler.until_lost(rig)
        held = rig.clock.monotonic() - claimed
        assert span_us(LEASE) <= held <= span_us(LEASE * 4 / 3)

    @statement("L14", in_every_flavour=False)
    async def test_a_clock_step_past_the_lease_takes_no_job_from_a_live_holder(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(lease=LEASE), await rig.worker(lease=LEASE)
        await a.enqueue_many([NewJob("e", id="last", max_attempts=1), NewJob("e", id="first")])
        held = await a.dequeue(batch_size=2)
        await b.enqueue("e", id="later", delay=timedelta(minutes=30))
        rig.advance(seconds=10)
        for step in (timedelta(minutes=40), timedelta(minutes=2)):
            rig.clock.jump(step)
            for q in (b, a):
                for job_id in ("last", "first"):
                    assert await q.dequeue(id=job_id) == []
                    assert (await found(q, job_id)).status is JobStatus.IN_PROGRESS
                assert (await q.stats()).processing == len(held)
                assert await q.requeue_stale(LEASE) == 0
            # Queued jobs follow the wall clock: a step of the clock ends a delay too.
            for job in await b.dequeue(batch_size=10):
                assert job.id == "later"
                await b.release(job)
            await a.heartbeat_many(held)
        rig.advance(seconds=30, milliseconds=-1)
        await b.peek()  # B reads the newest state: a lost race would make time pass
        assert {job.id for job in await b.dequeue(batch_size=10)} <= {"later"}
        await a.ack_many(held)
        assert set(rig.harness.raw().jobs) == {"later"}

    @statement("L14")
    async def test_a_handlers_lease_is_renewed_at_once_when_the_clock_steps(self, rig: Rig) -> None:
        a = await rig.worker(lease=HOUR)
        await a.enqueue("e", id="k")
        [job] = await a.dequeue()
        async with handling(rig, a, job) as handler:
            rig.clock.jump(2 * HOUR)
            for _ in range(30):  # seconds; the next regular heartbeat is due after 60
                await handler.asleep(rig)
                rig.advance(seconds=1)
                await asyncio.sleep(0.01)
                if (await found(a, "k")).heartbeat_us != job.heartbeat_us:
                    break
            else:
                pytest.fail("the lease was not renewed within 30 s")
            await handler.finish()

    @statement("L14", in_every_flavour=False)
    async def test_after_a_clock_step_a_dead_holders_job_waits_one_lease_at_most(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(lease=LEASE), await rig.worker(lease=LEASE)
        await a.enqueue("e", id="before")
        await a.dequeue()  # A never uses the job again
        rig.advance(seconds=10)
        rig.clock.jump(HOUR)
        assert await b.dequeue() == []
        await b.enqueue("e", id="after")
        assert [job.id for job in await a.dequeue()] == ["after"]
        rig.advance(seconds=21)
        assert [job.id for job in await b.dequeue(batch_size=10)] == ["before"]
        rig.advance(seconds=10)
        assert [job.id for job in await b.dequeue(batch_size=10)] == ["after"]

    @statement("L14", in_every_flavour=False)
    async def test_after_a_clock_step_a_worker_with_a_short_lease_respects_longer_leases(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(lease=LEASE), await rig.worker(lease=timedelta(seconds=1))
        await a.enqueue("e")
        [job] = await a.dequeue()
        rig.clock.jump(HOUR)
        for _ in range(3):
            assert await b.dequeue() == []
            rig.advance(seconds=5)
        await a.heartbeat(job)
        rig.advance(seconds=20)
        assert await b.dequeue() == []
        await a.ack(job)

    @statement("L14", in_every_flavour=False)
    async def test_a_process_started_before_a_step_back_takes_no_job_from_one_started_after(
        self, rig: Rig
    ) -> None:
        old = await rig.worker(lease=LEASE)
        await old.peek()
        rig.clock.jump(-HOUR)
        new = await rig.worker(lease=LEASE)
        await new.enqueue("e", id="now")
        [held] = await new.dequeue()
        for _ in range(3):
            rig.advance(seconds=20)
            assert await old.dequeue() == []
            assert await old.dequeue(id="now") == []
            await new.heartbeat(held)
        rig.advance(seconds=30)  # without another heartbeat
        assert [job.id for job in await old.dequeue()] == ["now"]

    @statement("L11")
    async def test_a_dequeue_cancelled_during_its_commit_gives_its_jobs_back(
        self, rig: Rig
    ) -> None:
        if rig.flavour == "queue":
            return  # a sync call cannot be cancelled; the next test covers a process that dies
        for is_stored in (False, True):
            store = Gate(rig.harness.open(), is_stored=is_stored)
            a, b = await rig.worker(store=store), await rig.worker()
            ids = [job.id for job in await b.enqueue_many([NewJob("e"), NewJob("e")])]
            asked = asyncio.create_task(a.dequeue(batch_size=2, lease=HOUR))
            await store.reached.wait()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            store.opened.set()
            claimed: list[Job] = []
            while len(claimed) < len(ids):
                one = b.dequeue(wait=timedelta(minutes=1), lease=HOUR)
                got = await rig.until_done(one, step=timedelta(milliseconds=200))
                assert got, "the jobs of a cancelled dequeue were not given back"
                claimed.extend(got)
            assert sorted(job.id for job in claimed) == sorted(ids)
            assert [(job.attempts, job.history) for job in claimed] == 2 * [(1, ())]
            await b.ack_many(claimed)

    @statement("L11")
    async def test_the_claim_of_a_caller_that_died_in_dequeue_ends_with_its_lease(
        self, rig: Rig
    ) -> None:
        b = await rig.worker()
        await b.enqueue("e", id="k")
        # The claim is stored, but the caller died before it got the answer.
        claim = Dequeue("dead", span_us(LEASE))
        await commit_batch(rig.harness.open(), "dead", 1, [claim])
        assert await b.dequeue() == []
        rig.advance(seconds=30)
        [job] = await b.dequeue()
        assert (job.id, job.attempts, job.history[0].worker) == ("k", 2, "dead")


async def found(q: AsyncQueue, job_id: str) -> Job:
    job = await q.get(job_id)
    assert job is not None
    return job


def handling(rig: Rig, q: AsyncQueue, job: Job | str) -> Body[HeartbeatManager]:
    """A handler that works on a job while a HeartbeatManager renews its lease."""
    if rig.flavour == "queue":
        return Body(HeartbeatManager(vars(q)["_queue"], job), on_thread=True)
    return Body(HeartbeatManager(q, job), on_thread=False)
