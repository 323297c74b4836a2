"""`nack(backoff=…)`: the wait depends on the number of the attempt. On every kind of queue."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from casque import Backoff, BrokerQueue, DirectQueue, InvalidError, Job, LeaseLostError, Queue
from casque.stores.url import open_store
from casque.testing import FakeClock

SECOND = timedelta(seconds=1)
BACKOFF = Backoff(base=SECOND, factor=3, jitter=0)
HOUR = timedelta(hours=1)


def _wait(job: Job) -> timedelta:
    assert job.history
    return job.run_at - job.history[-1].ended_at


@pytest.mark.parametrize("by_id", [False, True])
def test_a_queue_waits_longer_after_each_attempt(by_id: bool) -> None:
    clock = FakeClock()
    with Queue(open_store("memory://", clock=clock)) as q:
        q.enqueue("e", id="x", max_attempts=4)
        for expected in (1, 3, 9):
            [job] = q.dequeue()
            job = q.nack("x" if by_id else job, backoff=BACKOFF, error="no luck")
            assert (job.status, _wait(job)) == ("queued", expected * SECOND)
            clock.advance(HOUR)
        [job] = q.dequeue()
        assert q.nack(job, backoff=BACKOFF).status == "dead"


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
def test_an_async_queue_does_the_same(kind: Any) -> None:
    async def run() -> None:
        clock = FakeClock()
        async with kind(open_store("memory://", clock=clock)) as q:
            await q.enqueue("e")
            for expected in (1, 3):
                [job] = await q.dequeue()
                assert _wait(await q.nack(job, backoff=BACKOFF)) == expected * SECOND
                clock.advance(HOUR)

    asyncio.run(run())


def test_the_random_part_comes_from_the_clock_of_the_store() -> None:
    waits = []
    for _ in range(2):
        with Queue(open_store("memory://", clock=FakeClock(seed=7))) as q:
            q.enqueue("e")
            [job] = q.dequeue()
            waits.append(_wait(q.nack(job, backoff=Backoff(base=8 * SECOND, jitter=0.5))))
    assert waits[0] == waits[1]
    assert 4 * SECOND <= waits[0] < 8 * SECOND


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backoff": BACKOFF, "delay": SECOND}, "not both"),
        ({"backoff": SECOND}, "must be a Backoff, not timedelta"),
        ({"backoff": 2.0}, "must be a Backoff, not float"),
    ],
)
def test_a_wrong_backoff_changes_nothing(options: dict[str, Any], says: str) -> None:
    with Queue("memory://") as q:
        q.enqueue("e")
        [job] = q.dequeue()
        with pytest.raises(InvalidError, match=says):
            q.nack(job, **options)
        q.ack(job)


def test_an_id_that_this_queue_does_not_hold_is_refused() -> None:
    with Queue("memory://") as q:
        q.enqueue("e", id="x")
        with pytest.raises(LeaseLostError):
            q.nack("x", backoff=BACKOFF)
