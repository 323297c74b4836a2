"""Enqueue: statements E1 to E9.

The module is long because each file holds one section of the contract: a
statement is found by its letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from casque.checks import NAME_BYTES, PAYLOAD_BYTES
from casque.errors import CasqueError, InvalidError, JobNotFoundError, LeaseLostError
from casque.job import Job, JobStatus, Stats
from casque.queues.arguments import ENQUEUE_MANY_JOBS, NewJob
from casque.queues.async_queue import AsyncQueue
from casque.queues.sync_queue import Queue
from casque.testing.processes import meeting_of
from casque.testing.rig import Rig, counted, inside
from casque.testing.statement import Statements, statement

LIKE_A = ("a", "A", "a ", "a/items", "../a", "a%2Fitems", "a\\items", "a\nb", "%", "'\";--")
FOREIGN = ("é", "e\u0301", "日本語", "👷🏽")  # the first two look alike and are different names
LONGEST = ("x" * NAME_BYTES, "x" * (NAME_BYTES - 1) + "y", "é" * (NAME_BYTES // 2))
NAMES = (*LIKE_A, *FOREIGN, *LONGEST)
BAD_NAMES = ("x" * (NAME_BYTES + 1), "é" * (NAME_BYTES // 2) + "x", "", "a\0b", "a\ud800b")
EVERY_BYTE = bytes(range(256))
PROCESSES = 8
PATIENCE_SECONDS = 60
HOUR = timedelta(hours=1)


class EnqueueStatements(Statements):
    """What a stored job guarantees, and when an enqueue is refused."""

    @statement("E1")
    async def test_a_job_its_line_and_the_counts_appear_together(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        assert (await q.queues(), await q.stats()) == ([], Stats())
        with counted(rig.harness.writes) as writes:
            job = await q.enqueue("send", b"x", 3, queue="tenant")
        # One write, so no reader can see only a part of it.
        assert writes() == 1
        raw = rig.harness.raw()
        assert raw.jobs.keys() == {job.id}
        asked = {"status": "queued", "queue": "tenant", "entrypoint": "send", "priority": 3}
        first = {"attempts": 0, "token": 0, "due_us": job.created_us}
        assert raw.jobs[job.id] == {**raw.jobs[job.id], **asked, **first}
        assert [(line.queue, line.entrypoint) for line in raw.lines] == [("tenant", "send")]
        assert await other.stats() == await other.stats("tenant") == Stats(pending=1)
        assert await other.stats("default") == Stats()
        assert await other.queues() == ["tenant"]
        assert await other.get(job.id) == job

    @statement("E1")
    async def test_a_refused_enqueue_leaves_an_empty_store_empty(self, rig: Rig) -> None:
        q = await rig.worker()
        with pytest.raises(InvalidError):  # the store refuses it after it has seen the first job
            await q.enqueue_many([NewJob("send", id="x"), NewJob("receive", id="x")])
        raw = rig.harness.raw()
        assert (raw.jobs, raw.lines) == ({}, [])
        assert await q.stats() == Stats()
        assert (await q.queues(), await q.dequeue()) == ([], [])

    @statement("E2")
    async def test_a_delayed_job_is_claimable_at_its_time_and_not_before(self, rig: Rig) -> None:
        q = await rig.worker()
        job = await q.enqueue("e", delay=timedelta(seconds=10))
        assert job.run_at == job.created_at + timedelta(seconds=10)
        await _is_claimable_only_in(rig, q, job, seconds=10)
        [job] = await q.enqueue_many([NewJob("e", run_at=job.run_at + timedelta(seconds=5))])
        await _is_claimable_only_in(rig, q, job, seconds=5)

    @statement("E2")
    async def test_a_job_whose_run_at_has_passed_is_claimable_now(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        long_ago = datetime(1969, 7, 20, 20, 17, tzinfo=UTC)
        job = await q.enqueue("e", id="past", run_at=long_ago)
        assert job.run_at == long_ago
        assert await q.stats() == Stats(pending=1)
        assert [job.id for job in await other.dequeue()] == ["past"]

    @statement("E2")
    async def test_a_delay_together_with_a_run_at_is_refused(self, rig: Rig) -> None:
        q = await rig.worker()
        past = datetime(2000, 1, 1, tzinfo=UTC)
        with pytest.raises(InvalidError, match="not both"):
            await q.enqueue("e", delay=timedelta(0), run_at=past)
        with pytest.raises(InvalidError, match="not both"):
            await q.enqueue_many([NewJob("e"), NewJob("e", delay=HOUR, run_at=past)])
        assert rig.harness.raw().jobs == {}

    @statement("E3")
    async def test_an_id_is_unique_until_its_job_is_acked(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        first = await q.enqueue("e", b"first", id="x")
        assert not first.duplicate
        await _is_still_one_job(rig, other, JobStatus.QUEUED)
        [held] = await q.dequeue(lease=timedelta(seconds=10))
        await _is_still_one_job(rig, other, JobStatus.IN_PROGRESS)
        rig.advance(seconds=10)
        await _is_still_one_job(rig, other, JobStatus.IN_PROGRESS)
        [held] = await q.dequeue()
        await q.nack(held, error="no luck")
        await _is_still_one_job(rig, other, JobStatus.QUEUED)
        [held] = await q.dequeue()
        await q.release(held, delay=timedelta(seconds=10))
        await _is_still_one_job(rig, other, JobStatus.QUEUED)
        rig.advance(seconds=10)
        [held] = await q.dequeue()
        assert held.payload == b"first"
        await q.ack(held)
        await _is_a_new_job(rig, other)

    @statement("E3")
    async def test_an_id_is_unique_while_its_completed_job_is_retained(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", b"first", id="x", retain=timedelta(seconds=10))
        await q.ack((await q.dequeue())[0], result=b"done")
        await _is_still_one_job(rig, other, JobStatus.COMPLETED)
        rig.advance(seconds=10)
        await _is_a_new_job(rig, other)

    @statement("E3")
    async def test_an_id_is_unique_while_its_job_is_dead_or_cancelled(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", b"first", id="x", max_attempts=1)
        await q.dequeue(lease=timedelta(seconds=10))
        rig.advance(seconds=10)
        await _is_still_one_job(rig, other, JobStatus.DEAD)  # not stored as dead yet
        await q.retry("x")
        await q.fail((await q.dequeue())[0], error="hopeless")
        await _is_still_one_job(rig, other, JobStatus.DEAD)
        rig.advance(days=30)
        await _is_a_new_job(rig, other)
        await q.cancel("x")
        await _is_still_one_job(rig, other, JobStatus.CANCELLED)
        rig.advance(seconds=1)
        await q.purge(older_than=timedelta(0))
        await _is_a_new_job(rig, other)

    @statement("E3")
    async def test_an_id_given_twice_in_one_list_adds_one_job(self, rig: Rig) -> None:
        q = await rig.worker()
        twice = [NewJob("e", b"first", id="x"), NewJob("e", b"second", id="x"), NewJob("e", id="y")]
        jobs = await q.enqueue_many(twice)
        assert [job.id for job in jobs] == ["x", "x", "y"]
        assert [job.duplicate for job in jobs] == [False, True, False]
        assert jobs[1].payload == b"first"
        assert rig.harness.raw().jobs.keys() == {"x", "y"}
        assert await q.stats() == Stats(pending=2)

    @statement("E4")
    async def test_eight_processes_that_enqueue_one_id_at_once_add_one_job(self, rig: Rig) -> None:
        rounds = 3
        meeting = meeting_of(PROCESSES)  # works for threads too
        answers = await rig.in_processes(PROCESSES, enqueue_the_same, meeting, rounds)
        assert len(answers) == PROCESSES * rounds
        assert len({(job_id, *first) for job_id, _, *first in answers}) == rounds
        firsts = sorted(job_id for job_id, duplicate, *_ in answers if not duplicate)
        assert firsts == [f"same-{number}" for number in range(rounds)]
        assert rig.harness.raw().jobs.keys() == set(firsts)
        assert (await (await rig.worker()).stats()).total == rounds

    @statement("E4b")
    async def test_the_error_for_a_taken_id_reveals_nothing_about_the_other_job(
        self, rig: Rig
    ) -> None:
        q, other = await rig.worker(worker="w-hidden"), await rig.worker()
        await q.enqueue("hidden-e", b"hidden", queue="hidden-q", id="x", retain=HOUR)
        said = {await _refusal(rig, other)}
        [held] = await q.dequeue()
        said.add(await _refusal(rig, other))
        await q.nack(held, error="hidden error")
        said.add(await _refusal(rig, other))
        [held] = await q.dequeue()
        await q.ack(held, result=b"hidden result")
        said.add(await _refusal(rig, other))
        # The error does not even reveal the state of the other job.
        assert len(said) == 1
        assert "hidden" not in said.pop()
        rig.advance(hours=1)
        assert not (await other.enqueue("e", id="x")).duplicate

    @statement("E4b")
    async def test_a_taken_id_is_refused_for_another_queue_or_entrypoint(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("theirs", queue="theirs", id="x")
        before = rig.harness.raw()
        for queue, entrypoint in (("theirs", "mine"), ("mine", "theirs")):
            with pytest.raises(InvalidError, match="Choose another id") as refused:
                await other.enqueue(entrypoint, queue=queue, id="x")
            assert refused.value.job_id == "x"
        assert rig.harness.raw() == before
        assert await other.stats("mine") == Stats()

    @statement("E5")
    async def test_similar_names_stay_distinct(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        pairs = [(queue, entrypoint) for queue in NAMES for entrypoint in NAMES]
        await q.enqueue_many([NewJob(entrypoint, queue=queue) for queue, entrypoint in pairs])
        raw = rig.harness.raw()
        assert sorted((line.queue, line.entrypoint) for line in raw.lines) == sorted(pairs)
        stored = [(job["queue"], job["entrypoint"]) for job in raw.jobs.values()]
        assert sorted(stored) == sorted(pairs)
        assert sorted(await other.queues()) == sorted(NAMES)
        for name in NAMES:
            assert await other.stats(name) == Stats(pending=len(NAMES))
            here = await other.peek(queue=name, limit=len(pairs))
            assert {job.queue for job in here} == {name}
            assert sorted(job.entrypoint for job in here) == sorted(NAMES)
            there = await other.peek(name, limit=len(pairs))
            assert {job.entrypoint for job in there} == {name}
            assert sorted(job.queue for job in there) == sorted(NAMES)
        for queue, entrypoint in zip(NAMES, reversed(NAMES), strict=True):
            jobs = await other.dequeue(entrypoint, queue=queue, batch_size=2)
            assert [(job.queue, job.entrypoint) for job in jobs] == [(queue, entrypoint)]

    @statement("E5")
    async def test_similar_ids_stay_distinct(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        jobs = await q.enqueue_many([NewJob("e", name.encode(), id=name) for name in NAMES])
        assert [job.duplicate for job in jobs] == [False] * len(NAMES)
        assert rig.harness.raw().jobs.keys() == set(NAMES)
        for name in NAMES:
            found = await other.get(name)
            assert found is not None
            assert (found.id, found.payload) == (name, name.encode())

    @statement("E5")
    async def test_an_enqueue_with_a_bad_name_fails_alone(self, rig: Rig) -> None:
        q = await rig.worker()
        calls = []
        for bad in BAD_NAMES:
            calls += [q.enqueue(bad), q.enqueue("e", queue=bad), q.enqueue("e", id=bad)]
            calls.append(q.enqueue("good"))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = [one for one in answers if isinstance(one, BaseException)]
        assert [type(error) for error in refused] == [InvalidError] * 3 * len(BAD_NAMES)
        stored = rig.harness.raw().jobs.values()
        assert [job["entrypoint"] for job in stored] == ["good"] * len(BAD_NAMES)
        assert len(answers) == len(refused) + len(stored)

    @statement("E6")
    async def test_a_payload_is_returned_unchanged(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        payloads = {"none": b"", "every": EVERY_BYTE, "mebibyte": EVERY_BYTE * 4096}
        for name, payload in payloads.items():
            job = await q.enqueue("e", payload, id=name)
            assert job.payload == payload
            assert await other.get(name) == job
        claimed = await other.dequeue(batch_size=3)
        assert {job.id: job.payload for job in claimed} == payloads

    @statement("E6")
    async def test_a_payload_may_reach_the_limit_and_not_pass_it(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        payload = EVERY_BYTE * (PAYLOAD_BYTES // len(EVERY_BYTE))
        assert len(payload) == PAYLOAD_BYTES
        with pytest.raises(InvalidError, match="payload"):
            await q.enqueue("e", payload + b"!")
        assert rig.harness.raw().jobs == {}
        await q.enqueue("e", payload)
        [job] = await other.dequeue()
        is_the_same = job.payload == payload  # compared here: pytest would print all the bytes
        assert is_the_same

    @statement("E6")
    async def test_a_payload_that_is_not_bytes_writes_nothing(self, rig: Rig) -> None:
        q = await rig.worker()
        not_bytes: tuple[Any, ...] = ("text", None, 7, [1, 2], {"a": 1})
        with counted(rig.harness.writes) as writes:
            for payload in not_bytes:
                with pytest.raises(InvalidError, match="payload"):
                    await q.enqueue("e", payload)
                with pytest.raises(InvalidError, match="job 1 of the list"):
                    await q.enqueue_many([NewJob("e"), NewJob("e", payload)])
        assert writes() == 0
        assert rig.harness.raw().jobs == {}

    @statement("E7")
    async def test_a_long_list_is_enqueued_in_one_write_and_in_order(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        count = rig.size(ENQUEUE_MANY_JOBS)
        new = [NewJob("e", b"%d" % n, id=f"job-{n}") for n in range(count)]
        with counted(rig.harness.writes) as writes:
            reads = asyncio.gather(*(other.stats() for _ in range(20)))
            jobs, seen = await asyncio.gather(q.enqueue_many(new), reads)
        assert writes() == 1
        assert {stats.total for stats in seen} <= {0, count}
        assert [(job.id, job.payload) for job in jobs] == [(one.id, one.payload) for one in new]
        assert rig.harness.raw().jobs.keys() == {one.id for one in new}
        claimed = [await other.dequeue(batch_size=count // 2) for _ in range(2)]
        assert [job.id for batch in claimed for job in batch] == [one.id for one in new]

    @statement("E7")
    async def test_a_long_list_with_one_bad_job_is_refused_as_a_whole(self, rig: Rig) -> None:
        q = await rig.worker()
        await q.enqueue("other", id="taken")
        before = rig.harness.raw()
        good = [NewJob("e", id=f"job-{n}") for n in range(rig.size(ENQUEUE_MANY_JOBS) - 1)]
        for bad in (NewJob("e", id="taken"), NewJob("e", delay=timedelta(seconds=-1))):
            with pytest.raises(InvalidError):
                await q.enqueue_many([*good, bad])
        with pytest.raises(InvalidError, match="Split the list"):
            await q.enqueue_many([NewJob("e")] * (ENQUEUE_MANY_JOBS + 1))
        assert rig.harness.raw() == before
        assert await q.stats() == Stats(pending=1)
        # The refused call left nothing behind, so the good jobs are accepted now.
        assert not any(job.duplicate for job in await q.enqueue_many(good))

    @statement("E8")
    async def test_a_loop_of_acks_is_refused_past_max_depth(self, rig: Rig) -> None:
        q, other = await rig.worker(max_depth=3), await rig.worker(max_depth=3)
        assert (await q.enqueue("loop")).depth == 0
        for worker in (other, q, other):
            [job] = await worker.dequeue()
            await worker.ack(job, enqueue=[NewJob("loop")])
        [job] = await q.dequeue()
        assert (job.depth, job.chain) == (3, ("loop", "loop", "loop"))
        before = rig.harness.raw()
        with pytest.raises(InvalidError, match=" -> ".join(["loop"] * 5)) as refused:
            await q.ack(job, enqueue=[NewJob("loop")])
        assert "max_depth" in str(refused.value)
        assert rig.harness.raw() == before
        await q.ack(job)  # without a next job, the ack is accepted
        assert await q.stats() == Stats()

    @statement("E8")
    async def test_a_loop_of_running_jobs_is_refused_past_max_depth(self, rig: Rig) -> None:
        q, other = await rig.worker(max_depth=3), await rig.worker(max_depth=3)
        job = await q.enqueue("a")
        for entrypoint in ("b", "a", "b"):
            [held] = await other.dequeue(id=job.id)
            with inside(held):
                [job] = await q.enqueue_many([NewJob(entrypoint)])
        [held] = await other.dequeue(id=job.id)
        before = rig.harness.raw()
        with inside(held):
            with pytest.raises(InvalidError, match="a -> b -> a -> b -> a"):
                await q.enqueue("a")
            with pytest.raises(InvalidError, match="a -> b -> a -> b -> a"):
                await q.enqueue_many([NewJob("a")])
            with pytest.raises(InvalidError, match="a -> b -> a -> b -> a"):
                await other.ack(held, enqueue=[NewJob("a")])
        strict = await rig.worker(max_depth=0)
        with inside(replace(held, depth=0, chain=())), pytest.raises(InvalidError, match="b -> a"):
            await strict.enqueue("a")
        assert rig.harness.raw() == before
        assert (await strict.enqueue("a")).depth == 0  # outside of any job there is no chain

    @statement("E8")
    async def test_a_loop_of_programs_is_refused_past_max_depth(self, rig: Rig) -> None:
        q = await rig.worker(max_depth=3)
        job = await q.enqueue("command")
        with pytest.MonkeyPatch.context() as environment:
            for depth in (1, 2, 3):
                environment.setenv("CASQUE_DEPTH", str(job.depth))
                environment.setenv("CASQUE_JOB_ID", job.id)
                job = await q.enqueue("command")
                assert job.depth == depth
            environment.setenv("CASQUE_DEPTH", "3")
            environment.setenv("CASQUE_JOB_ID", job.id)
            with pytest.raises(InvalidError, match=f"job {job.id} -> command"):
                await q.enqueue("command")
        assert (await q.stats()).total == 4
        assert (await q.enqueue("command")).depth == 0

    @statement("E9")
    async def test_an_ack_and_its_next_jobs_are_stored_together(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        for retain in (None, HOUR):
            await q.enqueue("first", id="x", retain=retain)
            [job] = await q.dequeue()
            following = [NewJob("next", b"1", queue="n", id="n1"), NewJob("next", b"2", id="n2")]
            with counted(rig.harness.writes) as writes:
                await q.ack(job, result=b"r", enqueue=following)
            assert writes() == 1
            raw = rig.harness.raw()
            assert raw.jobs.keys() == ({"n1", "n2"} if retain is None else {"x", "n1", "n2"})
            lines = {(line.queue, line.entrypoint) for line in raw.lines}
            assert lines == {("n", "next"), ("default", "next")}
            assert (await other.stats()).pending == 2
            assert (await other.stats()).completed == (0 if retain is None else 1)
            claimed = await other.dequeue(batch_size=3)
            assert {(job.id, job.payload) for job in claimed} == {("n1", b"1"), ("n2", b"2")}
            await other.ack_many(claimed)

    @statement("E9")
    async def test_an_ack_with_a_bad_next_job_is_refused_as_a_whole(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("elsewhere", id="taken", delay=HOUR)
        await q.enqueue("e", id="x")
        [job] = await q.dequeue()
        before = rig.harness.raw()
        for bad in (NewJob("e", id="taken"), NewJob("e", max_attempts=0)):
            with pytest.raises(InvalidError):
                await q.ack(job, enqueue=[NewJob("next", id="n"), bad])
        assert rig.harness.raw() == before
        assert await other.get("x") == job
        await q.ack(job, enqueue=[NewJob("next", id="n")])
        assert rig.harness.raw().jobs.keys() == {"taken", "n"}

    @statement("E9")
    async def test_an_ack_without_the_lease_enqueues_nothing(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="x")
        [late] = await q.dequeue(lease=timedelta(seconds=10))
        rig.advance(seconds=10)
        [held] = await other.dequeue()
        await _refuses_to_go_on(rig, q, late, LeaseLostError)
        assert await q.get("x") == held
        await other.ack(held)
        await _refuses_to_go_on(rig, q, late, JobNotFoundError)
        await q.enqueue("e", id="x")
        [cancelled] = await q.dequeue()
        await other.cancel("x")
        await _refuses_to_go_on(rig, q, cancelled, LeaseLostError)

    @statement("E9")
    async def test_the_next_job_of_an_ack_may_reuse_the_acked_id(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", b"1", id="x")
        [job] = await q.dequeue()
        await q.ack(job, enqueue=[NewJob("e", b"2", id="x")])
        assert await other.stats() == Stats(pending=1)
        [again] = await other.dequeue()
        assert (again.id, again.payload, again.attempts) == ("x", b"2", 1)
        assert again.token > job.token


def enqueue_the_same(
    address: str, report: Callable[[Any], None], place: int, meeting: Any, rounds: int
) -> None:
    """Enqueue one id per round, at the same time as the others; report each answer."""
    with Queue(address) as q:
        for number in range(rounds):
            meeting.wait(PATIENCE_SECONDS)
            job = q.enqueue("e", b"%d" % place, id=f"same-{number}")
            report((job.id, job.duplicate, job.payload, job.created_us, job.seq))


async def _is_claimable_only_in(rig: Rig, q: AsyncQueue, job: Job, *, seconds: int) -> None:
    assert rig.harness.raw().jobs[job.id]["due_us"] == job.run_us
    assert await q.stats() == Stats(scheduled=1)
    rig.advance(seconds=seconds, milliseconds=-1)
    assert await q.dequeue() == []
    assert await q.dequeue(id=job.id) == []
    rig.advance(milliseconds=1)
    assert await q.stats() == Stats(pending=1)
    [claimed] = await q.dequeue()
    assert claimed.id == job.id
    await q.ack(claimed)


async def _is_still_one_job(rig: Rig, q: AsyncQueue, status: JobStatus) -> None:
    """Enqueueing x again, with different values, returns the first job and changes nothing."""
    before, first, stats = rig.harness.raw(), await q.get("x"), await q.stats()
    assert first is not None
    assert first.status is status
    again = await q.enqueue(
        *("e", b"second", 9),
        id="x",
        delay=HOUR,
        max_attempts=7,
        retain=HOUR,
        timeout=HOUR,
        headers={"second": "2"},
    )
    assert again == replace(first, duplicate=True)
    assert await q.get("x") == first
    assert await q.stats() == stats
    assert stats.total == 1
    after = rig.harness.raw()
    assert (after.jobs, after.lines, after.token) == (before.jobs, before.lines, before.token)


async def _is_a_new_job(rig: Rig, q: AsyncQueue) -> None:
    """Enqueueing x adds a new job that shares nothing with the previous one."""
    job = await q.enqueue("e", b"new", id="x")
    assert not job.duplicate
    assert (job.payload, job.attempts, job.error, job.history) == (b"new", 0, None, ())
    assert await q.get("x") == job
    assert await q.stats() == Stats(pending=1)
    assert rig.harness.raw().jobs.keys() == {"x"}


async def _refusal(rig: Rig, q: AsyncQueue) -> str:
    """Everything the error shows when the id x is taken elsewhere; nothing must change."""
    before = rig.harness.raw()
    with pytest.raises(InvalidError) as refused:
        await q.enqueue("mine", b"mine", queue="mine-too", id="x")
    assert rig.harness.raw() == before
    error = refused.value
    return f"{error} {error!r} {vars(error)} {error.__cause__} {error.__context__}"


async def _refuses_to_go_on(rig: Rig, q: AsyncQueue, job: Job, error: type[CasqueError]) -> None:
    before = rig.harness.raw()
    with pytest.raises(error):
        await q.ack(job, enqueue=[NewJob("next", id="n")])
    assert rig.harness.raw() == before
