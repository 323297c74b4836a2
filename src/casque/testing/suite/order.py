"""Order and visibility: statements O1 to O3 and O5 to O7."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from itertools import islice

from casque.job import Job, JobStatus
from casque.queues.arguments import ENQUEUE_MANY_JOBS, NewJob
from casque.queues.async_queue import AsyncQueue
from casque.system.clock import SECOND_US, to_datetime
from casque.testing.rig import Rig, counted
from casque.testing.statement import Statements, statement

FEW = 20
"""How many entries one claim may touch beside its distinct priorities, in a store of any size."""

Ending = Callable[[Job], Awaitable[object]]
"""A call that ends a holder's work on a job."""

_EVERYTHING = 10_000
_LONG = timedelta(hours=1)


async def fill(q: AsyncQueue, jobs: Iterable[NewJob]) -> None:
    """Enqueue any number of jobs, in the largest batches that one call takes."""
    jobs = iter(jobs)
    while chunk := list(islice(jobs, ENQUEUE_MANY_JOBS)):
        await q.enqueue_many(chunk)


def ids(jobs: Iterable[Job]) -> list[str]:
    return [job.id for job in jobs]


class OrderStatements(Statements):
    @statement("O1")
    async def test_a_queue_is_served_by_priority_then_due_time_then_enqueue_order(
        self, rig: Rig
    ) -> None:
        q = await rig.worker()
        chance, start = random.Random(1), rig.clock.now()  # noqa: S311 - to be repeatable
        jobs = [
            NewJob(
                chance.choice("xyz"),
                priority=chance.randint(-2, 2),
                id=f"{100 - n:03}",  # descending, so that sorting by id gives another order
                run_at=to_datetime(start - chance.randrange(3) * SECOND_US),
            )
            for n in range(60)
        ]
        await q.enqueue_many(jobs[:50])
        for job in jobs[50:]:
            await q.enqueue(job.entrypoint, priority=job.priority, id=job.id, run_at=job.run_at)
        ordered = sorted(jobs, key=lambda job: (job.priority, job.run_at))  # sorted is stable
        expected = [job.id for job in ordered]
        assert ids(await q.peek(limit=60)) == expected
        one_by_one = [job.id for _ in range(20) for job in await q.dequeue()]
        assert one_by_one == expected[:20]
        in_batches = [job.id for _ in range(4) for job in await q.dequeue(batch_size=10)]
        assert in_batches == expected[20:]
        assert await q.dequeue() == []

    @statement("O1")
    async def test_a_job_that_comes_back_is_ordered_by_its_new_due_time(self, rig: Rig) -> None:
        q = await rig.worker()
        await q.enqueue_many([NewJob("e", id=name) for name in ("lost", "nacked", "released", "d")])
        await q.dequeue(id="lost", lease=timedelta(seconds=10))
        await q.dequeue(batch_size=2)
        await q.nack("nacked", delay=timedelta(seconds=5))
        await q.release("released", delay=timedelta(seconds=7))
        rig.advance(seconds=1)
        await q.enqueue("e", id="late")
        await q.enqueue("e", priority=-1, id="scheduled", delay=timedelta(seconds=20))
        rig.advance(seconds=15)
        in_order = ["d", "late", "nacked", "released", "lost"]
        assert ids(await q.peek()) == in_order
        rig.advance(seconds=15)
        in_order.insert(0, "scheduled")
        assert [job.id for _ in in_order for job in await q.dequeue()] == in_order

    @statement("O1")
    async def test_queues_take_turns_regardless_of_priorities(self, rig: Rig) -> None:
        q = await rig.worker()
        for queue, priority in (("b", 9), ("c", -9), ("a", 0)):
            await q.enqueue_many(
                [NewJob("e", priority=priority, queue=queue, id=f"{queue}{n}") for n in range(4)]
            )
        in_turn = ["b0", "c0", "a0", "b1", "c1", "a1"]
        for expected in in_turn:  # for every queue object, whenever it was opened
            assert ids(await (await rig.worker()).dequeue()) == [expected]
        # One dequeue takes all it can from a queue before it goes on to the next.
        assert ids(await q.dequeue(batch_size=3)) == ["b2", "b3", "c2"]
        assert ids(await q.dequeue(batch_size=3)) == ["a2", "a3", "c3"]

    @statement("O1", in_every_flavour=False)
    async def test_a_newly_opened_store_handle_returns_jobs_in_the_same_order(
        self, rig: Rig
    ) -> None:
        q = await rig.worker()
        chance = random.Random(2)  # noqa: S311 - to be repeatable
        endings: tuple[Ending, ...] = (q.ack, q.nack, q.release)
        # Many small commits: a ledger replays part of its log and reads the rest from a snapshot.
        rounds = rig.size(2_000)
        for n in range(rounds):
            await q.enqueue(
                chance.choice("xyz"),
                priority=chance.randrange(3),
                queue=chance.choice("abc"),
                id=f"{rounds - n}",
                run_at=to_datetime(rig.clock.now() - chance.randrange(3) * SECOND_US),
            )
            if n % 3:
                [job] = await q.dequeue()
                await chance.choice(endings)(job)
            rig.advance(milliseconds=chance.randrange(2))
            if n % (rounds // 4) == 0:
                fresh = await rig.worker()
                assert ids(await fresh.peek(limit=_EVERYTHING)) == ids(
                    await q.peek(limit=_EVERYTHING)
                )
        expected = ids(await q.peek(limit=_EVERYTHING))
        assert len(expected) > rounds // 4
        fresh = await rig.worker()
        assert ids(await fresh.dequeue(batch_size=_EVERYTHING)) == expected

    @statement("O2")
    async def test_future_jobs_of_the_best_priority_never_hide_a_ready_one(self, rig: Rig) -> None:
        q = await rig.worker()
        for future, ready, priorities in (("e", "e", 1), ("e", "e", 10), ("e", "other", 1)):
            queue = f"{ready}-{priorities}"
            await fill(
                q,
                (
                    NewJob(future, priority=n % priorities, queue=queue, delay=_LONG)
                    for n in range(rig.size(1_000))
                ),
            )
            await q.enqueue(ready, priority=100, queue=queue, id=queue)
            with counted(rig.harness.touched) as touched:
                claimed = await q.dequeue(batch_size=10)
            assert ids(claimed) == [queue]
            assert touched() <= FEW + 2 * priorities

    @statement("O3")
    async def test_leased_jobs_of_the_best_priority_never_hide_a_ready_one(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        for leased, ready, priorities in (("e", "e", 1), ("e", "e", 10), ("e", "other", 1)):
            queue, count = f"{ready}-{priorities}", rig.size(1_000)
            await fill(
                q, (NewJob(leased, priority=n % priorities, queue=queue) for n in range(count))
            )
            assert len(await q.dequeue(batch_size=count, lease=_LONG)) == count
            await q.enqueue(ready, priority=100, queue=queue, id=queue)
            with counted(rig.harness.touched) as touched:
                claimed = await other.dequeue(batch_size=10)
            assert ids(claimed) == [queue]
            assert touched() <= FEW + 2 * priorities

    @statement("O5")
    async def test_a_dequeue_returns_exactly_the_requested_queue_and_entrypoints(
        self, rig: Rig
    ) -> None:
        q = await rig.worker()
        await q.enqueue_many(
            [
                NewJob(entrypoint, queue=queue, id=f"{queue}/{entrypoint}/{n}", priority=n)
                for n in range(2)
                for entrypoint in "xyz"
                for queue in "abc"
            ]
        )
        asked: tuple[tuple[str | list[str] | None, str], ...] = (
            (None, "xyz"),
            ("x", "x"),
            (["x"], "x"),
            (["z", "x"], "xz"),
            (["x", "nobody", "x"], "x"),
            ("nobody", ""),
        )
        for entrypoints, found in asked:
            for queue in (None, "a", "b", "nowhere"):
                expected = {
                    f"{name}/{entrypoint}/{n}"
                    for n in range(2)
                    for entrypoint in found
                    for name in "abc"
                    if queue in (None, name)
                }
                claimed = await q.dequeue(entrypoints, queue=queue, batch_size=100)
                assert sorted(ids(claimed)) == sorted(expected)
                for job in claimed:
                    await q.release(job)

    @statement("O5", in_every_flavour=False)
    async def test_the_one_due_job_of_an_entrypoint_is_found_among_any_number_of_queues(
        self, rig: Rig
    ) -> None:
        q = await rig.worker()
        queues = rig.size(100_000)
        place = queues * 2 // 3
        await fill(
            q,
            (
                # Half of the other queues have the entrypoint but nothing due, half the reverse.
                NewJob("x", queue=f"{n}", delay=_LONG) if n % 2 else NewJob("y", queue=f"{n}")
                for n in range(queues)
            ),
        )
        await q.enqueue("x", queue=f"{place}", id="the one")
        for entrypoints in ("x", ["nobody", "x"]):
            with counted(rig.harness.touched) as touched:
                claimed = await q.dequeue(entrypoints, batch_size=10)
            assert ids(claimed) == ["the one"]
            assert touched() <= FEW
            await q.release("the one")

    @statement("O6")
    async def test_jobs_of_an_entrypoint_stay_until_a_worker_asks_for_it(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("strange", b"kept", id="strange", priority=-1, max_attempts=1)
        stored = rig.harness.raw().jobs["strange"]
        for _ in range(10):
            await q.enqueue("known")
            [job] = await q.dequeue("known", batch_size=9)
            await q.ack(job)
            assert await q.dequeue(["known", "also known"], batch_size=9) == []
            rig.advance(days=10)
        await q.purge(older_than=timedelta(0))
        assert rig.harness.raw().jobs["strange"] == stored
        [job] = await other.dequeue(["strange"])
        assert (job.id, job.payload, job.attempts) == ("strange", b"kept", 1)

    @statement("O7")
    async def test_reads_take_no_lease_and_change_nothing(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await _one_job_of_every_kind(rig, q)
        before = rig.harness.raw()
        with counted(rig.harness.writes) as written:
            for reader in (q, other):
                assert ids(await reader.peek()) == ["expired", "ready"]
                assert ids(await reader.peek("e", queue="default", limit=1)) == ["expired"]
                state = await reader.read_state()
                assert {job.id for job in state.jobs} == set(before.jobs)
                for name in before.jobs:
                    assert await reader.get(name) == state.find(name)
                assert await reader.get("unknown") is None
                assert await reader.jobs() == list(state.jobs)
                assert (await reader.stats()).total == len(before.jobs)
                assert (await reader.stats("default")).total == len(before.jobs)
                assert await reader.queues() == await reader.queues(due=True) == ["default"]
                assert await reader.next_run_at("default") is not None
        assert written() == 0
        assert rig.harness.raw() == before
        assert ids(await other.dequeue(batch_size=10)) == ["expired", "ready"]

    @statement("O7")
    async def test_jobs_are_listed_by_status_queue_and_entrypoint(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await _one_job_of_every_kind(rig, q)
        await q.enqueue("another", id="elsewhere", queue="tenant")
        assert ids(await other.jobs(status="dead")) == ["dead", "spent"]
        assert ids(await other.jobs(status=JobStatus.IN_PROGRESS)) == ["leased", "expired"]
        assert ids(await other.jobs(status="queued")) == ["ready", "future", "elsewhere"]
        assert ids(await other.jobs(status="scheduled")) == ["future"]
        assert ids(await other.jobs(queue="tenant")) == ["elsewhere"]
        assert ids(await other.jobs(entrypoint="another", queue="tenant")) == ["elsewhere"]
        assert await other.jobs(entrypoint="another", queue="default") == []
        assert await other.jobs(status="queued", queue="nowhere") == []
        assert await other.jobs(status="dead", entrypoint="another") == []

    @statement("O7")
    async def test_pages_of_jobs_have_each_job_once_in_enqueue_order(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue_many([NewJob("e", id=f"{n:02}", priority=-n) for n in range(25)])
        listed, page = [], await other.jobs(limit=10)
        while page:
            listed += ids(page)
            page = await other.jobs(limit=10, after=page[-1])
        assert listed == [f"{n:02}" for n in range(25)]
        [job] = await other.jobs(limit=1)
        assert ids(await other.jobs(limit=2, after=job.seq)) == ["01", "02"]

    @statement("O7")
    async def test_a_dequeue_by_id_takes_that_job_or_nothing(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await _one_job_of_every_kind(rig, q)
        for name in ("future", "leased", "completed", "dead", "cancelled", "unknown", "spent"):
            assert await other.dequeue(id=name, batch_size=10) == []
        assert await other.dequeue("another", id="ready") == []
        assert await other.dequeue(id="ready", queue="another") == []
        [peeked] = await other.peek(limit=1)
        assert ids(await other.dequeue(id=peeked.id, batch_size=10)) == [peeked.id]
        [job] = await other.dequeue(["another", "e"], id="ready", queue="default")
        assert (job.id, job.worker, job.attempts) == ("ready", other.worker, 1)
        assert await q.dequeue(id="ready") == []
        await other.ack(job)
        assert await q.dequeue(id="ready") == []
        rig.advance(hours=1)
        assert ids(await other.dequeue(id="future")) == ["future"]
        assert ids(await other.dequeue(id="leased")) == ["leased"]


async def _one_job_of_every_kind(rig: Rig, q: AsyncQueue) -> None:
    """One job in each state, named after it. Only `ready` and `expired` are due."""
    for name in ("completed", "dead", "cancelled", "leased", "expired"):
        await q.enqueue("e", id=name, retain=2 * _LONG)
    await q.enqueue("e", id="spent", max_attempts=1)
    for name in ("completed", "dead", "leased"):
        await q.dequeue(id=name, lease=_LONG)
    await q.ack("completed", result=b"done")
    await q.fail("dead", error="no")
    await q.cancel("cancelled")
    for name in ("expired", "spent"):
        await q.dequeue(id=name, lease=timedelta(seconds=1))
    rig.advance(seconds=2)
    await q.enqueue("e", id="ready")
    await q.enqueue("e", id="future", priority=-1, delay=_LONG)
