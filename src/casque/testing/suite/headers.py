"""Headers: statement E10. A job keeps the headers it was enqueued with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from casque.checks import HEADERS_BYTES
from casque.errors import InvalidError
from casque.job import Job, JobStatus, Stats
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue
from casque.testing.rig import Rig, counted, inside
from casque.testing.statement import Statements, statement

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
ODD = {
    "z": "last is first",
    "A": "",
    "a": "a=b;c,d",
    "日本語": "👷🏽\n",
    "'\";--": "\\\x01",
    " ": " ",
}
BAD: tuple[Any, ...] = (
    [],
    [("key", "value")],
    "key=value",
    0,
    {1: "value"},
    {b"key": "value"},
    {"key": 1},
    {"key": None},
    {"key": b"value"},
    {"": "value"},
    {"key\0": "value"},
    {"key": "\0"},
    {"key\ud800": "value"},
    {"key": "\ud800"},
    {"key": "x" * (HEADERS_BYTES - 2)},
    {"é": "é" * (HEADERS_BYTES // 2)},
    {f"{n:04}": "abcd" for n in range(HEADERS_BYTES // 8 + 1)},
)
HOUR = timedelta(hours=1)


class HeaderStatements(Statements):
    """What a store keeps of the headers of a job, and which it refuses."""

    @statement("E10")
    async def test_headers_are_returned_unchanged(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        sent: dict[str, dict[str, str]] = {}
        # Twice each: a store may have a fast path for a line that exists.
        for headers in (TRACE, ODD, {}, None) * 2:
            for job_id in (None, f"named-{len(sent)}"):
                job = await q.enqueue("e", id=job_id, headers=headers)
                assert job.headers == (headers or {})
                sent[job.id] = job.headers
            for new in (NewJob("e", headers=headers), NewJob("e", delay=HOUR, headers=headers)):
                jobs = await q.enqueue_many([new, NewJob("e"), new])
                sent |= {job.id: job.headers for job in jobs}
                assert [job.headers for job in jobs] == [headers or {}, {}, headers or {}]
        assert {job.id: job.headers for job in (await other.read_state()).jobs} == sent
        assert {job.id: job.headers for job in await other.peek(limit=100)}.items() <= sent.items()
        rig.advance(hours=1)
        claimed = await other.dequeue(batch_size=len(sent) - 2)
        claimed += [job for _ in range(2) for job in await other.dequeue()]
        assert {job.id: job.headers for job in claimed} == sent
        for job in claimed:
            assert await q.get(job.id) == job
            assert len({job, await q.get(job.id)}) == 1  # a job with headers can be hashed

    @statement("E10")
    async def test_headers_stay_with_a_job_to_its_end(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="x", max_attempts=4, retain=HOUR, headers=ODD)
        await q.nack(await _claimed(q, 1), error="no luck")
        await _has(other, JobStatus.QUEUED)
        await q.release(await _claimed(q, 2))
        await _has(other, JobStatus.QUEUED)
        held = await _claimed(q, 2, lease=timedelta(seconds=10))
        await q.heartbeat(held, lease=timedelta(seconds=20), progress=0.5)
        await _has(other, JobStatus.IN_PROGRESS)
        rig.advance(seconds=20)
        await _claimed(q, 3)
        rig.advance(seconds=1)
        assert await q.requeue_stale(timedelta(0)) == 1
        await _has(other, JobStatus.QUEUED)
        await q.fail(await _claimed(q, 4), error="hopeless")
        await _has(other, JobStatus.DEAD)
        await q.retry("x")
        await _has(other, JobStatus.QUEUED)
        await q.cancel("x")
        await _has(other, JobStatus.CANCELLED)
        await q.purge(older_than=timedelta(0))
        for result in (b"result", None):
            await q.enqueue("e", id="x", retain=HOUR, headers=ODD)
            await q.ack(await _claimed(q, 1), result=result)
            await _has(other, JobStatus.COMPLETED)
            rig.advance(hours=1)

    @statement("E10")
    async def test_headers_are_not_inherited_by_other_jobs(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        await q.enqueue("e", id="x", headers=TRACE)
        [held] = await q.dequeue()
        with inside(held):
            assert (await other.enqueue("below")).headers == {}
        await q.ack(held, enqueue=[NewJob("plain"), NewJob("next", id="x", headers=ODD)])
        found = {job.entrypoint: job.headers for job in await other.dequeue(batch_size=3)}
        assert found == {"below": {}, "plain": {}, "next": ODD}

    @statement("E10")
    async def test_headers_may_reach_the_limit_and_not_pass_it(self, rig: Rig) -> None:
        q, other = await rig.worker(), await rig.worker()
        wide = "é" * (HEADERS_BYTES // 4 - 1)
        many = {f"{n:04}": "abcd" for n in range(HEADERS_BYTES // 8)}
        for headers in ({"key": "x" * (HEADERS_BYTES - 3)}, {"é": wide, "è": wide}, many):
            assert sum(len((key + headers[key]).encode()) for key in headers) == HEADERS_BYTES
            job = await q.enqueue("e", headers=headers)
            assert job.headers == headers
            assert [one.headers for one in await other.dequeue(id=job.id)] == [headers]

    @statement("E10")
    async def test_bad_headers_are_refused_and_nothing_is_written(self, rig: Rig) -> None:
        q = await rig.worker()
        await q.enqueue("e")
        [held] = await q.dequeue()
        with counted(rig.harness.writes) as writes:
            for headers in BAD:
                with pytest.raises(InvalidError, match="headers"):
                    await q.enqueue("e", headers=headers)
                with pytest.raises(InvalidError, match=r"job 1 of the list: .*headers"):
                    await q.enqueue_many([NewJob("e"), NewJob("e", headers=headers)])
                with pytest.raises(InvalidError, match="headers"):
                    await q.ack(held, enqueue=[NewJob("e", headers=headers)])
        assert writes() == 0
        assert await q.stats() == Stats(processing=1)


async def _claimed(q: AsyncQueue, attempt: int, lease: timedelta | None = None) -> Job:
    [job] = await q.dequeue(lease=lease)
    assert (job.headers, job.attempts) == (ODD, attempt)
    return job


async def _has(q: AsyncQueue, status: JobStatus) -> None:
    """Another handle sees the job in this status, with its headers in their order."""
    job = await q.get("x")
    assert job is not None
    assert (job.status, list(job.headers.items())) == (status, list(ODD.items()))
