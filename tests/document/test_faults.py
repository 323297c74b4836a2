"""The document store when the storage fails, at each single request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from itertools import count

import pytest

from casque import (
    BrokerQueue,
    CASConflictError,
    DirectQueue,
    InMemoryStorage,
    NewJob,
    ObjectStoragePort,
    StorageError,
)
from casque.queues.async_queue import AsyncQueue
from casque.rules.state import WRITER_MEMORY_US
from casque.stores.document.store import DocumentStore
from casque.testing import FakeClock
from casque.testing.faults import PORT_FAULTS, Fault, FaultyStorage
from tests.conformance.harnesses import DocumentHarness


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        await test

    asyncio.run(main())


async def three_jobs(q: AsyncQueue) -> list[int]:
    """Run three jobs from enqueue to ack, with every kind of write; returns their tokens."""
    for name in "abc":
        first = await q.enqueue("mine", name.encode(), id=name)
        assert not first.duplicate
    tokens: list[int] = []
    done: list[str] = []
    [job] = await q.dequeue("mine")
    tokens.append(job.token)
    await q.heartbeat(job)
    await q.nack(job, error="once")
    while len(done) < 3:
        jobs = await q.dequeue("mine", batch_size=2)
        assert jobs, f"a job is lost; done: {done}"
        for job in jobs:
            tokens.append(job.token)
            await q.ack(job)
            done.append(job.id)
    assert sorted(done) == ["a", "b", "c"]
    return tokens


def sweep(fault: Fault, kind: type[AsyncQueue]) -> int:
    """Run with the first request failing, then the second …; returns the number of runs."""

    async def one(nth: int) -> bool:
        harness = DocumentHarness(None)
        rival = DirectQueue(harness.open())
        rival_jobs = count()

        async def competitor() -> None:
            await rival.enqueue("theirs", id=f"theirs-{next(rival_jobs)}")
            [claimed] = await rival.dequeue("theirs")
            await rival.ack(claimed)

        storage = FaultyStorage(harness._port, fault, nth, competitor)
        async with kind(DocumentStore(storage, harness.clock)) as q:
            try:
                tokens = await three_jobs(q)
            except StorageError as error:
                if error.outcome_unknown:
                    raise
                # Only a failed read can end a call, and then nothing was written: repeat it.
                tokens = await three_jobs_again(q)
        assert tokens == sorted(set(tokens))
        assert not harness.raw().jobs
        return storage.fired

    for nth in count(1):
        if not asyncio.run(one(nth)):
            return nth
    raise AssertionError


async def three_jobs_again(q: AsyncQueue) -> list[int]:
    """Do what a caller does after an error with a known outcome: repeat it, by id."""
    for name in "abc":
        state = await q.get(name)
        if state is not None and state.status == "in_progress":
            await q.release(name)
    while jobs := await q.dequeue("mine", batch_size=3):
        for job in jobs:
            await q.ack(job)
    return await three_jobs(q)


@pytest.mark.parametrize("fault", PORT_FAULTS)
@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
def test_one_fault_at_any_request_neither_loses_nor_doubles_a_job(
    fault: Fault, kind: type[AsyncQueue]
) -> None:
    assert sweep(fault, kind) > 10  # the sweep covered the requests of a whole run


def test_a_lost_reply_is_resolved_by_the_writers_row_and_answered_as_decided() -> None:
    async def test() -> None:
        harness = DocumentHarness(None)
        await DirectQueue(harness.open()).enqueue("e", id="job")
        storage = FaultyStorage(harness._port, Fault.LOSE_REPLY, 2)
        q = DirectQueue(DocumentStore(storage, harness.clock))
        [job] = await q.dequeue()
        assert storage.fired
        assert (job.id, job.attempts) == ("job", 1)
        assert harness.raw().token == job.token
        await q.ack(job)
        assert not harness.raw().jobs

    run(test())


def test_a_lost_reply_is_not_a_conflict_even_when_none_is_allowed() -> None:
    async def test() -> None:
        harness = DocumentHarness(None)
        storage = FaultyStorage(harness._port, Fault.LOSE_REPLY, 2)
        q = DirectQueue(DocumentStore(storage, harness.clock), max_retries=0)
        job = await q.enqueue("e", id="job")
        assert storage.fired
        assert not job.duplicate

    run(test())


def test_a_storage_that_stays_silent_gives_an_unknown_outcome_within_the_deadline() -> None:
    class Silent:
        """A storage that stores a write and then never answers again."""

        def __init__(self, storage: ObjectStoragePort) -> None:
            self._storage = storage
            self.is_silent = False

        async def read(self) -> tuple[bytes, str | None]:
            if self.is_silent:
                raise TimeoutError("no answer")
            return await self._storage.read()

        async def write(self, content: bytes, if_match: str | None = None) -> str:
            await self._storage.write(content, if_match)
            self.is_silent = True
            raise TimeoutError("no answer")

    async def test() -> None:
        harness = DocumentHarness(None)
        storage = Silent(harness._port)
        q = DirectQueue(DocumentStore(storage, harness.clock))
        with pytest.raises(StorageError, match="outcome unknown") as failure:
            await q.enqueue("e", id="job")
        assert failure.value.outcome_unknown
        assert isinstance(failure.value.cause, TimeoutError)
        with pytest.raises(StorageError) as failure:
            await q.get("job")
        assert not failure.value.outcome_unknown
        storage.is_silent = False
        found = await q.get("job")
        assert found is not None

    run(test())


def test_a_row_that_may_have_been_dropped_makes_the_outcome_unknown() -> None:
    async def test() -> None:
        harness = DocumentHarness(None)
        rival = DirectQueue(harness.open())
        storage = FaultyStorage(harness._port, Fault.LOSE_REPLY, 2)

        class Sleeper:
            """The process sleeps for half an hour between its lost write and its next read."""

            async def read(self) -> tuple[bytes, str | None]:
                if storage.fired:
                    harness.clock.advance(timedelta(microseconds=2 * WRITER_MEMORY_US))
                    await rival.enqueue("e", id="later")
                return await storage.read()

            async def write(self, content: bytes, if_match: str | None = None) -> str:
                return await storage.write(content, if_match)

        q = DirectQueue(DocumentStore(Sleeper(), harness.clock))
        with pytest.raises(StorageError, match="outcome unknown"):
            await q.enqueue("e", id="job")
        assert set(harness.raw().jobs) == {"job", "later"}

    run(test())


def test_conflicts_are_bounded_when_asked() -> None:
    class Contended:
        """Another writer is always first."""

        async def read(self) -> tuple[bytes, str | None]:
            return b"", None

        async def write(self, content: bytes, if_match: str | None = None) -> str:
            raise CASConflictError("another writer was first")

    async def test() -> None:
        clock = FakeClock()
        q = DirectQueue(DocumentStore(Contended(), clock), max_retries=3)
        with pytest.raises(CASConflictError, match="4 times"):
            await q.enqueue("e")
        patient = DirectQueue(DocumentStore(Contended(), clock))
        with pytest.raises(StorageError, match="for 30 s") as failure:
            await patient.enqueue("e")
        assert not failure.value.outcome_unknown

    run(test())


def test_first_writers_of_a_new_object_do_not_overwrite_each_other() -> None:
    async def test() -> None:
        storage = InMemoryStorage()
        queues = [DirectQueue(DocumentStore(storage, FakeClock(seed=n))) for n in range(20)]
        await asyncio.gather(*(q.enqueue("e", id=str(n)) for n, q in enumerate(queues)))
        state = await queues[0].read_state()
        assert {job.id for job in state.jobs} == {str(n) for n in range(20)}

    run(test())


def test_a_large_document_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        q = DirectQueue(DocumentStore(InMemoryStorage(), FakeClock()))
        await q.enqueue_many([NewJob("e")] * 5_001)
        await q.enqueue("e")

    run(test())
    warnings = [record for record in caplog.records if "small queues" in record.message]
    assert len(warnings) == 1
    assert "5001" in warnings[0].message
