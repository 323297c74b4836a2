"""Leases and fencing: statements L1 to L13."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from casque.arguments import NewJob
from casque.clock import span_us
from casque.errors import CasqueError, JobNotFoundError, LeaseLostError, StorageError
from casque.heartbeat import HeartbeatManager
from casque.job import Job, JobStatus, Lease
from casque.operations import Dequeue
from casque.queue import AsyncQueue
from casque.testing.relays import Gate, Outage
from casque.testing.rig import Rig, counted
from casque.testing.statement import Statements, statement
from casque.testing.suite.body import Body

LEASE = timedelta(seconds=30)
HOUR = timedelta(hours=1)
WRITES = (
    *("ack", "nack", "fail", "discard", "heartbeat", "release"),
    *("ack_many", "heartbeat_many"),
)
"""What a holder may write about its job."""


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
        await b.peek()  # with the newest state B loses no race, which would let time pass
        for q in (a, b):
            assert await q.dequeue(batch_size=10) == []
            assert await q.dequeue("e", queue="default") == []
            assert await q.dequeue(id="k") == []
        rig.advance(milliseconds=1)
        assert [(job.id, job.worker) for job in await b.dequeue()] == [("k", "b")]

    @statement("L1")
    async def test_each_job_goes_to_one_of_all_who_ask_at_once(self, rig: Rig) -> None:
        workers = [await rig.worker() for _ in range(8)]
        jobs = await workers[0].enqueue_many([NewJob("e") for _ in range(10)])
        asked = [q.dequeue(batch_size=3, lease=HOUR) for q in workers]
        claims = await rig.until_done(asyncio.gather(*asked))
        claims.append(await workers[0].dequeue(batch_size=10, lease=HOUR))
        claimed = [job for claim in claims for job in claim]
        assert sorted(job.id for job in claimed) == sorted(job.id for job in jobs)
        assert len({job.token for job in claimed}) == len(jobs)

    @statement("L2")
    async def test_a_lease_that_ends_needs_no_write_for_the_next_dequeue_to_return_the_job(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(), await rig.worker(worker="b")
        ways: list[dict[str, Any]] = [{}, {"id": "k"}, {"entrypoint": "e"}, {"queue": "default"}]
        for how in ways:
            await a.enqueue("e", id="k")
            [lost] = await a.dequeue(lease=LEASE)  # and is never heard of again
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

    @statement("L3")
    async def test_a_stalled_holder_cannot_ack_the_job_that_came_back_under_its_id(
        self, rig: Rig
    ) -> None:
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

    @statement("L3")
    async def test_tokens_of_a_whole_store_come_from_one_counter_that_is_never_reset(
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
        await claims(await rig.worker())  # a handle that was opened only now
        assert rig.harness.raw().token >= last

    @statement("L4")
    async def test_who_lost_the_job_to_another_writes_nothing(self, rig: Rig) -> None:
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
    async def test_an_expired_lease_that_nobody_ended_still_serves_its_holder(
        self, rig: Rig
    ) -> None:
        a, b = await rig.worker(), await rig.worker()
        for write in WRITES:
            for attempts in (25, 1):
                # On its last attempt it reads as dead; nobody has buried it, so it is not.
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
    async def test_an_expired_lease_is_over_once_the_job_is_buried_cancelled_or_revoked(
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

    @statement("L6")
    async def test_the_first_handle_acks_after_any_number_of_heartbeats(self, rig: Rig) -> None:
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
    async def test_a_heartbeat_sets_the_end_of_the_lease_from_its_own_instant(
        self, rig: Rig
    ) -> None:
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
    async def test_many_are_renewed_by_one_operation_which_names_the_lost(self, rig: Rig) -> None:
        a, b = await rig.worker(), await rig.worker()
        await a.enqueue_many([NewJob("e", id=name) for name in ("gone", "kept", "taken", "too")])
        jobs = {job.id: job for job in await a.dequeue(batch_size=4, lease=LEASE)}
        await a.heartbeat_many([jobs["kept"], jobs["too"]], lease=HOUR)
        await a.ack(jobs["gone"])
        rig.advance(seconds=31)
        [taken] = await b.dequeue(batch_size=4, lease=HOUR)
        assert taken.id == "taken"
        await a.peek()  # with the newest state A loses no race, which would let time pass
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
    async def test_a_handler_whose_loss_is_proven_is_cancelled_and_writes_nothing(
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
    async def test_a_heartbeat_without_an_answer_is_repeated_and_the_handler_goes_on(
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
    async def test_a_handler_without_an_answer_is_cancelled_when_its_lease_ends(
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
    async def test_of_two_acks_at_once_one_has_the_effect(self, rig: Rig) -> None:
        a, b = await rig.worker(), await rig.worker()
        await a.enqueue("e", id="k")
        [job] = await a.dequeue(lease=HOUR)
        acks = [q.ack(job, enqueue=[NewJob("next")]) for q in (a, a, b)]
        outcomes = await rig.until_done(asyncio.gather(*acks, return_exceptions=True))
        assert outcomes.count(None) == 1
        assert sum(isinstance(outcome, JobNotFoundError) for outcome in outcomes) == 2
        assert [job["entrypoint"] for job in rig.harness.raw().jobs.values()] == ["next"]

    @statement("L10")
    async def test_an_unknown_id_is_not_found_and_named(self, rig: Rig) -> None:
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

    @statement("L11")
    async def test_a_caller_cancelled_while_its_dequeue_commits_gives_its_jobs_back(
        self, rig: Rig
    ) -> None:
        if rig.flavour == "queue":
            return  # a plain call cannot be cancelled; its end is the process's, below
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
                assert got, "the jobs of a cancelled dequeue did not come back"
                claimed.extend(got)
            assert sorted(job.id for job in claimed) == sorted(ids)
            assert [(job.attempts, job.history) for job in claimed] == 2 * [(1, ())]
            await b.ack_many(claimed)

    @statement("L11")
    async def test_the_lease_ends_the_claim_of_a_caller_that_died_at_its_dequeue(
        self, rig: Rig
    ) -> None:
        b = await rig.worker()
        await b.enqueue("e", id="k")
        # Stored, and whoever was to have the answer is gone.
        claim = Dequeue("dead", span_us(LEASE))
        await rig.harness.open().commit("dead", 1, [claim])
        assert await b.dequeue() == []
        rig.advance(seconds=30)
        [job] = await b.dequeue()
        assert (job.id, job.attempts, job.history[0].worker) == ("k", 2, "dead")

    @statement("L12")
    async def test_an_id_means_the_last_claim_this_queue_object_was_handed(self, rig: Rig) -> None:
        a, b = await rig.worker(), await rig.worker()
        for write in WRITES:
            await a.enqueue("e", id=write)
            [first] = await a.dequeue(id=write, lease=LEASE)
            rig.advance(seconds=31)
            [second] = await a.dequeue(id=write, lease=LEASE)
            await refused(rig, a, write, first)
            await refused(rig, b, write, write)  # another's
            assert await b.get(write) == second
            with counted(rig.harness.writes) as grown:
                await call(a, write, write)
                assert grown() == 1
            if write.startswith("heartbeat"):
                await a.ack(write)
            await refused(rig, a, write, write)  # it was given up with that

    @statement("L12")
    async def test_an_id_that_was_never_handed_out_is_not_held(self, rig: Rig) -> None:
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
    async def test_holders_not_heard_of_for_that_long_are_fenced_and_counted(
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
    """Write `write` about one job."""
    await getattr(q, write)([job] if write.endswith("_many") else job)


async def refused(rig: Rig, q: AsyncQueue, write: str, job: Job | str) -> None:
    """The job is not `q`'s to write about: it is told so, and nothing changes."""
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


def handling(rig: Rig, q: AsyncQueue, job: Job | str) -> Body[HeartbeatManager]:
    """A handler at work on a job, its lease kept by a HeartbeatManager."""
    if rig.flavour == "queue":
        return Body(HeartbeatManager(vars(q)["_queue"], job), on_thread=True)
    return Body(HeartbeatManager(q, job), on_thread=False)
