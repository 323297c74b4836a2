"""A jqueue program moves to casque, shares a store with casque's names, and goes back."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import casque
from casque.compat import jqueue
from casque.compat.jqueue import (
    BrokerQueue,
    DirectQueue,
    HeartbeatManager,
    InMemoryStorage,
    Job,
    JobStatus,
    LocalFileSystemStorage,
    QueueState,
)
from casque.compat.jqueue.core import codec
from casque.compat.jqueue.core.group_commit import GroupCommitLoop
from casque.stores.document.store import DocumentStore
from casque.testing import FakeClock
from tests.compat.examples import run_page, with_our_import
from tests.compat.places import MINUTE, Place
from tests.docs.following import ROOT

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FIELDS = ("id", "entrypoint", "payload", "status", "priority", "created_at", "heartbeat_at")

# Each is as a user of jqueue writes it.
PROGRAMS = {
    "a producer and a worker on a file": """
        import asyncio
        from datetime import timedelta
        from jqueue import BrokerQueue, HeartbeatManager, JobNotFoundError, LocalFileSystemStorage

        async def work(q):
            while jobs := await q.dequeue("thumbnail", batch_size=3):
                for job in jobs:
                    try:
                        async with HeartbeatManager(q, job.id, interval=timedelta(seconds=5)):
                            print("made", job.payload.decode())
                        await q.ack(job.id)
                    except JobNotFoundError as error:
                        print("lost", error.job_id)

        async def main():
            async with BrokerQueue(LocalFileSystemStorage("state/thumbnails.json")) as q:
                await asyncio.gather(*(q.enqueue("thumbnail", b"%d" % n, n) for n in range(4)))
                await work(q)
                print(len((await q.read_state()).jobs), "left")

        asyncio.run(main())
    """,
    "the module as a name, one commit per call": """
        import asyncio
        import jqueue

        async def main():
            q = jqueue.DirectQueue(storage=jqueue.InMemoryStorage(), max_retries=3)
            job = await q.enqueue(entrypoint="report", payload=b"may", priority=1)
            [claimed] = await q.dequeue(entrypoint="report", batch_size=1)
            assert claimed.status is jqueue.JobStatus.IN_PROGRESS
            await q.nack(job_id=job.id)
            [again] = await q.dequeue("report")
            try:
                raise ConnectionError("mail server away")
            except ConnectionError:
                await q.nack(again.id)
            state = await q.read_state()
            print(state.version, [job.status.value for job in state.queued_jobs("report")])
            await q.ack(job.id)
            try:
                await q.ack(job.id)
            except jqueue.JQueueError as error:
                print(type(error).__name__, error.job_id == job.id)

        asyncio.run(main())
    """,
    "sub-modules and the pure state": """
        import asyncio
        from datetime import UTC, datetime
        from jqueue.adapters.storage.memory import InMemoryStorage
        from jqueue.core import codec
        from jqueue.core.broker import BrokerQueue
        from jqueue.domain.errors import CASConflictError, StorageError
        from jqueue.domain.models import Job, JobStatus, QueueState
        from jqueue.ports.storage import ObjectStoragePort

        class Shelf:
            def __init__(self):
                self.content, self.number = b"", 0

            async def read(self):
                return (self.content, str(self.number)) if self.number else (b"", None)

            async def write(self, content, if_match=None):
                if if_match != (str(self.number) if self.number else None):
                    raise CASConflictError("moved on")
                if not content:
                    raise StorageError("refused", ValueError("empty"))
                self.content, self.number = content, self.number + 1
                return str(self.number)

        async def main():
            shelf = Shelf()
            assert isinstance(shelf, ObjectStoragePort)
            old = Job.new("bill", b"1").with_status(JobStatus.IN_PROGRESS)
            state = QueueState().with_job_added(old).with_job_added(Job.new("bill", b"2"))
            await shelf.write(codec.encode(state.requeue_stale(datetime.now(UTC))))
            async with BrokerQueue(storage=shelf) as q:
                for job in await q.dequeue("bill", batch_size=5):
                    print(job.payload)
                    await q.ack(job.id)
            content, etag = await shelf.read()
            print(codec.decode(content).jobs)

        asyncio.run(main())
    """,
}
PRINTED = [
    ["made 0", "made 1", "made 2", "made 3", "0 left"],
    ["5 ['queued']", "JobNotFoundError True"],
    ["b'1'", "b'2'", "()"],
]


@pytest.mark.parametrize(("name", "printed"), list(zip(PROGRAMS, PRINTED, strict=True)))
def test_a_program_runs_with_its_imports_changed(
    name: str, printed: list[str], tmp_path: Path
) -> None:
    program = with_our_import(textwrap.dedent(PROGRAMS[name]))
    assert "casque" in program
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (run.stderr, run.stdout.splitlines()) == ("", printed)


def test_the_code_of_a_page_is_run_and_its_signatures_are_compared() -> None:
    page = """
```python
from jqueue import BrokerQueue
await q.enqueue("task", b"1")
```

```python
await q.ack(job_id: str)
jobs = await q.dequeue(
    entrypoint: str | None = None,  # any
    *,
    batch_size: int = 1,
)
```

```python
await q.ack(identity: str)
```

```python
raise ValueError("wrong")
```
"""
    outcomes = asyncio.run(run_page(page))
    assert [(one.line, one.what) for one in outcomes] == [
        (3, "ran"),
        (8, "signatures"),
        (17, "failed"),
        (21, "failed"),
    ]


def parameters(of: Callable[..., Any]) -> list[str]:
    return [str(one).partition(":")[0] for one in inspect.signature(of).parameters.values()]


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue, GroupCommitLoop])
def test_the_methods_have_the_parameters_of_jqueue(kind: type[Any]) -> None:
    q = kind(InMemoryStorage())
    assert parameters(q.enqueue) == ["entrypoint", "payload", "priority"]
    assert parameters(q.dequeue) == ["entrypoint", "batch_size"]
    assert inspect.getfullargspec(q.dequeue).kwonlyargs == ["batch_size"]
    for call in (q.ack, q.nack, q.heartbeat):
        assert parameters(call) == ["job_id"]
    assert parameters(q.read_state) == []


def test_the_classes_have_the_parameters_of_jqueue() -> None:
    assert parameters(DirectQueue) == ["storage", "max_retries"]
    assert parameters(BrokerQueue) == parameters(GroupCommitLoop) == ["storage", "stale_timeout"]
    assert parameters(HeartbeatManager) == ["queue", "job_id", "interval"]
    assert parameters(DirectQueue("memory://").requeue_stale) == ["timeout"]
    assert DirectQueue("memory://").max_retries == 10
    assert BrokerQueue("memory://").stale_timeout == timedelta(minutes=5)
    assert parameters(InMemoryStorage) == ["initial_content"]
    assert parameters(LocalFileSystemStorage) == ["path"]
    assert tuple(Job.model_fields) == FIELDS
    assert tuple(QueueState.model_fields) == ("jobs", "version")


@pytest.mark.parametrize(
    "name",
    [
        *("domain.models", "domain.errors", "ports.storage"),
        *("core.codec", "core.direct", "core.group_commit", "core.broker", "core.heartbeat"),
        *(f"adapters.storage.{one}" for one in ("memory", "filesystem", "s3", "gcs")),
    ],
)
def test_a_sub_module_of_jqueue_is_there(name: str) -> None:
    assert importlib.import_module(f"casque.compat.jqueue.{name}").__name__.endswith(name)


def test_casque_needs_no_newer_python_than_3_11() -> None:
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text()


def by_jqueue(*jobs: Job, version: int = 3) -> bytes:
    """A file as jqueue writes it."""
    content = codec.encode(QueueState(jobs=jobs, version=version))
    assert b"casque" not in content
    return content


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
def test_a_file_made_by_jqueue_goes_on(kind: Any) -> None:
    queued = Job(id="queued", entrypoint="a", payload=b"1", created_at=NOON)
    held = queued.model_copy(update={"id": "held", "status": JobStatus.IN_PROGRESS})
    beaten = held.with_heartbeat(NOON + MINUTE)

    async def test() -> None:
        there = Place("memory://")
        there.clock = FakeClock(start=NOON + 2 * MINUTE)
        storage = InMemoryStorage(by_jqueue(queued, beaten))
        there.store = DocumentStore(storage, there.clock)
        async with there.open(kind) as q:
            assert (await q.read_state()).jobs == (queued, beaten)
            assert [job.id for job in await q.dequeue(batch_size=5)] == ["queued"]
            there.clock.advance(4 * MINUTE)
            await q.heartbeat("queued")
            assert [job.id for job in await q.dequeue(batch_size=5)] == ["held"]

    asyncio.run(test())


def test_a_job_that_jqueue_stored_is_dead_after_25_attempts() -> None:
    async def test() -> None:
        job = Job(id="one", entrypoint="a", payload=b"1", created_at=NOON)
        q = DirectQueue(InMemoryStorage(by_jqueue(job)))
        for _ in range(25):
            await q.dequeue()
            await q.nack("one")
        assert [one.status for one in (await q.read_state()).jobs] == [JobStatus.DEAD]

    asyncio.run(test())


def test_jqueue_drops_the_fields_of_casque_and_an_open_queue_then_refuses() -> None:
    async def test() -> None:
        storage = InMemoryStorage()
        q, main = DirectQueue(storage), casque.DirectQueue(storage)
        await q.enqueue("a", b"1")
        await main.enqueue("a", b"2", queue="slow", delay=timedelta(hours=1))
        await main.pause("slow")
        content, etag = await storage.read()
        # As jqueue does it: its fields are read, and its fields are written.
        written = QueueState.model_validate_json(content).model_dump_json().encode()
        await storage.write(written, etag)
        assert "casque" not in json.loads(written)
        assert {tuple(job) for job in json.loads(written)["jobs"]} == {FIELDS}
        with pytest.raises(jqueue.CorruptError) as caught:
            await q.enqueue("a", b"3")
        assert caught.value.is_replaced
        assert len(await DirectQueue(storage).dequeue(batch_size=5)) == 2  # the delay is lost

    asyncio.run(test())


def test_casques_names_and_those_of_jqueue_share_a_store(place: Place) -> None:
    async def test() -> None:
        main, direct = casque.DirectQueue(place.store), DirectQueue(place.store)
        async with BrokerQueue(place.store) as broker:
            for name in ("by_main", "by_broker", "by_direct"):
                await direct.enqueue(name, b"1")
            await main.dequeue("by_main")
            await broker.dequeue("by_broker")
            await direct.dequeue("by_direct")
            place.clock.advance(6 * MINUTE)
            due = await main.dequeue(batch_size=5)
            assert {job.entrypoint for job in due} == {"by_main", "by_broker"}

    asyncio.run(test())


def test_a_broker_requeues_jobs_of_casques_names_too(place: Place) -> None:
    async def test() -> None:
        main = casque.DirectQueue(place.store)
        await main.enqueue("a")
        [held] = await main.dequeue(lease=timedelta(hours=1))
        async with BrokerQueue(place.store, stale_timeout=2 * MINUTE) as broker:
            place.clock.advance(MINUTE)
            assert await broker.dequeue() == []
            await main.heartbeat(held)
            place.clock.advance(MINUTE)
            assert await broker.dequeue() == []
            place.clock.advance(MINUTE)
            assert [job.id for job in await broker.dequeue()] == [held.id]

    asyncio.run(test())


def test_each_queue_object_has_one_row_in_the_file() -> None:
    async def rows(storage: InMemoryStorage) -> int:
        content, _ = await storage.read()
        return len(json.loads(content)["casque"]["writers"])

    async def test() -> None:
        storage, clock = InMemoryStorage(), FakeClock()
        store = DocumentStore(storage, clock)
        q = DirectQueue(store)
        for _ in range(3):
            await q.enqueue("a", b"1")
        assert await rows(storage) == 1
        for _ in range(3):
            await DirectQueue(store).enqueue("a", b"1")
        assert await rows(storage) == 4
        clock.advance(timedelta(minutes=16))
        await q.enqueue("a", b"1")
        assert await rows(storage) == 1

    asyncio.run(test())


def test_the_jobs_that_go_back_are_the_unfinished_and_the_dead(place: Place) -> None:
    async def test() -> None:
        main = casque.DirectQueue(place.store)
        await main.enqueue("a", b"done", retain=timedelta(days=1))
        [done] = await main.dequeue()
        await main.ack(done)
        await main.cancel(await main.enqueue("a", b"cancelled"))
        await main.enqueue("a", b"dead")
        [dead] = await main.dequeue()
        await main.fail(dead)
        await main.enqueue("a", b"held")
        await main.dequeue()
        await main.enqueue("a", b"tomorrow", queue="slow", delay=timedelta(days=1))
        content = codec.encode(await DirectQueue(place.store).read_state())
        back = QueueState.model_validate_json(content)
        assert [(job.payload, job.status.value) for job in back.jobs] == [
            (b"dead", "dead"),
            (b"held", "in_progress"),
            (b"tomorrow", "queued"),
        ]
        assert {tuple(job) for job in json.loads(content)["jobs"]} == {FIELDS}

    asyncio.run(test())
