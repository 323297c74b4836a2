"""Outcomes: statements R1 to R9.

The module is long because each file holds one section of the contract: a
statement is found by its letter. (A task's Snooze and Discard are `release` and
`discard` here. The worker's tests show that a worker translates them.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from casque.checks import ERROR_BYTES
from casque.errors import InvalidError, JobNotFoundError, LeaseLostError
from casque.job import Attempt, Failure, Job, JobStatus, Stats
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue
from casque.rules.operations import Release
from casque.rules.transitions import MISMATCH, lost
from casque.system.clock import span_us
from casque.testing.batches import commit_batch
from casque.testing.rig import Rig, counted
from casque.testing.statement import Statements, statement

SECOND = timedelta(seconds=1)
LEASE = timedelta(seconds=10)
HOUR = timedelta(hours=1)
KEPT_ATTEMPTS = 10


class OutcomeStatements(Statements):
    """The state of a job after an attempt has ended."""

    @statement("R1")
    async def test_an_acked_job_is_gone_and_never_delivered_again(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue_many([NewJob("e", id=name) for name in ("x", "y", "z")])
        jobs = await q.dequeue(batch_size=3, lease=LEASE)
        await q.ack(jobs[0], result=b"nobody keeps it")
        await q.ack_many(jobs[1:])
        raw = rig.harness.raw()
        assert (raw.jobs, raw.lines) == ({}, [])
        for _ in range(2):
            for job in jobs:
                await _is_gone(rig, other, job.id)
            rig.advance(hours=1)  # far past the end of their leases

    @statement("R1")
    async def test_a_retained_job_is_completed_with_result_and_timings(self, rig: Rig) -> None:
        q, other = await rig.worker(worker="w"), await rig.worker()
        first = await q.enqueue("e", b"data", id="x", delay=2 * SECOND, retain=HOUR)
        rig.advance(seconds=3)
        [held] = await q.dequeue(lease=LEASE)
        rig.advance(seconds=4)
        await q.ack(held, result=b"done")
        done = await other.get("x")
        assert done is not None
        assert (done.status, done.result, done.error) == (JobStatus.COMPLETED, b"done", None)
        assert (done.payload, done.attempts, done.lease) == (b"data", 1, None)
        assert done.created_at == first.created_at
        assert done.run_at == first.created_at + 2 * SECOND
        assert done.claimed_at == held.claimed_at == first.created_at + 3 * SECOND
        assert done.finished_at == done.updated_at == first.created_at + 7 * SECOND
        assert done.history == (Attempt(1, "w", first.created_us + 3_000_000, done.updated_us),)
        assert await other.stats() == Stats(completed=1)
        rig.advance(minutes=30)
        assert await other.dequeue() == await other.dequeue(id="x") == await other.peek() == []
        raw = rig.harness.raw()
        assert (raw.jobs["x"]["status"], raw.jobs["x"]["due_us"]) == ("completed", None)
        assert raw.lines == []

    @statement("R1")
    async def test_a_retained_job_is_gone_for_every_read_when_its_time_is_over(
        self, rig: Rig
    ) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="x", retain=HOUR)
        await q.ack((await q.dequeue())[0])
        rig.advance(hours=1, milliseconds=-1)
        assert await other.get("x") is not None
        assert await other.stats() == Stats(completed=1)
        assert await other.queues() == ["default"]
        rig.advance(milliseconds=1)
        with counted(rig.harness.writes) as writes:
            await _is_gone(rig, other, "x")  # by time alone, before it is pruned
            assert await other.purge(older_than=timedelta(0)) == 0
        assert writes() == 0
        await q.ack((await _claimed_new(q, "elsewhere"))[0])
        await _is_gone(rig, other, "x")  # now the commit may have pruned it

    @statement("R2")
    async def test_a_nack_counts_the_attempt_and_the_job_is_due_after_its_delay(
        self, rig: Rig
    ) -> None:
        q, other = await rig.worker(worker="w"), await rig.worker()
        await q.enqueue("e", b"data", id="x")
        [held] = await q.dequeue(lease=LEASE)
        rig.advance(seconds=1)
        job = await q.nack(held, delay=5 * SECOND, error="no luck")
        assert job.claimed_at is not None
        now = job.claimed_at + SECOND
        assert (job.status, job.attempts, job.error) == (JobStatus.QUEUED, 1, "no luck")
        assert (job.updated_at, job.run_at, job.lease) == (now, now + 5 * SECOND, None)
        assert await other.get("x") == job
        assert await other.stats() == Stats(failed=1)
        assert rig.harness.raw().jobs["x"]["due_us"] == job.run_us
        rig.advance(seconds=5, milliseconds=-1)
        assert await q.dequeue() == []
        rig.advance(milliseconds=1)
        [again] = await q.dequeue()
        assert (again.id, again.attempts, again.payload) == ("x", 2, b"data")
        assert again.error == "no luck"
        assert again.token > held.token

    @statement("R2")
    async def test_a_nack_without_a_delay_makes_the_job_due_at_once(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="x")
        [held] = await q.dequeue()
        job = await q.nack(held)
        assert job.run_at == job.updated_at
        assert [again.attempts for again in await other.dequeue()] == [2]
        with pytest.raises(LeaseLostError):  # the first holder has no claim any more
            await q.nack(held)

    @statement("R2")
    async def test_the_error_of_a_nack_is_kept(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="x")
        job = await q.nack((await q.dequeue())[0], error=_raised("out of ink"))
        assert job.error == "ValueError: out of ink"
        [attempt] = job.history
        assert attempt.failure is not None
        assert (attempt.failure.kind, attempt.failure.text) == ("ValueError", "out of ink")
        assert "in _raised" in attempt.failure.traceback
        job = await q.nack((await q.dequeue())[0], error="é" * ERROR_BYTES)
        assert job.error == "é" * (ERROR_BYTES // 2)  # cut to the limit, between two characters
        assert await other.get("x") == job

    @statement("R3")
    async def test_a_job_whose_attempts_all_failed_is_dead(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", b"data", id="x", max_attempts=3)
        for error in ("first", "second"):
            job = await q.nack((await q.dequeue())[0], error=error)
            assert job.status is JobStatus.QUEUED
        rig.advance(seconds=1)
        job = await q.nack((await q.dequeue())[0], delay=HOUR, error="third")
        assert (job.status, job.attempts, job.error) == (JobStatus.DEAD, 3, "third")
        assert (job.payload, job.finished_at) == (b"data", job.updated_at)
        assert await other.get("x") == job
        await _is_ignored(rig, other, "x", Stats(dead=1))

    @statement("R3")
    async def test_a_job_whose_attempts_were_all_lost_is_dead(self, rig: Rig) -> None:
        q, other = await rig.worker(worker="lost-worker"), await rig.worker()
        await q.enqueue("e", id="x", max_attempts=2)
        await q.dequeue(lease=LEASE)
        rig.advance(seconds=10)
        [held] = await q.dequeue(lease=LEASE)
        rig.advance(seconds=2)
        last_beat = (await q.heartbeat(held)).heartbeat_at
        assert last_beat is not None
        rig.advance(seconds=10)
        assert await other.stats() == Stats(dead=1)  # before this is stored
        for _ in range(2):
            dead = await other.get("x")
            assert dead is not None
            assert (dead.status, dead.attempts) == (JobStatus.DEAD, 2)
            assert dead.error is not None
            assert "lost-worker" in dead.error
            assert f"{last_beat:%H:%M:%S}" in dead.error
            assert await other.dequeue() == []  # the first of these stores it as dead
        assert rig.harness.raw().jobs["x"]["status"] == "dead"
        await _is_ignored(rig, other, "x", Stats(dead=1))
        with pytest.raises(LeaseLostError):
            await q.ack(held)

    @statement("R3")
    async def test_failures_and_lost_attempts_count_alike(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="x", max_attempts=3)
        await q.dequeue(lease=LEASE)
        rig.advance(seconds=10)
        assert (await q.nack((await q.dequeue())[0])).status is JobStatus.QUEUED
        await q.dequeue(lease=LEASE)
        rig.advance(seconds=10)
        assert await other.dequeue(id="x") == []  # a dequeue by id stores it as dead too
        assert rig.harness.raw().jobs["x"]["status"] == "dead"
        await _is_ignored(rig, other, "x", Stats(dead=1))

    @statement("R3")
    async def test_jobs_without_attempts_left_do_not_delay_a_ready_job(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue_many([NewJob("e", id=f"spent-{n}", max_attempts=1) for n in range(3)])
        await q.dequeue(batch_size=3, lease=LEASE)
        rig.advance(seconds=10)
        await q.enqueue("e", b"", 9, id="ready")
        assert [job.id for job in await other.dequeue()] == ["ready"]
        assert await other.stats() == Stats(processing=1, dead=3)

    @statement("R4")
    async def test_a_retried_job_has_all_its_attempts_again(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", b"data", id="x", max_attempts=2)
        await q.nack((await q.dequeue())[0])
        [last] = await q.dequeue()
        await q.nack(last)
        rig.advance(seconds=5)
        job = await q.retry("x")
        assert (job.status, job.attempts, job.finished_at) == (JobStatus.QUEUED, 0, None)
        assert job.run_at == job.updated_at == last.updated_at + 5 * SECOND
        assert await other.get("x") == job
        assert await other.stats() == Stats(pending=1)
        assert rig.harness.raw().token >= last.token
        rig.advance(days=31)  # longer than the store keeps a dead job
        [again] = await other.dequeue()
        assert (again.payload, again.attempts) == (b"data", 1)
        assert again.token > last.token
        with pytest.raises(LeaseLostError):
            await q.ack(last)
        assert (await other.nack(again)).status is JobStatus.QUEUED
        assert (await other.nack((await other.dequeue())[0])).status is JobStatus.DEAD

    @statement("R4")
    async def test_a_job_that_died_with_its_last_lease_can_be_retried(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="x", max_attempts=1)
        [held] = await q.dequeue(lease=LEASE)
        rig.advance(seconds=10)
        job = await other.retry(held)  # with a Job, and before it is stored as dead
        assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)
        [again] = await other.dequeue()
        assert again.token > held.token
        with pytest.raises(LeaseLostError):
            await q.ack(held)
        await other.ack(again)

    @statement("R4")
    async def test_only_a_dead_job_can_be_retried(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="in progress", retain=HOUR)
        [held] = await q.dequeue()
        await q.enqueue("e", id="queued")
        await q.enqueue("e", id="cancelled")
        await q.cancel("cancelled")
        for name in ("queued", "in progress", "cancelled"):
            await _cannot_be_retried(rig, other, name, says=name)
        await q.ack(held)
        await _cannot_be_retried(rig, other, "in progress", says="completed")
        with pytest.raises(JobNotFoundError) as unknown:
            await other.retry("unknown")
        assert unknown.value.job_id == "unknown"

    @statement("R5")
    async def test_a_released_job_is_as_it_was_before_the_claim(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        first = await q.enqueue("e", b"data", id="x", max_attempts=1)
        for _ in range(3):  # three times its max_attempts
            [held] = await q.dequeue()
            job = await q.release(held, delay=5 * SECOND)
            assert (job.status, job.attempts, job.payload) == (JobStatus.QUEUED, 0, b"data")
            assert job.run_at == job.updated_at + 5 * SECOND
            assert (job.lease, job.error, job.history) == (None, None, ())
            assert await other.get("x") == job
            assert await other.stats() == Stats(scheduled=1)
            assert rig.harness.raw().jobs["x"]["due_us"] == job.run_us
            with pytest.raises(LeaseLostError):
                await q.ack(held)
            rig.advance(seconds=5, milliseconds=-1)
            assert await q.dequeue() == []
            rig.advance(milliseconds=1)
        [held] = await q.dequeue()
        assert held.claimed_at == first.created_at + 15 * SECOND

    @statement("R5")
    async def test_a_release_takes_back_its_own_attempt_only(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="x")
        nacked = await q.nack((await q.dequeue())[0], error="no luck")
        [held] = await q.dequeue()
        job = await q.release(held)
        assert (job.attempts, job.error, job.history) == (1, "no luck", nacked.history)
        assert job.run_at == job.updated_at  # without a delay: due at once
        [again] = await other.dequeue()
        assert again.attempts == 2
        assert again.token > held.token

    @statement("R5")
    async def test_a_release_with_a_reason_keeps_it_and_counts_no_attempt(self, rig: Rig) -> None:
        q, store = await rig.worker(worker="w"), rig.harness.open()
        await q.enqueue("e", b"data", id="x", max_attempts=1)
        firsts: dict[str, int] = {}
        # Mismatches in a row are one entry, however many they are; other reasons are one each.
        for number, kind in enumerate(["Busy", *[MISMATCH] * (KEPT_ATTEMPTS + 2), "Busy"], 1):
            [held] = await q.dequeue()
            assert held.claimed_us is not None
            firsts.setdefault(kind, held.claimed_us)
            reason = Failure(kind, f"reason {number}", "trace")
            release = Release(held.id, held.token, span_us(SECOND), reason)
            [job] = await commit_batch(store, "machine", number, [release])
            assert (job.status, job.attempts, job.payload) == (JobStatus.QUEUED, 0, b"data")
            assert job.error == f"{kind}: reason {number}"
            started = firsts[kind] if kind == MISMATCH else held.claimed_us
            assert job.history[-1] == Attempt(1, "w", started, job.updated_us, reason)
            assert await q.get("x") == job
            assert await q.stats() == Stats(scheduled=1)
            rig.advance(seconds=1)
        found = await q.get("x")
        assert found is not None
        history = found.history
        seen = [(one.number, one.failure and one.failure.text) for one in history]
        assert seen == [(1, "reason 1"), (1, "reason 13"), (1, "reason 14")]
        assert history[1].started_us == firsts[MISMATCH]
        assert history[1].ended_us == history[2].started_us - span_us(SECOND)
        await q.ack((await q.dequeue())[0])

    @statement("R6")
    async def test_a_failed_job_is_dead_at_once(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", b"data", id="x", max_attempts=25, retain=SECOND)
        [held] = await q.dequeue()
        job = await q.fail(held, error=_raised("no such address"))
        assert (job.status, job.attempts, job.payload) == (JobStatus.DEAD, 1, b"data")
        assert (job.error, job.finished_at) == ("ValueError: no such address", job.updated_at)
        rig.advance(hours=1)  # `retain` is for success
        assert await other.get("x") == job
        await _is_ignored(rig, other, "x", Stats(dead=1))
        with pytest.raises(LeaseLostError):
            await q.fail(held)

    @statement("R6")
    async def test_a_discarded_job_is_cancelled_with_its_reason(self, rig: Rig) -> None:
        q, other = await rig.worker(worker="w"), await rig.worker()
        await q.enqueue("e", id="x")
        [held] = await q.dequeue()
        job = await q.discard(held, reason="the customer has left")
        assert (job.status, job.error) == (JobStatus.CANCELLED, "the customer has left")
        assert job.finished_at == job.updated_at
        assert [attempt.worker for attempt in job.history] == ["w"]
        assert await other.get("x") == job
        await _is_ignored(rig, other, "x", Stats(cancelled=1))
        with pytest.raises(LeaseLostError):
            await q.discard(held)

    @statement("R7")
    async def test_a_cancelled_queued_job_never_runs(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="ready")
        await q.enqueue("e", id="later", delay=HOUR)
        await q.enqueue("tried", id="tried")
        await q.nack((await q.dequeue("tried"))[0])
        for name in ("ready", "later", "tried"):
            job = await other.cancel(name, reason="not wanted")
            assert (job.status, job.error) == (JobStatus.CANCELLED, "not wanted")
            assert job.finished_at == job.updated_at
            assert await q.get(name) == job
            assert await q.cancel(name) == job  # a second cancel is allowed and changes nothing
        for name in ("ready", "later", "tried"):
            await _is_ignored(rig, q, name, Stats(cancelled=3))

    @statement("R7")
    async def test_cancelling_a_running_job_retires_its_token_at_once(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="x")
        [held] = await q.dequeue(lease=LEASE)
        cancelled = await other.cancel(held)
        before = rig.harness.raw()
        late: list[Callable[[], Awaitable[object]]] = [
            lambda: q.heartbeat(held),
            lambda: q.heartbeat_many([held]),
            lambda: q.ack(held),
            lambda: q.ack_many([held]),
            lambda: q.ack("x"),
            lambda: q.nack(held),
            lambda: q.fail(held),
            lambda: q.release(held),
            lambda: q.discard(held),
        ]
        for write in late:
            with pytest.raises(LeaseLostError) as refused:
                await write()
            assert refused.value.job_ids == ("x",)
        assert rig.harness.raw() == before
        assert await q.get("x") == cancelled
        await _is_ignored(rig, q, "x", Stats(cancelled=1))

    @statement("R8")
    async def test_a_purge_deletes_only_finished_jobs_older_than_its_limit(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        for age in ("old", "new"):
            await _one_of_each(q, age)
            rig.advance(seconds=10)
        assert await q.purge(older_than=20 * SECOND + timedelta(milliseconds=1)) == 0
        assert await q.purge(older_than=20 * SECOND - timedelta(milliseconds=1), queue="none") == 0
        assert await q.purge(older_than=20 * SECOND - timedelta(milliseconds=1)) == 3
        left = {f"{age}-{name}" for age in ("old", "new") for name in UNFINISHED}
        finished = {f"new-{name}" for name in FINISHED}
        assert rig.harness.raw().jobs.keys() == left | finished
        assert (await other.stats()).total == len(left | finished)
        assert await q.purge(older_than=10 * SECOND + timedelta(milliseconds=1)) == 0
        assert await q.purge(older_than=timedelta(0)) == 3
        assert rig.harness.raw().jobs.keys() == left
        assert await other.stats() == Stats(scheduled=2, failed=2, processing=2)

    @statement("R8")
    async def test_a_purge_of_one_queue_leaves_the_others_alone(self, rig: Rig) -> None:
        q = await rig.worker()
        for queue in ("a", "b"):
            await q.enqueue("e", queue=queue, id=queue)
            await q.cancel(queue)
        rig.advance(seconds=1)
        assert await q.purge(older_than=timedelta(0), queue="a") == 1
        assert rig.harness.raw().jobs.keys() == {"b"}

    @statement("R8")
    async def test_a_purge_of_many_jobs_is_one_write(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        count = rig.size(1_000)
        await q.enqueue_many([NewJob("e", retain=HOUR) for _ in range(count)])
        await q.ack_many(await q.dequeue(batch_size=count))
        rig.advance(seconds=1)
        assert await other.stats() == Stats(completed=count)
        with counted(rig.harness.writes) as writes:
            assert await q.purge(older_than=timedelta(0)) == count
        assert writes() == 1
        assert rig.harness.raw().jobs == {}
        with counted(rig.harness.writes) as writes:
            assert await q.purge(older_than=timedelta(0)) == 0
        assert writes() == 0

    @statement("R9")
    async def test_the_last_ten_attempts_are_kept(self, rig: Rig) -> None:
        workers = [await rig.worker(worker=name) for name in ("a", "b")]
        await workers[0].enqueue("e", id="x", retain=HOUR)
        over: list[Attempt] = []
        for turn in range(KEPT_ATTEMPTS + 2):
            q = workers[turn % 2]
            [held] = await q.dequeue(lease=LEASE)
            assert held.history == tuple(over[-KEPT_ATTEMPTS:])
            rig.advance(seconds=1)
            over.append(await _failed_or_lost(rig, q, held, is_lost=turn % 3 == 2))
            rig.advance(seconds=1)
        [held] = await workers[0].dequeue()
        rig.advance(seconds=1)
        await workers[0].ack(held)
        done = await workers[1].get("x")
        assert done is not None
        assert len(done.history) == KEPT_ATTEMPTS
        over.append(_attempt(held, ended=done.updated_us, failure=None))
        assert done.history == tuple(over[-KEPT_ATTEMPTS:])
        assert [attempt.number for attempt in done.history] == list(range(4, 14))
        assert {attempt.worker for attempt in done.history} == {"a", "b"}


FINISHED = ("completed", "dead", "cancelled")
UNFINISHED = ("scheduled", "failed", "processing")


async def _one_of_each(q: AsyncQueue, age: str) -> None:
    """Jobs `<age>-<state>`, one in each state that a job can be in."""
    for name in (*FINISHED, *UNFINISHED):
        delay = HOUR if name == "scheduled" else None
        await q.enqueue(name, id=f"{age}-{name}", retain=HOUR, delay=delay)
    await q.ack((await q.dequeue("completed"))[0])
    await q.fail((await q.dequeue("dead"))[0])
    await q.cancel(f"{age}-cancelled")
    await q.nack((await q.dequeue("failed"))[0], delay=HOUR)
    await q.dequeue("processing", lease=HOUR)


async def _claimed_new(q: AsyncQueue, queue: str) -> list[Job]:
    await q.enqueue("e", queue=queue)
    return await q.dequeue(queue=queue)


async def _is_gone(rig: Rig, q: AsyncQueue, job_id: str) -> None:
    """No read and no claim returns the job, and calls that name it raise JobNotFoundError."""
    assert await q.get(job_id) is None
    assert await q.dequeue() == await q.dequeue(id=job_id) == await q.peek() == []
    state = await q.read_state()
    assert (state.jobs, state.find(job_id)) == ((), None)
    assert await q.stats() == await q.stats("default") == Stats()
    assert await q.queues() == await q.queues(due=True) == []
    assert await q.next_run_at("default") is None
    for act in (q.cancel, q.retry, q.ack):
        with pytest.raises(JobNotFoundError) as unknown:
            await act(job_id)
        assert unknown.value.job_id == job_id
    assert rig.harness.raw().lines == []


async def _is_ignored(rig: Rig, q: AsyncQueue, job_id: str, stats: Stats) -> None:
    """The job can still be read, but no claim or line uses it, however much time passes."""
    assert await q.stats() == stats
    raw = rig.harness.raw()
    assert raw.jobs[job_id]["due_us"] is None
    assert raw.lines == []
    assert await q.next_run_at("default") is None
    rig.advance(days=1)
    assert await q.dequeue() == await q.dequeue(id=job_id) == await q.peek() == []
    assert await q.queues(due=True) == []
    assert await q.stats() == stats


async def _cannot_be_retried(rig: Rig, q: AsyncQueue, job_id: str, *, says: str) -> None:
    before = rig.harness.raw()
    with pytest.raises(InvalidError, match=f"is {says}.*only a dead job") as refused:
        await q.retry(job_id)
    assert refused.value.job_id == job_id
    assert rig.harness.raw() == before


async def _failed_or_lost(rig: Rig, q: AsyncQueue, held: Job, *, is_lost: bool) -> Attempt:
    """End the attempt by a nack or by expiry. Returns the Attempt that the history must show."""
    if not is_lost:
        error = f"attempt {held.attempts}"
        job = await q.nack(held, error=error)
        return _attempt(held, ended=job.updated_us, failure=Failure(text=error))
    rig.advance(seconds=10)
    return _attempt(held, ended=held.lease_until_us, failure=lost(held))


def _attempt(held: Job, *, ended: int | None, failure: Failure | None) -> Attempt:
    assert held.worker is not None
    assert held.claimed_us is not None
    assert ended is not None
    return Attempt(held.attempts, held.worker, held.claimed_us, ended, failure)


def _raised(text: str) -> ValueError:
    """An exception with a traceback."""
    with pytest.raises(ValueError, match=text) as caught:
        raise ValueError(text)
    return caught.value
