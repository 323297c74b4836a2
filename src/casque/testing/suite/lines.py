"""Lines and their rotation: statements Q1 to Q6."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from casque.job import Job
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue
from casque.system.clock import SECOND_US, to_datetime, to_us
from casque.testing.rig import Raw, Rig, counted
from casque.testing.statement import Statements, statement
from casque.testing.suite.order import FEW, Ending, fill
from casque.testing.suite.turmoil import Turmoil, steps

_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_LONG = timedelta(hours=1)


class LineStatements(Statements):
    @statement("Q1", in_every_flavour=False)
    async def test_a_line_has_one_record_after_any_number_of_operations(self, rig: Rig) -> None:
        q = await rig.worker()
        chance = random.Random(3)  # noqa: S311 - to be repeatable
        endings: tuple[Ending, ...] = (q.nack, q.release, q.fail)
        operations = 0
        while operations < rig.size(10_000):
            await q.enqueue_many(
                [
                    NewJob("e", priority=chance.randrange(3), delay=chance.randrange(3) * _SECOND)
                    for _ in range(10)
                ]
            )
            claimed = await q.dequeue(batch_size=12, lease=chance.randint(1, 5) * _SECOND)
            await q.heartbeat_many(claimed[:5], lease=chance.randint(1, 5) * _SECOND)
            await q.ack_many(claimed[:-4])
            for job, end in zip(claimed[-4:], endings, strict=False):
                await end(job)  # the fourth job is left alone, so its lease expires
            operations += 10 + 2 * len(claimed) + 5
            rig.advance(seconds=1)
            lines = rig.harness.raw().lines
            assert [(line.queue, line.entrypoint) for line in lines] == [("default", "e")]

    @statement("Q1", "Q2", "Q4", in_every_flavour=False)
    async def test_the_lines_match_the_jobs_after_every_random_operation(self, rig: Rig) -> None:
        turmoil = await Turmoil.begin(rig, seed=4)
        for _ in range(steps(rig)):
            await turmoil.step()
            # A line must be right at every commit, not only at the end.
            _check_lines(rig.harness.raw())

    @statement("Q2b", in_every_flavour=False)
    async def test_a_clock_a_day_ahead_hides_no_job_and_stops_no_rotation(self, rig: Rig) -> None:
        q = await rig.worker(lease=_SECOND)
        ahead = await rig.worker(lease=_SECOND, clock=rig.clock.skewed(timedelta(days=1)))
        await q.enqueue_many([NewJob("e", queue="a") for _ in range(30)])
        await q.enqueue_many([NewJob("e", queue=queue) for queue in "bcd" for _ in range(2)])
        [first] = await ahead.dequeue()
        await ahead.ack(first)
        assert first.queue == "a"
        assert (await q.stats()).pending == 35
        assert [job.queue for job in await q.peek(limit=1)] == ["b"]
        assert set(await q.queues(due=True)) == set("abcd")
        # From here on the queues take turns, whichever process claims.
        claims = [(await one.dequeue())[0] for one in (q, ahead, q, q, ahead, q, q)]
        assert [job.queue for job in claims] == list("bcdabcd")
        assert len(await q.dequeue(batch_size=100)) == 28

    @statement("Q2b", "O4", in_every_flavour=False)
    async def test_a_clock_ahead_costs_one_write_and_a_clock_behind_costs_no_turn(
        self, rig: Rig
    ) -> None:
        q = await rig.worker()
        ahead = await rig.worker(clock=rig.clock.skewed(_MINUTE))
        behind = await rig.worker(clock=rig.clock.skewed(-_MINUTE))
        soon = to_datetime(rig.clock.now()) + 2 * _SECOND
        await ahead.enqueue_many([NewJob("e", queue=queue, run_at=soon) for queue in "abc"])
        await ahead.enqueue_many([NewJob("f", queue=f"{n}", run_at=soon) for n in range(60)])
        if not await q.peek():  # unless the store has one clock for all processes
            assert await q.dequeue() == []
            with (
                counted(rig.harness.touched) as touched,
                counted(rig.harness.writes) as written,
            ):
                assert await q.dequeue() == []
            assert touched() <= FEW
            assert written() == 0
        rig.advance(seconds=3)
        [first] = await q.dequeue("e")
        await q.enqueue("e", queue="a")
        for _ in range(2):
            if not await behind.peek():
                assert await behind.dequeue() == []
        rest = [(await q.dequeue("e"))[0] for _ in range(3)]
        assert [job.queue for job in (first, *rest)] == list("abca")

    @statement("Q3")
    async def test_a_line_is_not_visited_before_its_next_job_is_due(self, rig: Rig) -> None:
        q = await rig.worker()
        endings: tuple[Ending, ...] = (
            q.ack,
            q.fail,
            q.discard,
            q.cancel,
            lambda job: q.nack(job, delay=_LONG),
            lambda job: q.release(job, delay=_LONG),
            lambda job: q.heartbeat(job, lease=_LONG),
        )
        rest_at = to_datetime(rig.clock.now()) + 10 * _MINUTE
        rest_us = to_us(rest_at)
        for n, end in enumerate(endings):
            await q.enqueue("e", queue=f"{n}", run_at=rest_at)
            await q.enqueue("e", queue=f"{n}", id=f"{n}", priority=1)
            [job] = await q.dequeue(lease=_MINUTE)
            _check_wait(rig, f"{n}", rig.clock.now() + 60 * SECOND_US)
            await end(job)
            _check_wait(rig, f"{n}", rest_us)
        rig.clock.advance(9 * _MINUTE)
        assert await q.dequeue(batch_size=100) == []
        for earlier_at in (rest_at - _SECOND, to_datetime(rig.clock.now())):
            await q.enqueue("e", queue="0", priority=9, run_at=earlier_at)
            _check_wait(rig, "0", to_us(earlier_at))
        assert [job.run_at for job in await q.dequeue(batch_size=100)] == [earlier_at]
        _check_wait(rig, "0", rest_us - SECOND_US)
        rig.clock.advance(_MINUTE - _SECOND)
        assert len(await q.dequeue(batch_size=100)) == 1
        _check_wait(rig, "0", rest_us)
        rig.clock.advance(_SECOND)
        assert len(await q.dequeue(batch_size=100)) == len(endings)

    @statement("Q4")
    async def test_a_line_is_removed_with_its_last_unfinished_job(self, rig: Rig) -> None:
        q = await rig.worker()

        async def bury(_: Job) -> None:
            rig.clock.advance(_SECOND)
            assert await q.dequeue() == []

        endings: tuple[Ending, ...] = (
            q.ack,
            q.nack,  # this was the last attempt
            q.fail,
            q.discard,
            q.cancel,
            bury,
            lambda _: q.requeue_stale(timedelta(0)),
        )
        for retain in (None, _LONG):
            for end in endings:
                await q.enqueue("e", queue="q", id="j", max_attempts=1, retain=retain)
                await q.enqueue("other", queue="q", id="other", delay=_LONG)
                [job] = await q.dequeue(lease=_SECOND)
                assert _lines(rig) == {("q", "e"), ("q", "other")}
                await end(job)
                assert _lines(rig) == {("q", "other")}
                await q.cancel("other")
                assert _lines(rig) == set()
                assert await q.next_run_at("q") is None
                await q.drop("q")
        await q.enqueue_many([NewJob("e", queue=queue) for queue in "qr"])
        await q.dequeue(queue="q")
        await q.drop("q")
        assert _lines(rig) == {("r", "e")}

    @statement("Q4")
    async def test_retrying_a_dead_job_brings_its_line_back(self, rig: Rig) -> None:
        q = await rig.worker()
        await q.enqueue("e", id="j")
        [job] = await q.dequeue()
        await q.fail(job)
        assert _lines(rig) == set()
        await q.retry("j")
        assert _lines(rig) == {("default", "e")}
        [job] = await q.dequeue()
        await q.ack(job, enqueue=[NewJob("e", id="next")])
        assert _lines(rig) == {("default", "e")}
        [job] = await q.dequeue()
        await q.ack(job)
        assert _lines(rig) == set()

    @statement("Q5", in_every_flavour=False)
    async def test_queues_with_nothing_due_cost_a_dequeue_nothing(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        queues = rig.size(100_000)
        await fill(
            q, (NewJob("e", queue=f"{n}", delay=_LONG if n % 10 else None) for n in range(queues))
        )
        assert len(await q.dequeue(batch_size=queues, lease=_LONG)) == queues // 10 + bool(
            queues % 10
        )
        asked: tuple[dict[str, Any], ...]
        asked = ({}, {"entrypoint": "e"}, {"entrypoint": ["e", "nobody"]}, {"queue": "1"})
        for filters in asked:
            with (
                counted(rig.harness.touched) as touched,
                counted(rig.harness.writes) as written,
            ):
                assert await other.dequeue(batch_size=10, **filters) == []
            assert touched() <= FEW
            assert written() == 0

    @statement("Q6", in_every_flavour=False)
    async def test_a_hot_queue_delays_single_jobs_of_other_queues_by_one_visit_each(
        self, rig: Rig
    ) -> None:
        q = await rig.worker()
        # The hot queue has two lines. The second is hardly ever served: it must not keep the
        # queue at the front. The priorities of both lines are better than those of the other
        # queues: between queues they must not count.
        await fill(
            q,
            (
                NewJob("e" if n % 2 else "never", queue="hot", priority=-1 if n % 2 else 0)
                for n in range(rig.size(100_000))
            ),
        )
        await _serve_all_beside_a_hot_queue(rig, q, "first")
        arrivals = 0

        async def back_dated_arrival() -> None:
            nonlocal arrivals
            arrivals += 1
            await q.enqueue(
                f"e{arrivals % 3}",
                queue="hot",
                priority=-2,
                run_at=to_datetime(rig.clock.now()) - _LONG,
            )

        await _serve_all_beside_a_hot_queue(rig, q, "second", between=back_dated_arrival)
        assert arrivals


async def _serve_all_beside_a_hot_queue(
    rig: Rig,
    q: AsyncQueue,
    prefix: str,
    *,
    between: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """The hot queue gets no more than its share until all of a hundred single jobs are claimed."""
    left = {f"{prefix} {n}" for n in range(100)}
    may_have = len(left) + 10
    await q.enqueue_many([NewJob("e", queue=name, priority=9) for name in sorted(left)])
    hot = 0
    while left:
        if between is not None:
            await between()
        claimed = await q.dequeue(batch_size=10)
        assert len(claimed) == 10
        hot += sum(job.queue == "hot" for job in claimed)
        assert hot <= may_have
        left -= {job.queue for job in claimed}
        rig.advance(milliseconds=1)
        await q.ack_many(claimed[:2])


def _lines(rig: Rig) -> set[tuple[str, str]]:
    lines = [(line.queue, line.entrypoint) for line in rig.harness.raw().lines]
    assert len(lines) == len(set(lines))
    return set(lines)


def _check_wait(rig: Rig, queue: str, until_us: int) -> None:
    """The line of a queue waits until this time, or is due if the time is past."""
    lines = rig.harness.raw().lines
    if all(line.visit_us is None for line in lines):
        return  # this store does not keep the time
    [visit_us] = [line.visit_us for line in lines if line.queue == queue]
    assert visit_us == (until_us if until_us > rig.clock.now() else None)


def _check_lines(raw: Raw) -> None:
    """Each line with an unfinished job is stored once; if it waits, until its first job is due."""
    earliest: dict[tuple[str, str], int] = {}
    for job in raw.jobs.values():
        if job["due_us"] is not None:
            line = job["queue"], job["entrypoint"]
            earliest[line] = min(earliest.get(line, job["due_us"]), job["due_us"])
    assert sorted(line[:2] for line in raw.lines) == sorted(earliest)
    for queue, entrypoint, visit_us in raw.lines:
        assert visit_us in (None, earliest[queue, entrypoint])
