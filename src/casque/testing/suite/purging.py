"""Purging: purges of one status, or of jobs by id. Part of statement R8."""

from __future__ import annotations

from datetime import timedelta

from casque.job import JobStatus
from casque.queues.async_queue import AsyncQueue
from casque.rules.operations import Hold, Purge
from casque.testing.rig import Rig, counted
from casque.testing.statement import Statements, statement
from casque.testing.suite.records import Writer

_LEASE = timedelta(seconds=10)
_HOUR = timedelta(hours=1)
_HOUR_US = 3_600_000_000


class PurgingStatements(Statements):
    """A purge deletes no job that differs from the one that its caller has read."""

    @statement("R8")
    async def test_a_purge_of_one_status_leaves_the_others(self, rig: Rig) -> None:
        q, writer = await rig.worker(), Writer(rig.harness.open())
        await _one_of_each(rig, q)
        assert await writer.commit(Purge(0, status=JobStatus.QUEUED)) == [0]
        assert await writer.commit(Purge(_HOUR_US, status=JobStatus.DEAD)) == [0]
        assert await writer.commit(Purge(0, "none", status=JobStatus.DEAD)) == [0]
        left = {"queued", "held", "completed", "dead", "spent", "cancelled"}
        for status, gone in (
            (JobStatus.COMPLETED, {"completed"}),
            (JobStatus.DEAD, {"dead", "spent"}),
            (JobStatus.CANCELLED, {"cancelled"}),
        ):
            assert await writer.commit(Purge(0, "default", status)) == [len(gone)]
            left -= gone
            assert rig.harness.raw().jobs.keys() == left

    @statement("R8")
    async def test_a_purge_up_to_an_instant_spares_what_finished_later(self, rig: Rig) -> None:
        q, writer = await rig.worker(), Writer(rig.harness.open())
        await q.enqueue("e", id="counted")
        await q.fail((await q.dequeue())[0], error="no")
        rig.clock.advance(_LEASE)
        until_us = rig.clock.now()
        rig.clock.advance(_LEASE)  # the question is answered, and the commit waits for a lock
        await q.enqueue("e", id="later")
        await q.fail((await q.dequeue())[0], error="no")
        rig.clock.advance(_LEASE)
        assert await writer.commit(Purge(0, status=JobStatus.DEAD, until_us=until_us)) == [1]
        assert rig.harness.raw().jobs.keys() == {"later"}

    @statement("R8")
    async def test_a_purge_by_id_deletes_these_finished_jobs_only(self, rig: Rig) -> None:
        q, writer = await rig.worker(), Writer(rig.harness.open())
        await _one_of_each(rig, q)
        holds = await _holds(q)
        with counted(rig.harness.writes) as writes:
            assert await writer.commit(
                _purge((("unknown", 1), holds["queued"], holds["held"]))
            ) == [0]
            assert await writer.commit(_purge(())) == [0]
            assert await writer.commit(_purge((holds["cancelled"],))) == [0]
        assert writes() == 0
        twice = (holds["spent"], holds["dead"], holds["dead"])
        assert await writer.commit(_purge(twice)) == [2]
        left = {"queued", "held", "completed", "cancelled"}
        assert rig.harness.raw().jobs.keys() == left
        assert (await q.stats()).total == len(left)
        assert await writer.commit(Purge(0, only=(holds["completed"], holds["cancelled"]))) == [2]
        assert rig.harness.raw().jobs.keys() == {"queued", "held"}

    @statement("R8")
    async def test_a_purge_by_id_spares_a_job_that_was_retried_meanwhile(self, rig: Rig) -> None:
        q, writer = await rig.worker(), Writer(rig.harness.open())
        for name in ("queued again", "held again", "dead again", "replaced", "dead"):
            await q.enqueue("e", id=name)
            await q.fail((await q.dequeue(id=name))[0], error="first")
        seen = _purge(tuple((await _holds(q)).values()))
        for name in ("held again", "dead again", "queued again"):
            await q.retry(name)
            if name != "queued again":
                [held] = await q.dequeue(id=name)
                if name == "dead again":
                    await q.fail(held, error="second")
        await q.enqueue("e", id="replaced", replace=True)
        assert await writer.commit(seen) == [1]
        left = {"queued again", "held again", "dead again", "replaced"}
        assert rig.harness.raw().jobs.keys() == left
        again = await q.get("dead again")
        assert again is not None
        assert again.error == "second"


def _purge(only: tuple[Hold, ...]) -> Purge:
    return Purge(0, status=JobStatus.DEAD, only=only)


async def _holds(q: AsyncQueue) -> dict[str, Hold]:
    return {job.id: (job.id, job.token) for job in await q.jobs()}


async def _one_of_each(rig: Rig, q: AsyncQueue) -> None:
    """Store a job in every status, and one whose last lease is over."""
    await q.enqueue("e", id="spent", max_attempts=1)
    await q.dequeue(id="spent", lease=_LEASE)
    rig.clock.advance(_LEASE)
    await q.enqueue("e", id="queued", delay=_HOUR)
    for name in ("held", "completed", "dead"):
        await q.enqueue("e", id=name, retain=_HOUR)
        [job] = await q.dequeue(id=name, lease=_HOUR)
        if name == "completed":
            await q.ack(job)
        if name == "dead":
            await q.fail(job, error="no luck")
    await q.enqueue("e", id="cancelled")
    await q.cancel("cancelled")
    rig.advance(seconds=1)
