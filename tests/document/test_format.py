"""The document's format: jqueue's files open, ours do not change, and people can read them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from casque import (
    BrokerQueue,
    CorruptError,
    InMemoryStorage,
    JobStatus,
    LeaseLostError,
    NewJob,
)
from casque.job import Attempt, Failure, Job
from casque.record import Record
from casque.rules.operations import BatchStamp
from casque.rules.state import State
from casque.stores.document.codec import decode, encode
from casque.stores.document.store import DocumentStore
from casque.testing import FakeClock

GOLDEN = Path(__file__).parent / "golden"

JQUEUE = b"""{
  "version": 3,
  "jobs": [
    {
      "id": "550e8400-e29b-41d4-a716-446655440000",
      "entrypoint": "send_email",
      "payload": "eyJ0byI6ICJ1c2VyQGV4YW1wbGUuY29tIn0=",
      "status": "queued",
      "priority": 0,
      "created_at": "2024-01-01T12:00:00+00:00",
      "heartbeat_at": null
    },
    {
      "id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
      "entrypoint": "resize_image",
      "payload": "AAEC",
      "status": "in_progress",
      "priority": 5,
      "created_at": "2024-01-01T11:59:00+00:00",
      "heartbeat_at": "2024-01-01T12:00:45.250000Z"
    },
    {
      "id": "dead-one",
      "entrypoint": "resize_image",
      "payload": "",
      "status": "dead",
      "priority": 0,
      "created_at": "2024-01-01T11:00:00+00:00",
      "heartbeat_at": null
    }
  ]
}"""


def test_a_file_made_by_jqueue_opens_and_its_jobs_are_worked() -> None:
    async def test() -> None:
        clock = FakeClock(start=datetime(2024, 1, 1, 12, 1, tzinfo=UTC))
        storage = InMemoryStorage(initial_content=JQUEUE)
        async with BrokerQueue(DocumentStore(storage, clock)) as q:
            state = await q.read_state()
            assert state.version == 3
            assert [job.status.value for job in state.jobs] == ["queued", "in_progress", "dead"]
            assert state.in_progress_jobs()[0].payload == b"\x00\x01\x02"
            [first] = await q.dequeue(batch_size=5)
            assert first.entrypoint == "send_email"
            # jqueue takes a silent job back five minutes after its last heartbeat; so does casque.
            clock.advance(timedelta(minutes=4, seconds=46))
            [taken_back] = await q.dequeue("resize_image")
            assert taken_back.attempts == 2
            assert taken_back.token > first.token
            await q.ack(taken_back)
            retried = await q.retry("dead-one")
            assert retried.status is JobStatus.QUEUED
        content, _ = await storage.read()
        assert json.loads(content)["version"] == 7

    asyncio.run(test())


def test_a_job_in_progress_in_a_jqueue_file_cannot_be_acked_without_a_claim() -> None:
    async def test() -> None:
        clock = FakeClock(start=datetime(2024, 1, 1, 12, 1, tzinfo=UTC))
        async with BrokerQueue(DocumentStore(InMemoryStorage(JQUEUE), clock)) as q:
            with pytest.raises(LeaseLostError):
                await q.ack("6ba7b810-9dad-11d1-80b4-00c04fd430c8")

    asyncio.run(test())


def test_jqueue_fields_are_written_as_jqueue_writes_them() -> None:
    async def test() -> None:
        clock = FakeClock(start=datetime(2024, 1, 1, 12, tzinfo=UTC))
        storage = InMemoryStorage()
        async with BrokerQueue(DocumentStore(storage, clock)) as q:
            await q.enqueue("send_email", b'{"to": "user@example.com"}', 5, id="one")
        content, _ = await storage.read()
        stored = json.loads(content)
        assert stored["version"] == 1
        assert {name: stored["jobs"][0][name] for name in list(stored["jobs"][0])[:7]} == {
            "id": "one",
            "entrypoint": "send_email",
            "payload": "eyJ0byI6ICJ1c2VyQGV4YW1wbGUuY29tIn0=",
            "status": "queued",
            "priority": 5,
            "created_at": "2024-01-01T12:00:00+00:00",
            "heartbeat_at": None,
        }
        assert b'\n      "id": "one",\n' in content  # a person can read it

    asyncio.run(test())


def full_state() -> State:
    """A state in which every field of the format has a value."""
    state = State()
    state.identity = "0198c0de-0000-7000-8000-000000000000"
    state.version, state.token, state.seq = 9, 12, 0
    state.begin(1_577_836_800_000_000)
    at = 1_577_836_800_000_001
    failure = Failure("ValueError", "no", "Traceback …")
    jobs = [
        Job(
            id="plain", entrypoint="e", payload=b"\x00\xff", created_us=at, run_us=at, updated_us=at
        ),
        Job(
            id="running",
            entrypoint="e",
            queue="tenant/ü",
            payload=b"x",
            priority=-3,
            status=JobStatus.IN_PROGRESS,
            attempts=2,
            max_attempts=7,
            token=11,
            worker="host:1",
            created_us=at,
            run_us=at + 5,
            updated_us=at + 6,
            claimed_us=at + 7,
            heartbeat_us=at + 8,
            lease_until_us=at + 100_000_000,
            progress=0.5,
            note="half",
            output=b"tail",
            timeout_us=30_000_000,
            depth=1,
            chain=("parent",),
            header_pairs=(("traceparent", "00-1-2-01"), ("ü", "")),
            history=(Attempt(1, "host:0", at + 3, at + 4, failure),),
            error="ValueError: no",
        ),
        Job(
            id="done",
            entrypoint="e",
            payload=b"",
            status=JobStatus.COMPLETED,
            attempts=1,
            token=10,
            worker="host:1",
            result=b"r",
            retain_us=86_400_000_000,
            created_us=at,
            run_us=at,
            updated_us=at + 9,
            claimed_us=at + 7,
            finished_us=at + 9,
            expires_us=at + 86_400_000_009,
            history=(Attempt(1, "host:1", at + 7, at + 9),),
        ),
    ]
    for place, job in enumerate(jobs, start=1):
        state.seq = place
        state.put(replace(job, seq=place))
    state.settle()
    state.put_record(Record("pause", "tenant/ü", b"", 3))
    state.put_record(Record("lock", "0:a", b"me", 12, 1_577_836_900_000_000))
    state.stamp([BatchStamp("writer-1", 4), BatchStamp("writer-2", 1, b"\x90")])
    return state


def test_the_format_does_not_change() -> None:
    encoded = encode(full_state())
    golden = GOLDEN / "format-1.json"
    assert encoded == golden.read_bytes().rstrip(b"\n")


def test_a_written_state_is_read_back_the_same() -> None:
    state = full_state()
    again = decode(encode(state), "x")
    assert again.jobs == state.jobs
    assert again.records == state.records
    assert again.writers == state.writers
    assert [line.turn for line in again.lines()] == [line.turn for line in state.lines()]
    assert again.identity == state.identity
    assert (again.version, again.token, again.seq, again.turn, again.time_us) == (
        state.version,
        state.token,
        state.seq,
        state.turn,
        state.time_us,
    )
    assert encode(again) == encode(state)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[]", "Expected `object`"),
        (b'{"jobs": []}', "version"),
        (b'{"version": 1, "jobs": [{"id": "a"}]}', "missing required field"),
        (JQUEUE.replace(b"+00:00", b""), "has no time zone"),
        (JQUEUE.replace(b"dead-one", b"6ba7b810-9dad-11d1-80b4-00c04fd430c8"), "occurs twice"),
        (JQUEUE.replace(b'"queued"', b'"lurking"'), "lurking"),
        (b'{"version": 1, "jobs": [], "casque": {"format": 2}}', "newer casque"),
        (JQUEUE.replace(b"AAEC", b"A?"), "base64"),
        (b"\xff\xfe", "malformed"),
    ],
)
def test_foreign_content_is_corrupt_and_the_error_says_why(content: bytes, says: str) -> None:
    with pytest.raises(CorruptError, match="Nothing was overwritten") as failure:
        decode(content, "the-file")
    assert "the-file" in str(failure.value)
    assert says in str(failure.value)


def test_a_line_that_was_edited_by_hand_never_hides_a_job() -> None:
    async def test() -> None:
        clock, storage = FakeClock(), InMemoryStorage()
        async with BrokerQueue(DocumentStore(storage, clock)) as q:
            await q.enqueue("e", id="later", delay=timedelta(days=1))
        content, _ = await storage.read()
        document = json.loads(content)
        del document["jobs"][0]["run_at"]
        edited = InMemoryStorage(json.dumps(document).encode())
        async with BrokerQueue(DocumentStore(edited, clock)) as q:
            assert [job.id for job in await q.dequeue()] == ["later"]

    asyncio.run(test())


def test_the_rotation_of_queues_survives_a_restart() -> None:
    async def test() -> None:
        clock, storage = FakeClock(), InMemoryStorage()
        async with BrokerQueue(DocumentStore(storage, clock)) as q:
            await q.enqueue_many([NewJob("e", queue=name) for name in "aaabbb"])
            served = [job.queue for job in await q.dequeue()]
        for _ in range(3):
            async with BrokerQueue(DocumentStore(storage, clock)) as q:
                served += [job.queue for job in await q.dequeue()]
        assert served == ["a", "b", "a", "b"]

    asyncio.run(test())
