"""When a dequeue returns, and with how many jobs: statements O4 and O8."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from casque.job import Job
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue
from casque.system.clock import to_datetime
from casque.testing.rig import Rig, counted
from casque.testing.statement import Statements, statement
from casque.testing.suite.order import Ending, ids

_LONG = timedelta(hours=1)
_STEP = timedelta(milliseconds=50)
_SOON_STEPS = 600
"""Half a minute of a wait of an hour: the time a store may take to notice without a signal."""


class WaitStatements(Statements):
    @statement("O4")
    async def test_a_dequeue_returns_all_ready_jobs_up_to_its_batch_size_at_once(
        self, rig: Rig
    ) -> None:
        q = await rig.worker()
        for ready, batch in ((0, 3), (1, 3), (3, 3), (7, 3), (7, 1), (12, 100)):
            await q.drop("a")
            await q.drop("b")
            await q.enqueue_many(
                [
                    NewJob(f"e{n % 3}", priority=n % 2, queue="ab"[n % 2], id=f"{ready}-{n}")
                    for n in range(ready)
                ]
            )
            await q.enqueue_many(
                [NewJob("e0", queue=queue, delay=_LONG, priority=-1) for queue in "ab"]
            )
            # Half of the ready jobs are ready because a lease expired.
            await q.dequeue(batch_size=max(ready // 2, 1), lease=timedelta(seconds=1))
            rig.advance(seconds=1)
            claimed = await rig.until_done(q.dequeue(batch_size=batch))  # with no time passing
            assert len({job.id for job in claimed}) == len(claimed) == min(ready, batch)

    @statement("O4")
    async def test_a_dequeue_with_a_wait_returns_ready_jobs_and_does_not_wait_for_more(
        self, rig: Rig
    ) -> None:
        q = await rig.worker()
        await q.enqueue_many([NewJob("e", id="a"), NewJob("e", id="b"), NewJob("e", delay=_LONG)])
        async with waiting(rig, q, batch_size=5) as task:
            assert ids(await rig.until_done(task)) == ["a", "b"]

    @statement("O8")
    async def test_a_waiting_dequeue_notices_that_the_clock_has_stepped(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", delay=_LONG / 2)
        async with waiting(rig, q) as task:
            await rig.until_asleep()
            rig.clock.jump(_LONG)
            if await other.peek():  # not if the storage has its own clock, which did not step
                await rig.until_done(task, step=_STEP, steps=_SOON_STEPS)

    @statement("O4")
    async def test_a_dequeue_that_changes_no_job_writes_nothing(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()

        async def finds_nothing(**asked: Any) -> None:
            before = rig.harness.raw()
            with counted(rig.harness.writes) as written:
                assert await q.dequeue(batch_size=10, **asked) == []
                assert await q.dequeue(batch_size=10, wait=timedelta(0), **asked) == []
            assert written() == 0
            assert rig.harness.raw() == before

        await finds_nothing()
        await other.enqueue("e", id="leased")
        await other.dequeue(lease=_LONG)
        await other.enqueue("e", id="future", delay=_LONG)
        await other.enqueue("unasked", id="ready", queue="ready")
        await other.enqueue("e", queue="paused")
        await other.pause("paused")
        for asked in (
            {"entrypoint": "e"},
            {"entrypoint": ["e", "nobody"]},
            {"queue": "default"},
            {"queue": "paused"},
            {"queue": "nowhere"},
            {"id": "leased"},
            {"id": "future"},
            {"id": "unknown"},
        ):
            await finds_nothing(**asked)
        async with waiting(rig, q, entrypoint="e") as task:
            with counted(rig.harness.writes) as written:
                rig.advance(minutes=1)
                await _keeps_waiting(task)
            assert written() == 0

    @statement("O4")
    async def test_a_job_without_attempts_left_is_marked_dead_by_one_write_of_a_dequeue(
        self, rig: Rig
    ) -> None:
        q = await rig.worker()
        await q.enqueue("e", id="spent", max_attempts=1)
        await q.dequeue(lease=timedelta(seconds=1))
        rig.advance(seconds=1)
        with counted(rig.harness.writes) as written:
            assert await q.dequeue() == []
            assert rig.harness.raw().jobs["spent"]["status"] == "dead"
            assert written() == 1
            assert await q.dequeue() == []
        assert written() == 1

    @statement("O8")
    async def test_a_waiting_dequeue_returns_as_soon_as_anybody_enqueues(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        for n, producer in enumerate((q, other, await rig.worker())):
            async with waiting(rig, q) as task:
                await producer.enqueue("e", id=f"{n}")
                [job] = await soon(rig, task)
                assert (job.id, job.worker) == (f"{n}", q.worker)

    @statement("O8")
    async def test_a_waiting_dequeue_returns_as_soon_as_a_job_is_given_back(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="j")
        endings: tuple[Ending, ...]
        endings = (other.release, other.nack, _fail_and_retry(other), _requeue(other))
        for give_back in endings:
            [held] = await other.dequeue()
            async with waiting(rig, q) as task:
                await give_back(held)
                assert ids(await soon(rig, task)) == ["j"]
            await q.release("j")

    @statement("O8")
    async def test_a_waiting_dequeue_returns_a_job_that_becomes_due_by_time_alone(
        self, rig: Rig
    ) -> None:
        q, other = await rig.worker(), await rig.worker()
        minute = timedelta(minutes=1)
        await other.enqueue("e", id="scheduled", delay=minute)
        await _returns_when_due(rig, q, "scheduled")
        await q.nack("scheduled", delay=minute)
        await _returns_when_due(rig, q, "scheduled")
        await q.ack("scheduled")
        await other.enqueue("e", id="leased")
        await other.dequeue(lease=minute)
        await _returns_when_due(rig, q, "leased")

    @statement("O8")
    async def test_a_waiting_dequeue_returns_only_jobs_that_match_its_filters(
        self, rig: Rig
    ) -> None:
        q, other = await rig.worker(), await rig.worker()
        filters: tuple[dict[str, Any], ...]
        filters = ({"entrypoint": ["x", "y"], "queue": "a"}, {"id": "1"})
        for n, asked in enumerate(filters):
            async with waiting(rig, q, **asked) as task:
                await other.enqueue("z", queue="a")
                await other.enqueue("x", queue="b")
                rig.advance(seconds=1)
                await _keeps_waiting(task)
                await other.enqueue("x", queue="a", id=f"{n}")
                assert ids(await soon(rig, task)) == [f"{n}"]

    @statement("O8")
    async def test_a_waiting_dequeue_returns_nothing_at_the_end_of_its_wait(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="far", delay=2 * _LONG)
        wait = timedelta(seconds=5)
        async with waiting(rig, q, wait=wait) as task:
            rig.clock.advance(wait - _STEP)
            await _keeps_waiting(task)
            rig.clock.advance(_STEP)
            assert await rig.until_done(task) == []
        assert await q.dequeue(wait=timedelta(0)) == []
        # Two calls wait and one job is added: one call gets it, and the other's wait ends.
        async with waiting(rig, q, wait=wait) as one, waiting(rig, other, wait=wait) as two:
            await q.enqueue("e", id="j")
            # The clock stops at the end of the wait: a slow server needs real time for a commit.
            jobs = [
                *await rig.until_done(one, step=10 * _STEP, within=wait),
                *await rig.until_done(two, step=10 * _STEP, within=wait),
            ]
            assert ids(jobs) == ["j"]


@asynccontextmanager
async def waiting(
    rig: Rig, q: AsyncQueue, *, wait: timedelta = _LONG, **asked: Any
) -> AsyncIterator[asyncio.Task[list[Job]]]:
    """A dequeue that found nothing and waits. It has ended when the context ends."""
    waits = rig.clock._count
    task = asyncio.ensure_future(q.dequeue(wait=wait, **asked))
    for _ in range(400):
        await asyncio.wait({task}, timeout=0.005)
        if task.done() or rig.clock._count > waits:
            break
    try:
        yield task
    finally:
        # A thread cannot be cancelled, and one that still waits would keep the test from ending.
        for _ in range(400):
            if task.done():
                break
            rig.clock.advance(wait)
            await asyncio.wait({task}, timeout=0.005)


async def _keeps_waiting(task: asyncio.Task[list[Job]]) -> None:
    for _ in range(5):
        done, _ = await asyncio.wait({task}, timeout=0.005)
        assert not done


async def soon(rig: Rig, task: asyncio.Task[list[Job]]) -> list[Job]:
    """The jobs that the dequeue returns, long before its wait would end."""
    return await rig.until_done(task, step=_STEP, steps=_SOON_STEPS)


async def _returns_when_due(rig: Rig, q: AsyncQueue, name: str) -> None:
    """A wait that began before the job is due returns it when it is due, not earlier or later."""
    due_us = rig.harness.raw().jobs[name]["due_us"]
    async with waiting(rig, q) as task:
        await rig.until_asleep()
        rig.clock.advance(to_datetime(due_us) - to_datetime(rig.clock.now()) - _STEP)
        await _keeps_waiting(task)
        await rig.until_asleep()
        rig.clock.advance(_STEP)
        assert ids(await rig.until_done(task)) == [name]


def _fail_and_retry(q: AsyncQueue) -> Ending:
    async def give_back(job: Job) -> None:
        await q.fail(job)
        await q.retry(job.id)

    return give_back


def _requeue(q: AsyncQueue) -> Ending:
    async def give_back(_: Job) -> None:
        assert await q.requeue_stale(timedelta(0)) == 1

    return give_back
