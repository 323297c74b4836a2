"""Lines, fairness: statements Q1 to Q9."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any, Self

import pytest

from casque.arguments import NewJob
from casque.clock import SECOND_US, to_datetime, to_us
from casque.errors import InvalidError, JobNotFoundError, LeaseLostError
from casque.job import Job, JobStatus, Stats
from casque.queue import AsyncQueue
from casque.state import QueueState
from casque.testing.rig import Raw, Rig, counted
from casque.testing.statement import Statements, statement
from casque.testing.suite.order import FEW, Ending, fill, ids, soon, waiting

_STEPS = 400
_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_LONG = timedelta(hours=1)
_QUEUES = ("a", "b", "c")


class LineStatements(Statements):
    @statement("Q1")
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
                await end(job)  # and of the last one nothing is heard again
            operations += 10 + 2 * len(claimed) + 5
            rig.advance(seconds=1)
            lines = rig.harness.raw().lines
            assert [(line.queue, line.entrypoint) for line in lines] == [("default", "e")]

    @statement("Q1", "Q2", "Q4")
    async def test_no_line_is_doubled_missing_left_over_or_late_after_random_operations(
        self, rig: Rig
    ) -> None:
        turmoil = await _Turmoil.begin(rig, seed=4)
        committed_us = rig.clock.now()
        for _ in range(_steps(rig)):
            with counted(rig.harness.writes) as written:
                await turmoil.step()
            if written():
                committed_us = rig.clock.now()
            # Read anew each time: a line must be right at every commit, not only in the end.
            _check_lines(rig.harness.raw(), committed_us)

    @statement("Q3")
    async def test_a_line_is_not_visited_before_the_rest_of_it_is_due(self, rig: Rig) -> None:
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
            assert _visit_us(rig, f"{n}") == to_us(to_datetime(rig.clock.now()) + _MINUTE)
            await end(job)
            assert _visit_us(rig, f"{n}") == rest_us
        rig.clock.advance(9 * _MINUTE)
        assert await q.dequeue(batch_size=100) == []
        for earlier_at in (rest_at - _SECOND, to_datetime(rig.clock.now())):
            await q.enqueue("e", queue="0", priority=9, run_at=earlier_at)
            assert _visit_us(rig, "0") == to_us(earlier_at)
        assert [job.run_at for job in await q.dequeue(batch_size=100)] == [earlier_at]
        assert _visit_us(rig, "0") == rest_us - SECOND_US
        rig.clock.advance(_MINUTE - _SECOND)
        assert len(await q.dequeue(batch_size=100)) == 1
        assert _visit_us(rig, "0") == rest_us
        rig.clock.advance(_SECOND)
        assert len(await q.dequeue(batch_size=100)) == len(endings)

    @statement("Q4")
    async def test_a_line_goes_with_the_last_of_its_jobs(self, rig: Rig) -> None:
        q = await rig.worker()

        async def bury(_: Job) -> None:
            rig.clock.advance(_SECOND)
            assert await q.dequeue() == []

        endings: tuple[Ending, ...] = (
            q.ack,
            q.nack,  # of the last attempt
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
    async def test_a_line_comes_back_with_a_dead_job_that_is_retried(self, rig: Rig) -> None:
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

    @statement("Q5")
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

    @statement("Q6")
    async def test_a_hot_queue_delays_the_single_jobs_of_others_by_one_visit_each(
        self, rig: Rig
    ) -> None:
        q = await rig.worker()
        # Two lines, the second hardly ever served: it must not keep the queue's place at the front.
        # And of better priorities than the others: between queues these must not count.
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

    @statement("Q7")
    async def test_a_queue_lease_has_one_holder_and_none_for_the_others_at_once(
        self, rig: Rig
    ) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", queue="a", id="j")
        async with q.lease_queue("a") as held:
            assert held is not None
            assert held.worker == q.worker
            for rival in (other, q):
                async with rival.lease_queue("a") as refused:
                    assert refused is None
            async with other.lease_queue("b") as another:
                assert another is not None
            # That the refused and the neighbour have left took nothing from the holder.
            async with other.lease_queue("a") as refused:
                assert refused is None
            assert ids(await other.dequeue(queue="a")) == ["j"]
        async with other.lease_queue("a") as held_next:
            assert held_next is not None
            assert held_next.token > held.token

    @statement("Q7")
    async def test_a_queue_lease_ends_by_time_and_its_old_holder_cannot_end_the_next(
        self, rig: Rig
    ) -> None:
        q, other = await rig.worker(), await rig.worker()
        async with AsyncExitStack() as theirs:
            async with q.lease_queue("a", lease=10 * _SECOND) as held:
                assert held is not None
                assert held.until == to_datetime(rig.clock.now()) + 10 * _SECOND
                rig.advance(seconds=9)
                async with other.lease_queue("a") as refused:
                    assert refused is None
                rig.advance(seconds=1)
                taken = await theirs.enter_async_context(other.lease_queue("a", lease=_MINUTE))
                assert taken is not None
                assert taken.token > held.token
            # The first holder has left, and let go of nothing: it was not its own any more.
            async with q.lease_queue("a") as refused:
                assert refused is None
        async with q.lease_queue("a") as held:
            assert held is not None

    @statement("Q8")
    async def test_nothing_is_dequeued_from_a_paused_queue_and_enqueue_still_works(
        self, rig: Rig
    ) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", queue="a", id="leased")
        [leased] = await q.dequeue(lease=_SECOND)
        await q.enqueue("e", queue="a", id="held")
        [held] = await q.dequeue(lease=_LONG)
        await q.enqueue("e", queue="a", id="before")
        await q.enqueue("e", queue="b", id="elsewhere")
        await other.pause("a")
        await other.pause("a")
        await q.enqueue("e", queue="a", id="after", priority=-1)
        await q.enqueue("new line", queue="a", id="new line")
        rig.clock.advance(_SECOND)
        anew = await rig.worker()
        asked: tuple[dict[str, Any], ...] = (
            {"queue": "a"},
            {"queue": "a", "entrypoint": "e"},
            {"entrypoint": "new line"},
            {"id": "before"},
            {"id": leased.id},
            {"wait": timedelta(0), "queue": "a"},
        )
        for worker in (q, other, anew):
            for filters in asked:
                assert await worker.dequeue(batch_size=100, **filters) == []
            assert ids(await worker.peek()) == ["elsewhere"]
        assert ids(await anew.dequeue(batch_size=100)) == ["elsewhere"]
        assert (await q.stats("a")).pending == 3
        # Whoever holds a job of it may finish, and a job given back waits with the others.
        await q.ack(held)
        await q.nack(leased)
        assert await other.dequeue() == []
        await q.resume("a")
        await q.resume("a")
        in_order = ["after", "before", "new line", "leased"]
        assert ids(await other.dequeue(batch_size=100)) == in_order

    @statement("Q8")
    async def test_a_resumed_queue_is_as_it_was_and_wakes_who_waits_for_it(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue_many([NewJob("e", queue=queue, id=queue) for queue in _QUEUES])
        before = rig.harness.raw()
        await q.pause("b")
        await other.resume("b")
        await q.resume("never paused")
        after = rig.harness.raw()
        assert (after.jobs, sorted(after.lines)) == (before.jobs, sorted(before.lines))
        assert ids(await other.dequeue(batch_size=9)) == ["a", "b", "c"]
        await other.release("b")
        await q.pause("b")
        async with waiting(rig, other) as task:
            await q.resume("b")
            assert ids(await soon(rig, task)) == ["b"]

    @statement("Q8")
    async def test_a_dropped_queue_loses_all_its_jobs_and_no_other_does(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        for queue in ("a", "b"):
            for name in ("completed", "dead", "cancelled", "leased"):
                await q.enqueue("e", queue=queue, id=f"{queue} {name}", retain=_LONG)
            await q.enqueue("e", queue=queue, id=f"{queue} scheduled", delay=_LONG)
            [completed, dead, _, _] = await q.dequeue(queue=queue, batch_size=4)
            await q.ack(completed)
            await q.fail(dead)
            await q.cancel(f"{queue} cancelled")
            await q.enqueue("other", queue=queue, id=f"{queue} ready")
        before = rig.harness.raw()
        kept = {name: job for name, job in before.jobs.items() if job["queue"] == "b"}
        assert await other.drop("a") == 6
        after = rig.harness.raw()
        assert after.jobs == kept
        assert sorted(after.lines) == sorted(line for line in before.lines if line.queue == "b")
        assert await other.stats("a") == Stats()
        assert await other.stats() == await other.stats("b")
        assert await other.queues() == ["b"]
        with pytest.raises(JobNotFoundError):
            await q.ack("a leased")
        assert await other.drop("a") == 0
        assert not (await q.enqueue("e", queue="a", id="a leased")).duplicate
        await q.ack("b leased")
        assert ids(await q.dequeue(batch_size=9)) == ["b ready", "a leased"]

    @statement("Q9")
    async def test_the_counts_follow_a_job_from_state_to_state(self, rig: Rig) -> None:
        q = await rig.worker()

        async def counts_are(expected: Stats) -> None:
            assert await q.stats("a") == expected
            assert await q.stats() == expected
            assert await q.stats("b") == Stats()
            assert expected.total == await _total(q)

        await counts_are(Stats())
        await q.enqueue("e", queue="a", id="j", delay=_SECOND, max_attempts=2, retain=_MINUTE)
        await counts_are(Stats(scheduled=1))
        rig.clock.advance(_SECOND)
        await counts_are(Stats(pending=1))
        [job] = await q.dequeue()
        await counts_are(Stats(processing=1))
        await q.release(job, delay=_SECOND)
        await counts_are(Stats(scheduled=1))
        rig.clock.advance(_SECOND)
        await counts_are(Stats(pending=1))
        [job] = await q.dequeue(lease=_SECOND)
        rig.clock.advance(_SECOND)
        await counts_are(Stats(processing=1))  # nobody took it back, and the holder may still ack
        await q.nack(job, delay=_SECOND)
        await counts_are(Stats(failed=1))
        rig.clock.advance(_SECOND)
        await counts_are(Stats(failed=1))
        [job] = await q.dequeue(lease=_SECOND)
        await counts_are(Stats(processing=1))
        rig.clock.advance(_SECOND)
        await counts_are(Stats(dead=1))  # its last attempt is lost, though nothing was written
        await q.heartbeat(job)
        await counts_are(Stats(processing=1))
        await q.fail(job)
        await counts_are(Stats(dead=1))
        await q.retry("j")
        await counts_are(Stats(pending=1))
        await q.cancel("j")
        await counts_are(Stats(cancelled=1))
        await q.purge(older_than=timedelta(0))
        await counts_are(Stats())
        await q.enqueue("e", queue="a", id="j", retain=_MINUTE)
        [job] = await q.dequeue()
        await q.requeue_stale(timedelta(0))
        await counts_are(Stats(failed=1))
        [job] = await q.dequeue()
        await q.ack(job, enqueue=[NewJob("e", queue="a", id="next")])
        await counts_are(Stats(completed=1, pending=1))
        rig.clock.advance(_MINUTE)
        await counts_are(Stats(pending=1))
        await q.drop("a")
        await counts_are(Stats())

    @statement("Q9")
    async def test_the_counts_equal_the_records_after_every_operation(self, rig: Rig) -> None:
        turmoil, observer = await _Turmoil.begin(rig, seed=9), await rig.worker()
        for _ in range(_steps(rig)):
            await turmoil.step()
            raw, state = rig.harness.raw(), await observer.read_state()
            now = rig.clock.now()
            for queue in (None, *_QUEUES, "nowhere"):
                stats = await observer.stats(queue)
                assert stats == _stored(raw, state, now, queue)
                assert _statuses(stats) == Counter(
                    job.status for job in state.jobs if queue in (None, job.queue)
                )


def _steps(rig: Rig) -> int:
    return _STEPS if rig.harness.tier == "full" else _STEPS // 4


async def _serve_all_beside_a_hot_queue(
    rig: Rig,
    q: AsyncQueue,
    prefix: str,
    *,
    between: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Until the last of a hundred single jobs is claimed the hot queue has only its share."""
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


class _Turmoil:
    """Workers and operators doing at random whatever they do, one operation at a time."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._chance = random.Random(seed)  # noqa: S311 - to be repeatable
        self._crew: list[AsyncQueue] = []
        # Some stay here when they are over: late and repeated endings are part of the turmoil.
        self._held: deque[Job] = deque(maxlen=8)
        self._known: deque[str] = deque(maxlen=30)
        self._count = 0
        self._acts: tuple[tuple[int, Callable[[AsyncQueue], Awaitable[object]]], ...] = (
            (6, lambda q: q.enqueue_many([self._new() for _ in range(self._chance.randint(1, 5))])),
            (10, self._dequeue),
            (2, self._claim_one),
            (4, lambda q: q.ack(self._claim())),
            (1, lambda q: q.ack_many([self._claim(), self._claim()])),
            (2, lambda q: q.ack(self._claim(), enqueue=[self._new()])),
            (3, lambda q: q.nack(self._claim(), delay=self._span())),
            (1, lambda q: q.fail(self._claim())),
            (1, lambda q: q.discard(self._claim())),
            (2, lambda q: q.release(self._claim(), delay=self._span())),
            (2, lambda q: q.heartbeat(self._claim(), lease=self._span(1))),
            (2, lambda q: q.cancel(self._chance.choice(self._known))),
            (2, lambda q: q.retry(self._chance.choice(self._known))),
            (1, lambda q: q.requeue_stale(self._span())),
            (1, lambda q: q.purge(older_than=self._span())),
            (1, lambda q: q.pause(self._chance.choice(_QUEUES))),
            (2, lambda q: q.resume(self._chance.choice(_QUEUES))),
            (1, lambda q: q.drop(self._chance.choice(_QUEUES))),
            (5, self._let_time_pass),
            (1, self._crash),
        )

    @classmethod
    async def begin(cls, rig: Rig, seed: int) -> Self:
        turmoil = cls(rig, seed)
        turmoil._crew += [await rig.worker(), await rig.worker()]
        while not turmoil._held:
            await turmoil._crew[0].enqueue_many([turmoil._new()])
            rig.advance(minutes=1)
            await turmoil._dequeue(turmoil._crew[1])
        return turmoil

    async def step(self) -> None:
        """One operation; some are refused, as many are in life."""
        weights = [weight for weight, _ in self._acts]
        [(_, act)] = self._chance.choices(self._acts, weights)
        with suppress(InvalidError, JobNotFoundError, LeaseLostError):
            await act(self._chance.choice(self._crew))

    def _new(self) -> NewJob:
        chance = self._chance
        self._count += 1
        # Now and then an id that is there already, or was.
        is_known = self._count > 10 and chance.random() < 0.1
        job_id = chance.choice(self._known) if is_known else f"{self._count}"
        self._known.append(job_id)
        return NewJob(
            chance.choice("xy"),
            priority=chance.randrange(3),
            queue=chance.choice(_QUEUES),
            id=job_id,
            run_at=to_datetime(self._rig.clock.now()) + chance.choice((-1, 0, 0, 1)) * self._span(),
            max_attempts=chance.choice((1, 2, 25)),
            retain=chance.choice((None, None, _SECOND, _MINUTE)),
        )

    def _claim(self) -> Job:
        self._held.rotate(self._chance.randrange(len(self._held)))
        is_over = len(self._held) > 1 and self._chance.random() < 0.8
        return self._held.pop() if is_over else self._held[-1]

    def _span(self, at_least: int = 0) -> timedelta:
        return timedelta(seconds=max(self._chance.choice((0, 1, 1, 2, 5, 60)), at_least))

    async def _dequeue(self, q: AsyncQueue) -> None:
        chance = self._chance
        self._held += await q.dequeue(
            chance.choice((None, None, "x", ["y", "z"])),
            queue=chance.choice((None, None, *_QUEUES)),
            batch_size=chance.randint(1, 4),
            lease=self._span(1),
        )

    async def _claim_one(self, q: AsyncQueue) -> None:
        self._held += await q.dequeue(id=self._chance.choice(self._known), lease=self._span(1))

    async def _let_time_pass(self, _: AsyncQueue) -> None:
        spans = (timedelta(milliseconds=1), _SECOND, _SECOND, 5 * _SECOND, _MINUTE)
        self._rig.clock.advance(self._chance.choice(spans))
        if self._chance.random() < 0.05:
            self._rig.advance(days=31)  # longer than anything finished is kept

    async def _crash(self, q: AsyncQueue) -> None:
        """One of the crew is gone with all it knew; another comes, on a handle of its own."""
        self._crew[self._crew.index(q)] = await self._rig.worker()


def _lines(rig: Rig) -> set[tuple[str, str]]:
    lines = [(line.queue, line.entrypoint) for line in rig.harness.raw().lines]
    assert len(lines) == len(set(lines))
    return set(lines)


def _visit_us(rig: Rig, queue: str) -> int:
    [visit_us] = [line.visit_us for line in rig.harness.raw().lines if line.queue == queue]
    return visit_us


def _check_lines(raw: Raw, committed_us: int) -> None:
    """Each line with a job that is or will be due has one record, early and never late."""
    earliest: dict[tuple[str, str], int] = {}
    for job in raw.jobs.values():
        if job["due_us"] is not None:
            line = job["queue"], job["entrypoint"]
            earliest[line] = min(earliest.get(line, job["due_us"]), job["due_us"])
    assert sorted(line[:2] for line in raw.lines) == sorted(earliest)
    for queue, entrypoint, visit_us in raw.lines:
        assert visit_us <= max(earliest[queue, entrypoint], committed_us)


def _stored(raw: Raw, state: QueueState, now: int, queue: str | None) -> Stats:
    """The counts as the stored records have them, less those whose time is over."""
    live = {job.id: job.max_attempts for job in state.jobs}
    assert live.keys() <= raw.jobs.keys()
    assert all(raw.jobs[job_id]["due_us"] is None for job_id in raw.jobs.keys() - live.keys())
    views = Counter(
        _view(raw.jobs[job_id], max_attempts, now)
        for job_id, max_attempts in live.items()
        if queue in (None, raw.jobs[job_id]["queue"])
    )
    return Stats(**views)


def _view(job: dict[str, Any], max_attempts: int, now: int) -> str:
    if job["status"] == "queued":
        if job["attempts"]:
            return "failed"
        return "pending" if job["due_us"] <= now else "scheduled"
    if job["status"] == "in_progress":
        is_lost = job["attempts"] >= max_attempts and job["due_us"] <= now
        return "dead" if is_lost else "processing"
    status: str = job["status"]
    return status


def _statuses(stats: Stats) -> Counter[JobStatus]:
    return +Counter(
        {
            JobStatus.QUEUED: stats.pending + stats.scheduled + stats.failed,
            JobStatus.IN_PROGRESS: stats.processing,
            JobStatus.COMPLETED: stats.completed,
            JobStatus.DEAD: stats.dead,
            JobStatus.CANCELLED: stats.cancelled,
        }
    )


async def _total(q: AsyncQueue) -> int:
    return len((await q.read_state()).jobs)
