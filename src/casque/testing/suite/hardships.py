"""Faults, kills, damage and wrong clocks: statements G5 to G10 and G12."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from casque.errors import CorruptError, LeaseLostError, StorageError
from casque.job import JobStatus
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue, BrokerQueue, DirectQueue
from casque.testing import children
from casque.testing.faults import STORE_FAULTS, Fault, FaultyStore
from casque.testing.processes import run_in_process
from casque.testing.relays import Outage
from casque.testing.rig import Rig
from casque.testing.statement import Statements, statement

LEASE = timedelta(minutes=5)


class HardshipStatements(Statements):
    @statement("G5")
    async def test_one_lost_request_or_reply_anywhere_neither_loses_nor_doubles_a_job(
        self, rig: Rig
    ) -> None:
        opened = rig.harness.open()  # only once: a ledger's log grows with every run
        for fault in STORE_FAULTS:
            for nth in count(1):
                store = FaultyStore(opened, fault, nth)
                run = f"{fault.name}-{nth}"
                await three_jobs_start_to_finish(await rig.worker(store=store), rig, run)
                assert not rig.harness.raw().jobs
                if not store.fired:
                    break

    @statement("G6")
    async def test_every_acknowledged_write_survives_a_kill_at_any_commit(self, rig: Rig) -> None:
        address = rig.harness.address
        if address is None:
            return  # this store lasts as long as its process, as docs/guarantees.md says
        for fault in (Fault.DIE_BEFORE, Fault.DIE_AFTER):
            for nth in count(1):
                run = f"{fault.name}-{nth}"
                said = await asyncio.to_thread(
                    run_in_process, children.jobs_until_killed, address, run, fault, nth
                )
                await _check_after_death(await rig.worker(), said)
                if "end" in said:
                    break

    @statement("G7", in_every_flavour=False)
    async def test_each_job_is_acked_exactly_once_by_many_processes(self, rig: Rig) -> None:
        jobs = rig.size(10_000)
        q = await rig.worker()
        for start in range(0, jobs, 10_000):
            await q.enqueue_many(
                [_new(f"job-{place}") for place in range(start, min(start + 10_000, jobs))]
            )
        acked = await rig.in_processes(8, children.work_until_empty)
        assert sorted(acked) == sorted(f"job-{place}" for place in range(jobs))
        assert not rig.harness.raw().jobs

    @statement("G8")
    async def test_damaged_or_foreign_stored_bytes_are_reported_and_left_unchanged(
        self, rig: Rig
    ) -> None:
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
    async def test_calls_fail_while_the_storage_is_unavailable_and_work_again_afterwards(
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
        for second in await b.dequeue():  # none if the storage has its own clock
            assert second.token > held.token
            with pytest.raises(LeaseLostError):
                await a.ack(held)
            holder, held = b, second
        rig.clock.jump(timedelta(hours=-2))
        assert await a.dequeue() == []
        # Delays still end while the wall clock catches up.
        await a.enqueue("e", id="soon", delay=timedelta(seconds=10))
        rig.advance(seconds=10)
        assert [job.id for job in await a.dequeue()] == ["soon"]
        await holder.ack(held)
        assert set(rig.harness.raw().jobs) == {"soon"}

    @statement("G10")
    async def test_a_process_with_a_wrong_clock_is_still_fenced(self, rig: Rig) -> None:
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

    @statement("G12", in_every_flavour=False)
    async def test_a_slow_process_commits_within_the_deadline_beside_fast_ones(
        self, rig: Rig
    ) -> None:
        is_full = rig.harness.tier == "full"
        # Round trips are longer where each one is a real request: fewer fit into the same time.
        fast_trip = timedelta(milliseconds=10 if is_full else 40)
        slow_trip = 10 * fast_trip
        if rig.harness.slowed(slow_trip) is None:
            return  # this store makes no requests, so no process can be slower
        # The sync Queue reaches such a store through the committer of BrokerQueue.
        kind = DirectQueue if rig.flavour == "direct" else BrokerQueue
        fast, times = (7, 3) if is_full else (2, 1)
        rig.clock.is_patient = True
        stores = [rig.harness.slowed(fast_trip) for _ in range(fast)]
        stores.append(rig.harness.slowed(slow_trip))
        queues = [kind(store) for store in stores if store is not None]
        is_over = False

        async def hammer(q: AsyncQueue) -> None:
            while not is_over:
                await q.enqueue("e", queue=q.worker)
                await q.drop(q.worker)

        async def slow_ones() -> None:
            for place in range(times):
                await queues[-1].enqueue("slow", id=f"slow-{place}")

        for q in queues:
            await q.__aenter__()
        busy = [asyncio.create_task(hammer(q)) for q in queues[:-1]]
        await _simulate(rig, asyncio.create_task(slow_ones()))
        is_over = True
        await _simulate(rig, asyncio.ensure_future(asyncio.gather(*busy)))
        assert {f"slow-{place}" for place in range(times)} <= set(rig.harness.raw().jobs)


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
        assert jobs, f"{run}: a job is lost; finished jobs: {done}"
        for job in jobs:
            assert job.payload == job.id.encode()
            assert job.attempts == (2 if job.id == first.id else 1), "claimed more than once"
            tokens.append(job.token)
            await q.ack(job)
            done.append(job.id)
    assert sorted(done) == ids
    assert tokens == sorted(set(tokens))
    assert rig.harness.raw().token >= tokens[-1]


def _new(job_id: str) -> NewJob:
    return NewJob("e", id=job_id)


async def _simulate(rig: Rig, task: asyncio.Future[Any]) -> None:
    """Run a simulation on the fake clock: when everything waits, time moves to the next event."""
    while not task.done():
        for _ in range(20):
            await asyncio.sleep(0)
        if not task.done() and not rig.clock.advance_to_next():
            await asyncio.wait({task}, timeout=0.001)  # a real request is under way
    task.result()


async def _check_after_death(q: AsyncQueue, said: list[str]) -> None:
    """Every acknowledged job is stored; every stored job was enqueued."""
    words = [line.split() for line in said]
    reported = {
        verb: {line[1] for line in words if line[0] == verb and len(line) > 1}
        for verb in ("enqueue", "enqueued", "ack", "acked")
    }
    state = await q.read_state()
    there = {job.id for job in state.jobs}
    assert reported["enqueued"] - reported["ack"] <= there
    assert there <= reported["enqueue"] - reported["acked"]
    # Clear what the dead process left, for the next round.
    for job in state.jobs:
        await q.cancel(job.id)
    await q.purge(older_than=timedelta(0))
