"""Leases, pauses, drops and counts of a queue: statements Q7 to Q9."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from casque.errors import JobNotFoundError
from casque.job import JobStatus, Stats
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue
from casque.rules.state import QueueState
from casque.system.clock import to_datetime
from casque.testing.rig import Raw, Rig
from casque.testing.statement import Statements, statement
from casque.testing.suite.order import ids
from casque.testing.suite.turmoil import QUEUES, Turmoil, steps
from casque.testing.suite.waiting import soon, waiting

_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_LONG = timedelta(hours=1)


class QueueStatements(Statements):
    @statement("Q7")
    async def test_a_queue_lease_has_one_holder_and_others_get_none_at_once(self, rig: Rig) -> None:
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
            # The holder keeps its lease when the refused ones and the holder of b leave.
            async with other.lease_queue("a") as refused:
                assert refused is None
            assert ids(await other.dequeue(queue="a")) == ["j"]
        async with other.lease_queue("a") as held_next:
            assert held_next is not None
            assert held_next.token > held.token

    @statement("Q7")
    async def test_a_queue_lease_expires_and_its_old_holder_cannot_end_the_next_one(
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
            # The first holder has left. It released nothing, because its lease had expired.
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
        fresh = await rig.worker()
        asked: tuple[dict[str, Any], ...] = (
            {"queue": "a"},
            {"queue": "a", "entrypoint": "e"},
            {"entrypoint": "new line"},
            {"id": "before"},
            {"id": leased.id},
            {"wait": timedelta(0), "queue": "a"},
        )
        for worker in (q, other, fresh):
            for filters in asked:
                assert await worker.dequeue(batch_size=100, **filters) == []
            assert ids(await worker.peek()) == ["elsewhere"]
        assert ids(await fresh.dequeue(batch_size=100)) == ["elsewhere"]
        assert (await q.stats("a")).pending == 3
        # A holder may still finish its job, and a nacked job waits with the others.
        await q.ack(held)
        await q.nack(leased)
        assert await other.dequeue() == []
        await q.resume("a")
        await q.resume("a")
        in_order = ["after", "before", "new line", "leased"]
        assert ids(await other.dequeue(batch_size=100)) == in_order

    @statement("Q8")
    async def test_a_resumed_queue_is_unchanged_and_wakes_a_waiting_dequeue(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue_many([NewJob("e", queue=queue, id=queue) for queue in QUEUES])
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
    async def test_dropping_a_queue_removes_all_its_jobs_and_no_others(self, rig: Rig) -> None:
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
        await counts_are(Stats(processing=1))  # its lease expired, but the holder may still ack
        await q.nack(job, delay=_SECOND)
        await counts_are(Stats(failed=1))
        rig.clock.advance(_SECOND)
        await counts_are(Stats(failed=1))
        [job] = await q.dequeue(lease=_SECOND)
        await counts_are(Stats(processing=1))
        rig.clock.advance(_SECOND)
        await counts_are(Stats(dead=1))  # its last lease expired, before this is stored
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

    @statement("Q9", in_every_flavour=False)
    async def test_the_counts_match_the_stored_jobs_after_every_operation(self, rig: Rig) -> None:
        turmoil, observer = await Turmoil.begin(rig, seed=9), await rig.worker()
        for _ in range(steps(rig)):
            await turmoil.step()
            raw, state = rig.harness.raw(), await observer.read_state()
            now = rig.clock.now()
            for queue in (None, *QUEUES, "nowhere"):
                stats = await observer.stats(queue)
                assert stats == _stored(raw, state, now, queue)
                assert _statuses(stats) == Counter(
                    job.status for job in state.jobs if queue in (None, job.queue)
                )
                for name in (*stats.__struct_fields__, *JobStatus):
                    assert await observer.jobs(status=name, queue=queue) == [
                        job
                        for job in state.jobs
                        if queue in (None, job.queue)
                        and name in (job.status, _view(raw.jobs[job.id], job.max_attempts, now))
                    ]


def _stored(raw: Raw, state: QueueState, now: int, queue: str | None) -> Stats:
    """The counts of the stored jobs, without those whose retention is over."""
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
