"""The time of a ledger, and how long its writers hold back, when a process has slept."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from casque import Queue, StorageError
from casque.buckets.memory import MemoryBucket
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.bucket_time import BucketTime
from casque.stores.ledger.ledger_bucket import LedgerBucket
from casque.stores.ledger.pacing import Pacing
from casque.stores.ledger.replica import Replica
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US
from casque.testing import FakeClock

HOUR_US = 3600 * SECOND_US


def test_the_bucket_time_is_used_after_a_sleep_of_days() -> None:
    clock = FakeClock()
    time = BucketTime(clock)
    time.told(1_000 * SECOND_US, clock.monotonic())
    before = time.now()
    # Three days, in which this clock has gained 13 s on the bucket's.
    days = timedelta(days=3)
    clock.advance(days + timedelta(seconds=13))
    bucket = 1_000 * SECOND_US + days // timedelta(microseconds=1)
    time.told(bucket, clock.monotonic())
    assert before < time.now() == bucket
    assert time.behind_us() == 0


async def nothing_new(_: int) -> bool:
    return False


def test_a_round_trip_of_hours_makes_nobody_wait_for_hours() -> None:
    clock = FakeClock()
    requests = BucketRequests(LedgerBucket(MemoryBucket(clock)), clock)
    pacing, replica = Pacing(requests, BucketTime(clock)), Replica(blind=True)
    for number in range(1, 5):
        pacing.wrote("mine", number)
    replica._end = 4, None
    replica.writers.extend(["mine", "theirs"])
    requests.trip_us = 5 * HOUR_US  # it was stopped while it waited for an answer
    began = clock.monotonic()
    asyncio.run(pacing.wait(replica, None, nothing_new))
    assert 0 < clock.monotonic() - began <= 3 * SECOND_US


def test_a_process_writes_again_once_the_bucket_has_caught_up_with_the_log() -> None:
    clock = FakeClock()
    bucket = MemoryBucket(clock)
    q = Queue(LedgerStore(bucket, clock))
    q.enqueue("e")
    bucket._clock = clock.skewed(timedelta(minutes=-30))  # it was set back
    clock.advance(timedelta(minutes=11))  # so that the bucket is asked again
    with pytest.raises(StorageError, match="is dated"):
        q.enqueue("e")
    clock.advance(timedelta(minutes=15))
    with pytest.raises(StorageError, match="is dated"):
        q.enqueue("e")
    clock.advance(timedelta(minutes=5))
    assert q.enqueue("e").id
