"""jqueue's values: frozen pydantic models with pure functions, and their codec."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ValidationError

from casque import LeaseLostError, NewJob, Queue
from casque.compat import jqueue
from casque.compat.jqueue import InMemoryStorage, Job, JobNotFoundError, JobStatus, QueueState
from casque.compat.jqueue.core import codec
from casque.stores.document.store import DocumentStore
from casque.system.clock import to_datetime
from casque.testing import FakeClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
IN_PROGRESS = JobStatus.IN_PROGRESS


def test_the_names_are_those_of_jqueue_and_three_more_errors() -> None:
    more = {"CorruptError", "InvalidError", "LeaseLostError"}
    assert set(jqueue.__all__) - more == {
        *("BrokerQueue", "DirectQueue", "HeartbeatManager", "Job", "JobStatus", "QueueState"),
        *("JQueueError", "CASConflictError", "JobNotFoundError", "StorageError", "__version__"),
        *("InMemoryStorage", "LocalFileSystemStorage", "ObjectStoragePort"),
    }
    assert all(hasattr(jqueue, name) for name in jqueue.__all__)
    assert [status.value for status in JobStatus] == ["queued", "in_progress", "dead"]


def test_without_pydantic_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['pydantic'] = None\nimport casque.compat.jqueue"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert run.returncode == 1
    assert b'pip install "casque[jqueue]"' in run.stderr


def test_a_new_job_is_queued_and_has_an_id_and_a_time_of_its_own() -> None:
    one, other = Job.new("resize", b"\x00"), Job.new("resize", b"\x00", priority=-1)
    assert isinstance(one, BaseModel)
    assert (one.entrypoint, one.payload, one.priority, other.priority) == ("resize", b"\x00", 0, -1)
    assert (one.status, one.heartbeat_at) == (JobStatus.QUEUED, None)
    assert UUID(one.id) != UUID(other.id)
    assert one.created_at.utcoffset() == timedelta(0)


def test_a_job_does_not_change_and_its_functions_return_another() -> None:
    job = Job.new("resize", b"1")
    with pytest.raises(ValidationError):
        job.priority = 3
    beating = job.with_status(IN_PROGRESS).with_heartbeat(NOON)
    assert (beating.id, beating.status, beating.heartbeat_at) == (job.id, IN_PROGRESS, NOON)
    assert beating.with_heartbeat(None).heartbeat_at is None
    assert (job.status, job.heartbeat_at) == (JobStatus.QUEUED, None)


def test_a_payload_is_bytes_in_python_and_base64_in_json() -> None:
    every_byte = bytes(range(256))
    job = Job.new("resize", every_byte)
    assert job.model_dump()["payload"] == base64.b64encode(every_byte).decode()
    assert Job.model_validate_json(job.model_dump_json()) == job
    for wrong in (5, None, ["x"], "not base64!!!"):
        with pytest.raises(ValidationError):
            Job(entrypoint="resize", payload=wrong)  # type: ignore[arg-type]


def test_a_state_selects_and_orders_its_jobs() -> None:
    late = Job(entrypoint="a", payload=b"late", created_at=NOON)
    early = Job(entrypoint="b", payload=b"early", created_at=NOON - timedelta(hours=1))
    urgent = Job(entrypoint="a", payload=b"urgent", created_at=NOON, priority=-5)
    held = Job.new("a", b"held").with_status(IN_PROGRESS)
    dead = Job.new("a", b"dead").with_status(JobStatus.DEAD)
    state = QueueState(jobs=(late, dead, early, held, urgent))
    assert state.queued_jobs() == (urgent, early, late)
    assert state.queued_jobs("a") == (urgent, late)
    assert state.in_progress_jobs() == (held,)
    assert state.find(dead.id) is dead
    assert state.find("nobody") is None


def test_a_state_that_changes_is_another_state_with_the_next_version() -> None:
    one, two = Job.new("a", b"1"), Job.new("a", b"2")
    empty = QueueState()
    both = empty.with_job_added(one).with_job_added(two)
    assert (empty.jobs, empty.version, both.version) == ((), 0, 2)
    held = both.with_job_replaced(two.with_status(IN_PROGRESS))
    assert [job.status for job in held.jobs] == [JobStatus.QUEUED, IN_PROGRESS]
    assert held.with_job_removed(one.id).jobs == held.jobs[1:]
    with pytest.raises(JobNotFoundError) as caught:
        empty.with_job_removed(one.id)
    assert caught.value.job_id == one.id
    with pytest.raises(JobNotFoundError) as caught:
        empty.with_job_replaced(one)
    assert caught.value.job_id == one.id


def test_only_stale_jobs_are_requeued() -> None:
    silent = Job.new("a", b"1").with_status(IN_PROGRESS)
    old = silent.model_copy(update={"id": "old", "heartbeat_at": NOON})
    fresh = silent.model_copy(update={"id": "fresh", "heartbeat_at": NOON + timedelta(seconds=2)})
    dead = Job.new("a", b"3").with_status(JobStatus.DEAD)
    state = QueueState(jobs=(silent, old, fresh, dead), version=7)
    after = state.requeue_stale(NOON + timedelta(seconds=1))
    assert [job.status.value for job in after.jobs] == ["queued", "queued", "in_progress", "dead"]
    assert after.find("old") == old.with_status(JobStatus.QUEUED).with_heartbeat(None)
    assert after.version == 8
    assert after.requeue_stale(NOON) is after
    at_the_cutoff = QueueState(jobs=(old,))
    assert at_the_cutoff.requeue_stale(NOON) is at_the_cutoff


def test_the_codec_keeps_every_field() -> None:
    jobs = (Job.new("a", b"\xff\x00", 3), Job.new("b", b"").with_heartbeat(NOON))
    state = QueueState(jobs=jobs, version=42)
    assert codec.decode(codec.encode(state)) == state
    assert list(json.loads(codec.encode(state))) == ["jobs", "version"]
    assert codec.decode(b"") == QueueState()


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"\xff", b'{"jobs": 5}', b'{"casque": {}, "jobs": [{"id": "x"}]}']
)
def test_bytes_that_are_no_queue_are_refused(data: bytes) -> None:
    with pytest.raises(ValidationError):
        codec.decode(data)


# -- a document that casque has written, changed by a program through the codec ---------


class Document:
    """A queue of casque in an object that a program changes by itself."""

    def __init__(self) -> None:
        self.storage, self.clock = InMemoryStorage(), FakeClock()
        self.queue = Queue(DocumentStore(self.storage, self.clock))

    def stored(self) -> dict[str, Any]:
        content, _ = asyncio.run(self.storage.read())
        document: dict[str, Any] = json.loads(content)
        return document

    def now(self) -> datetime:
        return to_datetime(self.clock.now())

    def change(self, change: Any) -> None:
        async def write() -> None:
            content, etag = await self.storage.read()
            await self.storage.write(codec.encode(change(codec.decode(content))), etag)

        asyncio.run(write())


def test_a_state_that_is_written_back_unchanged_loses_nothing() -> None:
    there = Document()
    with there.queue as q:
        q.enqueue_many([NewJob("a", b"1", id="one", delay=timedelta(hours=1), queue="slow")])
        q.enqueue("a", b"2", id="two")
        q.enqueue("a", b"3", id="kept", retain=timedelta(days=1))
        [held, done] = q.dequeue("a", batch_size=2)
        q.ack(done)
        before = there.stored()
        there.change(lambda state: state)
        assert there.stored() == before | {"casque": before["casque"] | {"lines": []}}
        q.ack(held)  # the claim still holds
        assert [job.id for job in q.read_state().jobs] == ["one", "kept"]


def test_a_program_can_add_and_remove_jobs_in_the_storage() -> None:
    there = Document()
    with there.queue as q:
        q.enqueue("a", b"1", id="one")
        two = Job(entrypoint="a", payload=b"2", created_at=there.now())
        there.change(lambda state: state.with_job_added(two))
        there.change(lambda state: state.with_job_removed("one"))
        [job] = q.dequeue("a", batch_size=5)
        assert job.payload == b"2"
        q.ack(job)


def test_a_program_can_make_a_job_dead_and_its_holder_is_fenced() -> None:
    there = Document()
    with there.queue as q:
        q.enqueue("a", b"1", id="one")
        [held] = q.dequeue("a")

        def bury(state: QueueState) -> QueueState:
            job = state.find("one")
            assert job is not None
            return state.with_job_replaced(job.with_status(JobStatus.DEAD).with_heartbeat(None))

        there.change(bury)
        assert q.stats().dead == 1
        with pytest.raises(LeaseLostError):
            q.ack(held)
        assert q.retry("one").token == held.token  # the next claim gets a higher one
        [again] = q.dequeue("a")
        assert again.token > held.token


def test_a_program_can_requeue_a_stale_job_and_its_holder_is_fenced() -> None:
    there = Document()
    with there.queue as q:
        q.enqueue("a", b"1", id="one")
        [held] = q.dequeue("a")
        there.change(lambda state: state.requeue_stale(NOON))
        [again] = q.dequeue("a")
        assert (again.id, again.attempts) == ("one", 2)
        assert again.token > held.token


def test_a_program_can_claim_a_job_and_the_claim_lasts_five_minutes() -> None:
    there = Document()
    with there.queue as q:
        q.enqueue("a", b"1", id="one")
        [before] = q.dequeue("a")
        q.nack(before)

        def claim(state: QueueState) -> QueueState:
            [job] = state.queued_jobs("a")
            held = job.with_status(IN_PROGRESS).with_heartbeat(there.now())
            return state.with_job_replaced(held)

        there.change(claim)
        assert q.dequeue("a") == []
        with pytest.raises(LeaseLostError):
            q.ack(before)
        there.clock.advance(timedelta(minutes=5, seconds=1))
        assert [job.id for job in q.dequeue("a")] == ["one"]


def test_a_heartbeat_that_a_program_writes_moves_the_lease() -> None:
    there = Document()
    with there.queue as q:
        q.enqueue("a", b"1", id="one")
        [held] = q.dequeue("a", lease=timedelta(hours=1))

        def beat(state: QueueState) -> QueueState:
            job = state.find("one")
            assert job is not None
            assert job.heartbeat_at is not None
            later = job.heartbeat_at + timedelta(minutes=30)
            return state.with_job_replaced(job.with_heartbeat(later))

        there.change(beat)
        found = q.get("one")
        assert found is not None
        assert held.lease_until is not None
        assert found.lease_until == held.lease_until + timedelta(minutes=30)
        q.ack(held)
