"""Retention: how long dead and cancelled jobs stay, and what a completed job keeps.

Part of statements R1, R3, R6 and R7.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from casque.errors import JobNotFoundError
from casque.job import JobStatus, Stats
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue
from casque.rules.operations import PutRecord
from casque.rules.retention import DEAD_RETENTION
from casque.testing.rig import Rig
from casque.testing.statement import Statements, statement
from casque.testing.suite.records import Writer

_LEASE = timedelta(seconds=10)
_HOUR = timedelta(hours=1)
_HOUR_JSON = b"3600000000"
_KEPT_BYTES = 8 * 1024
ENDS = ("nacked", "failed", "discarded", "cancelled", "lost", "stale", "late")


class RetentionStatements(Statements):
    """The setting `dead_retention` of a store, for every way in which a job can end."""

    @statement("R3", "R6", "R7")
    async def test_jobs_that_did_not_succeed_stay_for_the_retention_of_the_store(
        self, rig: Rig
    ) -> None:
        q, other = await rig.worker(), await rig.worker()
        await _keep(rig, _HOUR_JSON)
        await _end_in_every_way(rig, other)
        rig.clock.advance(_HOUR - timedelta(microseconds=1))
        assert await _there(q) == set(ENDS)
        rig.clock.advance(timedelta(microseconds=1))
        assert await _there(q) == set()
        assert await q.stats() == Stats()
        with pytest.raises(JobNotFoundError):
            await q.retry("failed")
        await q.enqueue("e")  # prunes them
        assert len(rig.harness.raw().jobs) == 1

    @statement("R3", "R6", "R7")
    async def test_without_an_end_of_the_retention_they_stay_for_ever(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await _keep(rig, b"null")
        await _end_in_every_way(rig, other)
        rig.advance(days=20_000)
        await q.enqueue("e", id="new")
        assert await _there(other) == {*ENDS, "new"}
        assert await other.stats() == Stats(pending=1, dead=5, cancelled=2)
        assert (await other.enqueue("e", id="failed")).duplicate
        assert {job.expires_us for job in await other.jobs()} == {None}
        assert (await q.retry("nacked")).status is JobStatus.QUEUED
        [job] = await q.dequeue(id="nacked")
        await q.ack(job)
        assert await q.purge(older_than=_HOUR) == len(ENDS) - 1
        assert await _there(other) == {"new"}

    @statement("R3")
    async def test_a_new_retention_is_for_jobs_that_end_from_then_on(self, rig: Rig) -> None:
        q = await rig.worker()
        for name, value in {"hour": _HOUR_JSON, "ever": b"null", "once": b"0", "odd": b"?"}.items():
            await _keep(rig, value)
            await q.enqueue("e", id=name)
            assert (await q.cancel(name)).status is JobStatus.CANCELLED
        assert await _there(q) == {"hour", "ever", "odd"}
        rig.clock.advance(_HOUR)
        assert await _there(q) == {"ever", "odd"}
        rig.advance(days=30)  # an invalid value counts as the default
        assert await _there(q) == {"ever"}
        assert await q.drop("default") == 1
        assert rig.harness.raw().jobs == {}

    @statement("R1")
    async def test_a_completed_job_keeps_a_payload_of_up_to_8_kib(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        payloads = {
            f"{way}-{size}": bytes([size % 251]) * size
            for way in ("alone", "together", "followed")
            for size in (0, 1, _KEPT_BYTES, _KEPT_BYTES + 1, 3 * _KEPT_BYTES)
        }
        named = [NewJob("e", data, id=name, retain=_HOUR) for name, data in payloads.items()]
        unnamed = [NewJob("e", data, retain=_HOUR) for data in payloads.values()]
        minted = await q.enqueue_many([*named, *unnamed])
        held = {job.id: job for job in await q.dequeue("e", batch_size=len(minted))}
        payloads |= {job.id: job.payload for job in minted}
        for name in [name for name in payloads if name.startswith("alone")]:
            await q.ack(held.pop(name))
        for name in [name for name in payloads if name.startswith("followed")]:
            await q.ack(held.pop(name), enqueue=[NewJob("next")])
        await q.ack_many(held.values())
        for name, data in payloads.items():
            done = await other.get(name)
            assert done is not None
            assert done.status is JobStatus.COMPLETED
            assert done.payload == (data if len(data) <= _KEPT_BYTES else b"")


async def _keep(rig: Rig, value: bytes) -> None:
    await Writer(rig.harness.open()).commit(PutRecord(*DEAD_RETENTION, value, None))


async def _end_in_every_way(rig: Rig, q: AsyncQueue) -> None:
    """End one job in each way at the same instant, named after it."""
    for name in ENDS:
        await q.enqueue("other" if name == "lost" else "e", id=name, max_attempts=1)
    for name in ("stale", "lost", "late"):
        await q.dequeue(id=name, lease=_LEASE)
    rig.clock.advance(_LEASE)
    for name in ("nacked", "failed", "discarded"):
        await q.dequeue(id=name)
    await q.nack("nacked", error="no luck")
    await q.fail("failed", error="no luck")
    await q.discard("discarded")
    await q.cancel("cancelled")
    # A dequeue by id, a dequeue of a line and a sweep each store that a job was lost.
    assert await q.dequeue(id="late") == await q.dequeue("other") == []
    assert await q.requeue_stale(_LEASE) == 1


async def _there(q: AsyncQueue) -> set[str]:
    return {job.id for job in await q.jobs()}
