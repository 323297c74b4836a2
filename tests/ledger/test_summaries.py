"""Summaries: each entry has the counts after it, so `stats` needs no jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from casque import NewJob, Queue
from casque.buckets.memory import MemoryBucket
from casque.stores.ledger.ledger_bucket import Upkeep
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US, drive
from casque.testing.fakeclock import FakeClock


def knows_no_jobs(store: LedgerStore) -> bool:
    replica = store._reader.replica
    return replica is not None and replica.is_blind


CALLS: dict[str, Callable[[Queue], Any]] = {
    "enqueue": lambda q: q.enqueue("e"),
    "enqueue later": lambda q: q.enqueue("e", delay=timedelta(seconds=60)),
    "claim": lambda q: q.dequeue(batch_size=3),
    "ack": lambda q: q.ack(q.dequeue()[0]),
    "nack": lambda q: q.nack(q.dequeue()[0]),
    "fail": lambda q: q.fail(q.dequeue()[0]),
    "purge": lambda q: (q.fail(q.dequeue()[0]), q.purge(older_than=timedelta(0))),
}


@pytest.mark.parametrize("name", CALLS)
def test_counts_are_read_without_the_jobs(name: str) -> None:
    clock = FakeClock()
    bucket = MemoryBucket(clock)
    with Queue(LedgerStore(bucket, clock)) as q:
        q.enqueue_many([NewJob("e") for _ in range(5)])
        CALLS[name](q)
        q.queues()  # reads the jobs
        expected = q.stats()
        assert expected.total
    store = LedgerStore(bucket, clock)
    with Queue(store) as q:
        assert q.stats() == expected
        assert knows_no_jobs(store)
        q.enqueue("e", delay=timedelta(seconds=30))  # a producer counts on
        assert q.stats().scheduled == expected.scheduled + 1
        assert knows_no_jobs(store)


@pytest.mark.parametrize("seconds", [59, 61])
def test_counts_that_time_has_changed_are_not_believed(seconds: int) -> None:
    clock = FakeClock()
    bucket = MemoryBucket(clock)
    with Queue(LedgerStore(bucket, clock)) as q:
        q.enqueue("e", delay=timedelta(seconds=60))
        q.enqueue("once", max_attempts=1)
        q.dequeue("once", lease=timedelta(seconds=60))
    clock.advance(timedelta(seconds=seconds))
    store = LedgerStore(bucket, clock)
    with Queue(store) as q:
        stats = q.stats()
        is_over = seconds > 60
        assert (stats.scheduled, stats.pending) == ((0, 1) if is_over else (1, 0))
        assert (stats.processing, stats.dead) == ((0, 1) if is_over else (1, 0))
        assert knows_no_jobs(store) is not is_over


def test_counts_are_read_after_a_snapshot_that_replaced_every_entry() -> None:
    bucket = MemoryBucket()
    store = LedgerStore(bucket, upkeep=Upkeep(SECOND_US, SECOND_US // 5, snapshot_entries=3))
    with Queue(store) as q:
        q.queues()
        for _ in range(3):
            q.enqueue("e")
        drive(store.close())
    assert any("/snapshot/" in one.key for one in drive(bucket.list()))
    store = LedgerStore(bucket)
    with Queue(store) as q:
        assert q.stats().pending == 3
        assert knows_no_jobs(store)
