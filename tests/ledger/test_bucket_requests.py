"""Requests that are sent in parallel, and the errors of those that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from casque import CorruptError, StorageError
from casque.buckets.memory import MemoryBucket
from casque.stores.ledger.bucket_requests import BucketRequests, reason
from casque.stores.ledger.ledger_bucket import LedgerBucket
from casque.stores.port import COMMIT_DEADLINE_US
from casque.system.clock import SECOND_US, Stopwatch, drive
from casque.testing import FakeClock


@pytest.mark.parametrize("blocking", [True, False])
def test_all_requests_end_before_an_error_is_raised(blocking: bool) -> None:
    bucket, answered = MemoryBucket(), list[int]()
    bucket.blocking = blocking
    requests = BucketRequests(LedgerBucket(bucket), FakeClock())

    async def request(number: int) -> int:
        answered.append(number)
        if number % 2:
            raise StorageError(f"request {number} failed")
        return number

    def ask(*numbers: int) -> Any:
        together = requests.together(*map(request, numbers))
        return drive(together) if blocking else asyncio.run(together)

    assert list(ask(0, 2, 4)) == answered == [0, 2, 4]
    with pytest.raises(StorageError, match="request 5 failed"):
        ask(5, 7, 6)
    assert answered[3:] == [5, 7, 6]


def test_a_pause_that_the_storage_asks_for_ends_with_the_time_of_the_call() -> None:
    clock = FakeClock()
    requests, watch = BucketRequests(LedgerBucket(MemoryBucket()), clock), Stopwatch(clock)

    def paused(status: str, seconds: int = 0) -> int:
        error, begun = StorageError(status), clock.monotonic()
        error.retry_after_us = seconds * SECOND_US
        drive(requests.pause(0, watch, error))
        return clock.monotonic() - begun

    assert paused("500") < SECOND_US
    assert paused("429", 7) == 7 * SECOND_US
    paused("429", 600)
    assert watch.elapsed_us() == COMMIT_DEADLINE_US
    assert requests.is_over(watch)


def test_a_reason_is_the_first_cause_without_advice_that_does_not_fit() -> None:
    lost = StorageError("s3://b/q: cannot read x: 500. Try again.")
    refused = StorageError("s3://b/q: cannot read x: 403. Allow it.", outcome_unknown=False)
    for first, says in (
        (lost, "s3://b/q: cannot read x: 500"),
        (refused, "s3://b/q: cannot read x: 403. Allow it"),
    ):
        wrapped = StorageError("No answer. Try again.", cause=first, outcome_unknown=False)
        assert reason(first) == reason(wrapped) == says
    assert reason(CorruptError("x is damaged. Restore it.")) == "x is damaged. Restore it"
