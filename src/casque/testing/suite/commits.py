"""Commits: statements G1 to G13. G14 needs a bucket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from casque.arguments import NewJob
from casque.commit import CLOSE_PATIENCE_US
from casque.errors import (
    CasqueError,
    CorruptError,
    InvalidError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
)
from casque.job import Job, JobStatus
from casque.operations import Ack, Dequeue, Enqueue, Request
from casque.queue import AsyncQueue, BrokerQueue, DirectQueue
from casque.state import WRITER_MEMORY_US
from casque.syncqueue import Queue
from casque.testing import children
from casque.testing.faults import STORE_FAULTS, Fault, FaultyStore
from casque.testing.relays import Outage, Turnstile
from casque.testing.rig import Flavour, Rig
from casque.testing.statement import Statements, statement

LEASE = timedelta(minutes=5)


def request(job_id: str) -> Request:
    return Request(job_id, "default", "e", b"", 0, 25)


class CommitStatements(Statements):
    @statement("G1")
    async def test_callers_that_wait_together_are_committed_together(self, rig: Rig) -> None:
        callers = 50
        store = Turnstile(rig.harness.open())
        q = await rig.worker(store=store)
        store.gate.clear()
        await _call_at_once(rig, q, callers, store)
        assert (await q.stats()).pending == callers
        if rig.flavour == "direct":
            assert store.commits == callers
        else:
            assert store.commits <= 3

    @statement("G2")
    async def test_one_bad_operation_fails_alone(self, rig: Rig) -> None:
        q = await rig.worker()
        await q.enqueue("e", b"first", id="first")
        outcomes = await asyncio.gather(
            q.enqueue("e", id="good"),
            q.nack("nobody"),
            q.enqueue("other", id="first"),
            q.dequeue("e"),
            q.enqueue("e", id="\0"),
            q.ack(Job(id="first", entrypoint="e", payload=b"", token=99)),
            return_exceptions=True,
        )
        kinds = [type(one) for one in outcomes]
        assert kinds[:3] == [Job, JobNotFoundError, InvalidError]
        assert kinds[3:] == [list, InvalidError, LeaseLostError]
        assert set(rig.harness.raw().jobs) == {"first", "good"}

    @statement("G2")
    async def test_a_refused_operation_changes_nothing_for_those_after_it(self, rig: Rig) -> None:
        store = rig.harness.open()
        outcomes = await store.commit(
            "w",
            1,
            [
                Enqueue((request("a"),), 16),
                Ack("a", 1),
                Dequeue("me", 1_000_000),
                Ack("a", 2),
                Ack("a", 1),
                Ack("a", 1),
            ],
        )
        assert isinstance(outcomes[1], LeaseLostError)
        assert [job.id for job in outcomes[2].jobs] == ["a"]
        assert isinstance(outcomes[3], LeaseLostError)
        assert outcomes[4] is None
        assert isinstance(outcomes[5], JobNotFoundError)

    @statement("G3")
    async def test_leaving_commits_what_is_pending(self, rig: Rig) -> None:
        if rig.flavour == "queue":
            q = Queue(rig.harness.open())
            threads = [threading.Thread(target=q.enqueue, args=("e",)) for _ in range(20)]
            await asyncio.to_thread(_start_and_join, threads)
            await asyncio.to_thread(q.close)
        else:
            async with _kind(rig.flavour)(rig.harness.open()) as async_q:
                tasks = [asyncio.create_task(async_q.enqueue("e")) for _ in range(20)]
                await asyncio.sleep(0)
            assert all(task.done() for task in tasks)
        assert len(rig.harness.raw().jobs) == 20

    @statement("G3")
    async def test_leaving_waits_no_longer_than_its_bound(self, rig: Rig) -> None:
        if rig.flavour == "queue":
            return  # a thread that waits in a commit is inside of `close`'s lock: it is not left
        store = Turnstile(rig.harness.open())
        q = _kind(rig.flavour)(store)
        await q.__aenter__()
        store.gate.clear()
        caller = asyncio.create_task(q.enqueue("e"))
        await asyncio.sleep(0)
        await rig.until_done(q.close(), step=timedelta(microseconds=CLOSE_PATIENCE_US // 10))
        with pytest.raises(StorageError, match="outcome unknown") as failure:
            await caller
        assert failure.value.outcome_unknown

    @statement("G3")
    async def test_a_queue_that_is_not_open_refuses_and_does_not_hang(self, rig: Rig) -> None:
        if rig.flavour == "queue":
            q = Queue(rig.harness.open())
            await asyncio.to_thread(q.close)
            with pytest.raises(InvalidError, match="closed"):
                await asyncio.to_thread(q.enqueue, "e")
            await asyncio.to_thread(q.close)
            return
        async_q = _kind(rig.flavour)(rig.harness.open())
        if rig.flavour == "broker":
            before: tuple[Awaitable[object], ...] = (
                async_q.enqueue("e"),
                async_q.get("x"),
                async_q.dequeue(),
            )
            for call in before:
                with pytest.raises(InvalidError, match="async with BrokerQueue"):
                    await call
        async with async_q:
            await async_q.enqueue("e")
        after: tuple[Awaitable[object], ...] = (
            async_q.enqueue("e"),
            async_q.stats(),
            async_q.heartbeat_many([]),
        )
        for call in after:
            with pytest.raises(InvalidError, match="closed"):
                await call
        with pytest.raises(InvalidError, match="closed"):
            await async_q.__aenter__()

    @statement("G4")
    async def test_a_commit_that_is_repeated_is_applied_once_and_answered_the_same(
        self, rig: Rig
    ) -> None:
        store = rig.harness.open()
        await store.commit("w", 1, [Enqueue((request("a"), request("b")), 16)])
        claim = [Dequeue("me", 60_000_000, limit=1)]
        first = await store.commit("w", 2, claim)
        before = rig.harness.writes()
        assert await store.commit("w", 2, claim) == first
        assert rig.harness.writes() == before
        assert rig.harness.raw().token == 1
        assert rig.harness.raw().writers["w"] == 2
        with pytest.raises(CasqueError):
            await store.commit("w", 1, claim)
        # Another writer's numbers are its own.
        [other] = await store.commit("v", 1, claim)
        assert [job.id for job in other.jobs] == ["b"]

    @statement("G4")
    async def test_a_writer_silent_for_long_is_forgotten(self, rig: Rig) -> None:
        store = rig.harness.open()
        await store.commit("w", 1, [Enqueue((request("a"),), 16)])
        rig.clock.advance(timedelta(microseconds=WRITER_MEMORY_US + 1))
        await store.commit("v", 1, [Enqueue((request("b"),), 16)])
        assert set(rig.harness.raw().writers) == {"v"}

    @statement("G4")
    async def test_a_fate_unknown_for_longer_than_writers_are_kept_is_said_to_be_unknown(
        self, rig: Rig
    ) -> None:
        class Sleeps(FaultyStore):
            async def commit(self, *args: Any, **options: Any) -> list[Any]:
                try:
                    return await super().commit(*args, **options)
                except StorageError:
                    rig.clock.advance(timedelta(microseconds=WRITER_MEMORY_US + 1))
                    raise

        store = Sleeps(rig.harness.open(), Fault.LOSE_REPLY, 1)
        q = await rig.worker(store=store)
        with pytest.raises(StorageError) as failure:
            await q.enqueue("e", id="once")
        assert failure.value.outcome_unknown
        assert store.commits == 1
        assert set(rig.harness.raw().jobs) == {"once"}

    @statement("G5")
    async def test_one_lost_request_or_reply_anywhere_neither_loses_nor_doubles_a_job(
        self, rig: Rig
    ) -> None:
        for fault in STORE_FAULTS:
            for nth in count(1):
                store = FaultyStore(rig.harness.open(), fault, nth)
                run = f"{fault.name}-{nth}"
                await three_jobs_start_to_finish(await rig.worker(store=store), rig, run)
                assert not rig.harness.raw().jobs
                if not store.fired:
                    break

    @statement("G6")
    async def test_a_process_killed_at_any_commit_leaves_what_was_acknowledged(
        self, rig: Rig
    ) -> None:
        address = rig.harness.address
        if address is None:
            return  # it lives as long as its process: printed in docs/guarantees.md
        for fault in (Fault.DIE_BEFORE, Fault.DIE_AFTER):
            for nth in count(1):
                said = await asyncio.to_thread(
                    _run_and_be_killed, address, rig.flavour, fault.name, nth
                )
                await _check_after_death(await rig.worker(), said)
                if "end" in said:
                    break

    @statement("G7")
    async def test_each_job_is_acked_exactly_once_by_many_processes(self, rig: Rig) -> None:
        jobs = rig.size(10_000)
        q = await rig.worker()
        for start in range(0, jobs, 10_000):
            await q.enqueue_many(
                [_new(f"job-{place}") for place in range(start, min(start + 10_000, jobs))]
            )
        acked = await rig.in_processes(8, children.work_until_empty, rig.flavour)
        assert sorted(acked) == sorted(f"job-{place}" for place in range(jobs))
        assert not rig.harness.raw().jobs

    @statement("G8")
    async def test_stored_bytes_that_are_not_ours_are_named_and_kept(self, rig: Rig) -> None:
        if rig.harness.stored() is None:
            return
        q = await rig.worker()
        await q.enqueue("e", b"payload", id="precious")
        whole = rig.harness.stored()
        assert whole
        damages = [whole[: len(whole) // 2], whole[:-1], b"\x00\xff" * 100, b'{"mine": 1}']
        if not rig.harness.empty_is_new:
            damages.append(b"")
        for damage in damages:
            rig.harness.replace_stored(damage)
            for victim in (q, await rig.worker()):
                with pytest.raises(CorruptError, match=r"Nothing was overwritten\."):
                    await victim.enqueue("e")
                with pytest.raises(CorruptError):
                    await victim.dequeue()
                with pytest.raises(CorruptError):
                    await victim.stats()
            assert rig.harness.stored() == damage
        rig.harness.replace_stored(whole)
        assert [job.id for job in await q.dequeue()] == ["precious"]

    @statement("G9")
    async def test_calls_fail_while_the_storage_is_away_and_work_again_afterwards(
        self, rig: Rig
    ) -> None:
        store = Outage(rig.harness.open())
        q = await rig.worker(store=store)
        await q.enqueue("e", id="before")
        [held] = await q.dequeue()
        store.unanswered = 3
        for call in (q.enqueue("e", id="during"), q.dequeue(), q.ack(held)):
            with pytest.raises(StorageError) as failure:
                await call
            assert not failure.value.outcome_unknown
        await q.enqueue("e", id="after")
        await q.ack(held)
        assert [job.id for job in await q.dequeue()] == ["after"]
        assert set(rig.harness.raw().jobs) == {"after"}

    @statement("G10")
    async def test_a_wall_clock_set_forward_or_back_loses_nothing(self, rig: Rig) -> None:
        a, b = await rig.worker(lease=LEASE), await rig.worker(lease=LEASE)
        await a.enqueue("e", id="job")
        holder, [held] = a, await a.dequeue()
        rig.clock.jump(timedelta(hours=1))
        for second in await b.dequeue():  # none, where the storage has a clock of its own
            assert second.token > held.token
            with pytest.raises(LeaseLostError):
                await a.ack(held)
            holder, held = b, second
        rig.clock.jump(timedelta(hours=-2))
        assert await a.dequeue() == []
        # Time does not stand still while the wall clock catches up.
        await a.enqueue("e", id="soon", delay=timedelta(seconds=10))
        rig.advance(seconds=10)
        assert [job.id for job in await a.dequeue()] == ["soon"]
        await holder.ack(held)
        assert set(rig.harness.raw().jobs) == {"soon"}

    @statement("G10")
    async def test_a_process_with_another_clock_is_still_fenced(self, rig: Rig) -> None:
        a = await rig.worker(lease=LEASE)
        ahead = await rig.worker(lease=LEASE, clock=rig.clock.skewed(timedelta(hours=1)))
        behind = await rig.worker(lease=LEASE, clock=rig.clock.skewed(timedelta(hours=-1)))
        await a.enqueue("e", id="job")
        [held] = await a.dequeue()
        tokens = [held.token]
        for other in (ahead, behind, a):
            for job in await other.dequeue():
                tokens.append(job.token)
                with pytest.raises(LeaseLostError):
                    await a.ack(held)
                held = job
                a = other
        assert tokens == sorted(set(tokens))
        await a.ack(held)
        await behind.enqueue("e", id="next")
        assert [job.id for job in await ahead.dequeue()] == ["next"]

    @statement("G11")
    async def test_what_one_was_answered_the_next_call_by_anyone_sees(self, rig: Rig) -> None:
        a, b = await rig.worker(), await rig.worker()

        async def b_finishes_the_job() -> None:
            assert (await a.enqueue("e", id="job")).duplicate is False
            assert (await a.enqueue("e", id="job")).duplicate is True
            [job] = await b.dequeue()
            await b.ack(job)

        await b_finishes_the_job()
        assert (await a.enqueue("e", id="job")).duplicate is False
        await b.cancel("job")
        with pytest.raises(InvalidError, match="only a dead job"):
            await a.retry("job")
        await b.purge(older_than=timedelta(0))
        await b_finishes_the_job()
        assert await a.get("job") is None
        assert await a.dequeue() == []
        with pytest.raises(JobNotFoundError):
            await a.cancel("job")
        assert (await a.stats()).total == 0
        await b.enqueue("e", id="another")
        assert [job.id for job in await a.dequeue()] == ["another"]

    @statement("G12")
    async def test_a_slow_process_commits_within_the_deadline_beside_fast_ones(
        self, rig: Rig
    ) -> None:
        fast_trip, slow_trip = timedelta(milliseconds=10), timedelta(milliseconds=100)
        if rig.harness.slowed(slow_trip) is None:
            return  # it makes no requests, so nobody is slower than another
        is_full = rig.harness.tier == "full"
        # The sync Queue reaches such a store through the BrokerQueue's own committer.
        kind = DirectQueue if rig.flavour == "direct" else BrokerQueue
        rig.clock.is_patient = True
        stores = [rig.harness.slowed(fast_trip) for _ in range(7 if is_full else 3)]
        stores.append(rig.harness.slowed(slow_trip))
        queues = [kind(store) for store in stores if store is not None]
        is_over = False

        async def hammer(q: AsyncQueue) -> None:
            while not is_over:
                await q.enqueue("e", queue=q.worker)
                await q.drop(q.worker)

        async def slow_ones() -> None:
            for place in range(3):
                await queues[-1].enqueue("slow", id=f"slow-{place}")

        for q in queues:
            await q.__aenter__()
        busy = [asyncio.create_task(hammer(q)) for q in queues[:-1]]
        await _simulate(rig, asyncio.create_task(slow_ones()))
        is_over = True
        await _simulate(rig, asyncio.ensure_future(asyncio.gather(*busy)))
        assert {f"slow-{place}" for place in range(3)} <= set(rig.harness.raw().jobs)

    @statement("G13")
    async def test_threads_share_a_queue(self, rig: Rig) -> None:
        q = await rig.worker()

        def in_a_loop_of_its_own(place: int) -> None:
            async def some() -> None:
                for step in range(10):
                    await q.enqueue("e", id=f"{place}-{step}")

            asyncio.run(some())

        threads = [threading.Thread(target=in_a_loop_of_its_own, args=(n,)) for n in range(8)]
        await asyncio.to_thread(_start_and_join, threads)
        assert len(rig.harness.raw().jobs) == 80

    @statement("G13")
    async def test_the_child_of_a_fork_reopens_or_refuses(self, rig: Rig) -> None:
        address = rig.harness.address or "memory://"
        said = await asyncio.to_thread(children.run, "fork_and_enqueue", address, rig.flavour)
        assert said[1:] == ["parent: enqueued"]
        if said[0] == "child: enqueued":
            assert set(rig.harness.raw().jobs) == {"before", "child", "parent"}
        else:
            assert said[0].startswith("child: refused")
            assert "fork" in said[0]


async def three_jobs_start_to_finish(q: AsyncQueue, rig: Rig, run: str) -> None:
    """Three jobs through every kind of write, each ending in one ack, tokens only rising."""
    ids = [f"{run}-{name}" for name in "abc"]
    for job_id in ids:
        assert not (await q.enqueue("e", job_id.encode(), id=job_id)).duplicate
    tokens: list[int] = []
    done: list[str] = []
    [first] = await q.dequeue("e")
    await q.heartbeat(first)
    again = await q.nack(first, error="once")
    assert (again.status, again.attempts) == (JobStatus.QUEUED, 1)
    tokens.append(first.token)
    while len(done) < len(ids):
        jobs = await q.dequeue("e", batch_size=2)
        assert jobs, f"{run}: a job is lost; done are {done}"
        for job in jobs:
            assert job.payload == job.id.encode()
            assert job.attempts == (2 if job.id == first.id else 1), "claimed more than once"
            tokens.append(job.token)
            await q.ack(job)
            done.append(job.id)
    assert sorted(done) == ids
    assert tokens == sorted(set(tokens))
    assert rig.harness.raw().token >= tokens[-1]


def _kind(flavour: Flavour) -> type[DirectQueue | BrokerQueue]:
    return DirectQueue if flavour == "direct" else BrokerQueue


def _new(job_id: str) -> NewJob:
    return NewJob("e", id=job_id)


def _start_and_join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _call_at_once(rig: Rig, q: AsyncQueue, callers: int, store: Turnstile) -> None:
    """`callers` enqueues that have all been asked for before the gate lets the first through."""
    if rig.flavour == "queue":
        sync: Queue = q._queue  # type: ignore[attr-defined]
        threads = [threading.Thread(target=sync.enqueue, args=("e",)) for _ in range(callers)]
        for thread in threads:
            thread.start()
        q, waits = sync._queue, [asyncio.to_thread(thread.join) for thread in threads]
    else:
        tasks = [asyncio.create_task(q.enqueue("e")) for _ in range(callers)]
        waits = [_end_of(task) for task in tasks]
    while store.operations + q._session.waiting < callers:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(*waits)


async def _end_of(task: asyncio.Task[Any]) -> None:
    await task


async def _simulate(rig: Rig, task: asyncio.Future[Any]) -> None:
    """Run a simulation on the fake clock: when everybody waits, time moves to the next event."""
    while not task.done():
        for _ in range(20):
            await asyncio.sleep(0)
        if not task.done():
            rig.clock.advance_to_next()
    task.result()


def _run_and_be_killed(address: str, flavour: str, fault: str, nth: int) -> list[str]:
    return children.run("jobs_until_killed", address, flavour, fault, str(nth), check=False)


async def _check_after_death(q: AsyncQueue, said: list[str]) -> None:
    """Everything acknowledged is there; everything there was asked for."""
    words = [line.split() for line in said]
    told = {
        verb: {line[1] for line in words if line[0] == verb and len(line) > 1}
        for verb in ("enqueue", "enqueued", "ack", "acked")
    }
    state = await q.read_state()
    there = {job.id for job in state.jobs}
    assert told["enqueued"] - told["ack"] <= there
    assert there <= told["enqueue"] - told["acked"]
    # The dead process's claim ends by time, and what it left is finished here.
    for job in state.jobs:
        await q.cancel(job.id)
    await q.purge(older_than=timedelta(0))
