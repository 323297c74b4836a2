"""Promises of a commit to its callers: statements G1 to G4, G11 and G13. G14 needs a bucket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, Literal

import pytest

from casque.errors import CasqueError, InvalidError, JobNotFoundError, LeaseLostError, StorageError
from casque.job import Job
from casque.queues.async_queue import AsyncQueue, BrokerQueue, DirectQueue
from casque.queues.commit import CLOSE_PATIENCE_US
from casque.queues.sync_queue import Queue
from casque.rules.operations import Ack, Dequeue, Enqueue, Request
from casque.rules.state import WRITER_MEMORY_US
from casque.testing import children
from casque.testing.batches import commit_batch
from casque.testing.faults import Fault, FaultyStore
from casque.testing.processes import run_in_process
from casque.testing.relays import Turnstile
from casque.testing.rig import Flavour, Rig
from casque.testing.statement import Statements, statement


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
        claim = Dequeue("me", 1_000_000)
        _, before = await commit_batch(store, "w", 1, [Enqueue((request("first"),), 16), claim])
        token = before.jobs[0].token + 1
        outcomes = await commit_batch(
            store,
            "w",
            2,
            [
                Enqueue((request("a"),), 16),
                Ack("a", token),
                claim,
                Ack("a", token + 1),
                Ack("a", token),
                Ack("a", token),
            ],
        )
        assert isinstance(outcomes[1], LeaseLostError)
        assert [job.id for job in outcomes[2].jobs] == ["a"]
        assert isinstance(outcomes[3], LeaseLostError)
        assert outcomes[4] is None
        assert isinstance(outcomes[5], JobNotFoundError)

    @statement("G3")
    async def test_closing_a_queue_commits_pending_operations(self, rig: Rig) -> None:
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
    async def test_closing_a_queue_waits_no_longer_than_its_limit(self, rig: Rig) -> None:
        if rig.flavour == "queue":
            return  # `close` needs the lock that a thread in a commit holds, so it waits for it
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
        store.gate.set()  # otherwise pytest would wait for the blocked thread

    @statement("G3")
    async def test_a_queue_that_is_not_open_refuses_calls_and_does_not_hang(self, rig: Rig) -> None:
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
    async def test_a_repeated_commit_is_applied_once_and_returns_the_same_answer(
        self, rig: Rig
    ) -> None:
        store = rig.harness.open()
        await commit_batch(store, "w", 1, [Enqueue((request("a"), request("b")), 16)])
        claim = [Dequeue("me", 60_000_000, limit=1)]
        first = await commit_batch(store, "w", 2, claim)
        before = rig.harness.writes()
        assert await commit_batch(store, "w", 2, claim) == first
        assert rig.harness.writes() == before
        assert rig.harness.raw().token == first[0].jobs[0].token
        assert rig.harness.raw().writers["w"] == 2
        with pytest.raises(CasqueError):
            await commit_batch(store, "w", 1, claim)
        # Each writer has its own numbers.
        [other] = await commit_batch(store, "v", 1, claim)
        assert [job.id for job in other.jobs] == ["b"]

    @statement("G4")
    async def test_a_writer_silent_for_long_is_forgotten(self, rig: Rig) -> None:
        store = rig.harness.open()
        await commit_batch(store, "w", 1, [Enqueue((request("a"),), 16)])
        rig.clock.advance(timedelta(microseconds=WRITER_MEMORY_US + 1))
        await commit_batch(store, "v", 1, [Enqueue((request("b"),), 16)])
        assert set(rig.harness.raw().writers) == {"v"}

    @statement("G4")
    async def test_an_outcome_that_can_no_longer_be_determined_is_reported_as_unknown(
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

    @statement("G11")
    async def test_an_answered_write_is_visible_to_every_later_call(self, rig: Rig) -> None:
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

    @statement("G13")
    async def test_threads_share_a_queue(self, rig: Rig) -> None:
        q = await rig.worker()

        def in_its_own_loop(place: int) -> None:
            async def some() -> None:
                for step in range(10):
                    await q.enqueue("e", id=f"{place}-{step}")

            asyncio.run(some())

        threads = [threading.Thread(target=in_its_own_loop, args=(n,)) for n in range(8)]
        await asyncio.to_thread(_start_and_join, threads)
        assert len(rig.harness.raw().jobs) == 80

    @statement("G13")
    async def test_the_child_of_a_fork_reopens_or_refuses(self, rig: Rig) -> None:
        await _fork_and_enqueue(rig, "python")

    @statement("G13")
    async def test_the_child_of_a_fork_in_c_reopens_or_refuses(self, rig: Rig) -> None:
        await _fork_and_enqueue(rig, "c")


async def _fork_and_enqueue(rig: Rig, by: Literal["python", "c"]) -> None:
    address = rig.harness.address or "memory://"
    said = await asyncio.to_thread(
        run_in_process, children.fork_and_enqueue, address, rig.flavour, by
    )
    reports: dict[str, list[str]] = {"parent": [], "child": [], "refused": []}
    for one in said:
        sender, text = one.split(": ", 1)
        reports[sender].append(text)
    assert len(reports["parent"]) == 6
    assert len(reports["child"]) == (0 if reports["refused"] else 5)
    assert all("fork" in reason for reason in reports["refused"])
    ids = reports["parent"] + reports["child"]
    if rig.harness.address:
        assert sorted(rig.harness.raw().jobs) == sorted(ids)
    # The random part of every id differs, so uniqueness does not depend on the time.
    assert len({one[-12:] for one in ids}) == len(ids)


def _kind(flavour: Flavour) -> type[DirectQueue | BrokerQueue]:
    return DirectQueue if flavour == "direct" else BrokerQueue


def _start_and_join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _call_at_once(rig: Rig, q: AsyncQueue, callers: int, store: Turnstile) -> None:
    """Make `callers` enqueue calls, all begun before the gate lets the first one through."""
    if rig.flavour == "queue":
        sync: Queue = q._queue  # type: ignore[attr-defined]
        threads = [threading.Thread(target=sync.enqueue, args=("e",)) for _ in range(callers)]
        for thread in threads:
            thread.start()
        q, waits = sync._queue, [asyncio.to_thread(thread.join) for thread in threads]
    else:
        tasks = [asyncio.create_task(q.enqueue("e")) for _ in range(callers)]
        waits = [_end_of(task) for task in tasks]
    while store.operations + q._session.waiting < callers:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(*waits)


async def _end_of(task: asyncio.Task[Any]) -> None:
    await task
