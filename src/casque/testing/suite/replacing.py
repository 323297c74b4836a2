"""Replacing: a new job takes the place of the one with its id. Part of statement E3."""

from __future__ import annotations

from datetime import timedelta

import pytest

from casque.errors import CASConflictError, InvalidError, JobNotFoundError, LeaseLostError
from casque.job import Job, JobStatus, Stats
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue
from casque.testing.rig import Rig, counted
from casque.testing.statement import Statements, statement

_LEASE = timedelta(seconds=10)
_HOUR = timedelta(hours=1)


class ReplacingStatements(Statements):
    """What `replace` does to a job in each state."""

    @statement("E3")
    async def test_a_new_job_takes_the_place_of_one_that_is_not_running(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", b"old", id="queued", priority=5, delay=_HOUR)
        await q.enqueue("e", b"old", id="failed")
        await q.nack((await q.dequeue(id="failed"))[0], error="no luck")
        await q.enqueue("e", b"old", id="completed", retain=_HOUR)
        await q.ack((await q.dequeue(id="completed"))[0])
        await q.enqueue("e", b"old", id="dead")
        await q.fail((await q.dequeue(id="dead"))[0])
        await q.enqueue("e", b"old", id="cancelled")
        await q.cancel("cancelled")
        for name in ("queued", "failed", "completed", "dead", "cancelled", "unknown"):
            with counted(rig.harness.writes) as written:
                job = await other.enqueue("e", b"new", id=name, replace=True)
            assert written() == 1
            assert (job.payload, job.attempts, job.history) == (b"new", 0, ())
            assert (job.status, job.priority, job.duplicate) == (JobStatus.QUEUED, 0, False)
            assert await q.get(name) == job
        assert await q.stats() == Stats(pending=6)
        assert [job.payload for job in await q.dequeue(batch_size=10)] == [b"new"] * 6

    @statement("E3")
    async def test_a_running_job_is_not_replaced(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", b"old", id="x")
        [held] = await q.dequeue(lease=_LEASE)
        before = rig.harness.raw()
        with pytest.raises(CASConflictError, match="not replaced") as refusal:
            await other.enqueue("e", b"new", id="x", replace=True)
        assert refusal.value.job_id == "x"
        with pytest.raises(CASConflictError):  # all or none
            await other.enqueue_many([NewJob("e", id="y"), NewJob("e", id="x")], replace=True)
        assert rig.harness.raw() == before
        await q.ack(held)
        await other.enqueue("e", b"new", id="x", replace=True)
        assert await q.stats() == Stats(pending=1)

    @statement("E3", "L4")
    async def test_a_holder_whose_lease_is_over_loses_a_replaced_job(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", b"old", id="x", max_attempts=1)
        [late] = await q.dequeue(lease=_LEASE)
        rig.clock.advance(_LEASE)
        assert (await other.enqueue("e", b"new", id="x", replace=True)).attempts == 0
        await _is_refused(q, late)
        [held] = await other.dequeue()
        assert (held.payload, held.token > late.token) == (b"new", True)
        await _is_refused(q, late)
        await other.ack(held)
        with pytest.raises(JobNotFoundError):
            await q.ack(late)

    @statement("E3", "E4b")
    async def test_a_job_of_another_queue_or_entrypoint_is_not_replaced(self, rig: Rig) -> None:
        q = await rig.worker()
        await q.enqueue("e", b"old", id="x")
        before = rig.harness.raw()
        for new in (NewJob("e", id="x", queue="another"), NewJob("another", id="x")):
            with pytest.raises(InvalidError, match="another queue or entrypoint"):
                await q.enqueue_many([new], replace=True)
        for without_id in ([NewJob("e")], [NewJob("e", id="x"), NewJob("e")]):
            with pytest.raises(InvalidError, match="needs an `id`"):
                await q.enqueue_many(without_id, replace=True)
        with pytest.raises(InvalidError, match="needs an `id`"):
            await q.enqueue("e", replace=True)
        assert rig.harness.raw() == before

    @statement("E3", "E7")
    async def test_many_jobs_are_replaced_in_one_commit(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue_many([NewJob("e", b"old", id=f"{n}") for n in range(10)])
        new = [NewJob("e", b"new", id=f"{n}") for n in range(5, 15)]
        with counted(rig.harness.writes) as written:
            jobs = await other.enqueue_many([*new, NewJob("e", b"again", id="5")], replace=True)
        assert written() == 1
        assert [job.duplicate for job in jobs] == [False] * 10 + [True]
        taken = await q.dequeue(batch_size=100)
        assert [job.id for job in taken] == [f"{n}" for n in range(15)]
        assert [job.payload for job in taken] == [b"old"] * 5 + [b"new"] * 10


async def _is_refused(q: AsyncQueue, late: Job) -> None:
    with pytest.raises(LeaseLostError):
        await q.ack(late)
