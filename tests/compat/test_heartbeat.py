"""HeartbeatManager of jqueue: beats while a block runs, and ends silently."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from casque.compat.jqueue import (
    BrokerQueue,
    CASConflictError,
    DirectQueue,
    HeartbeatManager,
    InMemoryStorage,
    JobNotFoundError,
    JQueueError,
    LeaseLostError,
    StorageError,
)

SOON = timedelta(milliseconds=1)
LONG = timedelta(hours=1)
DEADLINE = 30


class Recorder:
    """A queue that records heartbeats, answers with `answers` in turn, and then succeeds."""

    def __init__(self, *answers: Exception | None) -> None:
        self.beats: list[str] = []
        self._answers = list(answers)
        self._beaten = asyncio.Condition()

    async def heartbeat(self, job_id: str) -> None:
        async with self._beaten:
            self.beats.append(job_id)
            self._beaten.notify_all()
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            raise answer

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE), self._beaten:
            await self._beaten.wait_for(lambda: len(self.beats) >= count)


async def ended(manager: HeartbeatManager) -> None:
    assert manager._task is not None
    await asyncio.wait([manager._task], timeout=DEADLINE)
    assert manager._task.done()


def test_it_beats_for_its_job_until_the_block_ends() -> None:
    async def test() -> None:
        queue = Recorder()
        manager = HeartbeatManager(queue=queue, job_id="one", interval=SOON)
        for _ in range(2):  # and it may be entered again
            before = len(queue.beats)
            async with manager as entered:
                assert entered is manager
                await queue.wait_for(before + 3)
            assert manager._task is None
        assert set(queue.beats) == {"one"}
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(test())


def test_the_interval_is_a_minute_unless_given() -> None:
    async def test() -> None:
        assert HeartbeatManager(Recorder(), "one").interval == timedelta(minutes=1)

    asyncio.run(test())


@pytest.mark.parametrize(
    "error", [JobNotFoundError("one"), LeaseLostError("one"), JQueueError("any")]
)
def test_it_ends_silently_when_the_job_is_gone_or_lost(error: JQueueError) -> None:
    async def test() -> None:
        queue = Recorder(None, error)
        async with HeartbeatManager(queue, "one", SOON) as manager:
            await ended(manager)
        assert len(queue.beats) == 2

    asyncio.run(test())


def test_it_goes_on_when_only_the_storage_failed() -> None:
    async def test() -> None:
        queue = Recorder(StorageError("away", OSError()), CASConflictError("busy"))
        async with HeartbeatManager(queue, "one", SOON):
            await queue.wait_for(5)

    asyncio.run(test())


def test_any_other_error_is_raised_at_the_end_unless_the_block_raised() -> None:
    async def test() -> None:
        with pytest.raises(RuntimeError, match="a bug"):
            async with HeartbeatManager(Recorder(RuntimeError("a bug")), "one", SOON) as manager:
                await ended(manager)
        with pytest.raises(ValueError, match="of the block"):
            await raise_in_a_block(HeartbeatManager(Recorder(RuntimeError("a bug")), "one", SOON))

    async def raise_in_a_block(manager: HeartbeatManager) -> None:
        async with manager:
            await ended(manager)
            raise ValueError("of the block")

    asyncio.run(test())


def test_a_block_that_raises_or_is_cancelled_ends_the_beats() -> None:
    async def test() -> None:
        manager = HeartbeatManager(Recorder(), "one", LONG)
        with pytest.raises(ValueError, match="of the block"):
            async with manager:
                raise ValueError("of the block")
        assert manager._task is None

        async def block() -> None:
            async with manager:
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        ready = asyncio.Event()
        asyncio.get_running_loop().call_soon(ready.set)
        await ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert manager._task is None

    asyncio.run(test())


def test_it_keeps_a_job_of_a_real_queue_and_ends_when_the_block_acks_it() -> None:
    async def test() -> None:
        async with BrokerQueue(InMemoryStorage()) as q:
            await q.enqueue("mail", b"1")
            [job] = await q.dequeue()
            assert job.heartbeat_at is not None
            async with HeartbeatManager(q, job.id, SOON) as manager, asyncio.timeout(DEADLINE):
                while True:
                    found = (await q.read_state()).find(job.id)
                    assert found is not None
                    assert found.heartbeat_at is not None
                    if found.heartbeat_at > job.heartbeat_at:
                        break
                    await asyncio.to_thread(int)  # let the beats run
                await q.ack(job.id)
                await ended(manager)

    asyncio.run(test())


def test_a_lost_job_is_reported_by_the_ack() -> None:
    async def test() -> None:
        storage = InMemoryStorage()
        mine, others = DirectQueue(storage), DirectQueue(storage)
        await mine.enqueue("mail", b"1")
        [job] = await mine.dequeue()
        async with HeartbeatManager(mine, job.id, SOON) as manager:
            assert await others.requeue_stale(timedelta(0)) == 1
            await others.dequeue()
            await ended(manager)
        for call in (mine.ack, mine.nack, mine.heartbeat, mine.ack):
            with pytest.raises(LeaseLostError):
                await call(job.id)
        await others.ack(job.id)

    asyncio.run(test())
