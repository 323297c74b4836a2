"""How the writers of one ledger let each other in, however slow some of them are."""

from __future__ import annotations

from datetime import timedelta
from statistics import median
from typing import Any

import pytest

from casque.buckets.memory import MemoryBucket
from casque.buckets.port import ABSENT, Found, Version
from casque.errors import StorageError
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.bucket_time import BucketTime
from casque.stores.ledger.ledger_bucket import LedgerBucket
from casque.stores.ledger.pacing import WAITING, Pacing, is_word
from casque.system.clock import Stopwatch, drive
from casque.testing import FakeClock
from tests.simulation.contest import FAST, SLOW, Contest, TwoWaiters

OTHER = f"{WAITING}018cc251-f400-7123-8abc-0123456789ab-500000"


def test_a_slow_process_commits_in_time_beside_fast_ones() -> None:
    contest = Contest(*[FAST] * 4, SLOW)
    contest.run_for(45)
    slow = contest.all[-1]
    assert not slow.errors
    assert median(slow.calls) <= 5
    assert max(slow.calls) <= 15


def test_two_slow_processes_are_both_let_in() -> None:
    TwoWaiters(seed=0).run()


class Waiter:
    """The pacing of a process that always loses."""

    def __init__(self, bucket: MemoryBucket, clock: FakeClock) -> None:
        self.bucket, self.clock = bucket, clock
        time = BucketTime(clock)
        time.told(clock.now(), clock.monotonic())
        requests = BucketRequests(LedgerBucket(bucket), clock)
        requests.trip_us = 500_000
        self.pacing = Pacing(requests, time)
        self.losing = Stopwatch(clock)
        self.pacing._trips.append(500_000)

    def lose(self) -> None:
        """Lose one more race, five seconds later."""
        self.clock.advance(timedelta(seconds=5))
        self.pacing._losing = self.losing
        if (beside := self.pacing.beside(1)) is not None:
            drive(beside)

    def get_in(self) -> None:
        drive(self.pacing.got_in())

    def words(self) -> list[str]:
        return [one.key for one in drive(self.bucket.list(WAITING))]


@pytest.fixture
def waiter() -> Waiter:
    clock = FakeClock()
    return Waiter(MemoryBucket(clock), clock)


def test_a_process_that_got_in_deletes_only_its_own_word(waiter: Waiter) -> None:
    drive(waiter.bucket.put(OTHER, b"", expect=ABSENT))
    waiter.lose()
    assert len(waiter.words()) == 2
    assert all(map(is_word, waiter.words()))
    waiter.get_in()
    assert waiter.words() == [OTHER]


def test_a_word_that_was_refused_or_deleted_is_written_again(
    waiter: Waiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(*_: object, **__: object) -> Found:
        raise StorageError("slow down: 429", outcome_unknown=True)

    with monkeypatch.context() as patch:
        patch.setattr(waiter.bucket, "put", busy)
        waiter.lose()
    assert waiter.words() == []
    waiter.lose()
    [word] = waiter.words()
    drive(waiter.bucket.delete(word))
    for _ in range(4):
        waiter.lose()
    assert waiter.words() == [word]


def test_a_word_whose_answer_was_lost_is_still_deleted(
    waiter: Waiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = waiter.bucket.put

    async def unanswered(key: str, body: bytes, *, expect: Any) -> Version:
        await real(key, body, expect=expect)
        raise StorageError("no answer", outcome_unknown=True)

    monkeypatch.setattr(waiter.bucket, "put", unanswered)
    waiter.lose()
    assert len(waiter.words()) == 1
    waiter.get_in()
    assert waiter.words() == []


def test_a_word_is_written_again_after_a_failed_commit(waiter: Waiter) -> None:
    waiter.lose()
    waiter.clock.advance(timedelta(seconds=60))  # it gave up; then another commit loses as well
    for word in waiter.words():
        drive(waiter.bucket.delete(word))
    waiter.losing = Stopwatch(waiter.clock)
    waiter.lose()
    waiter.lose()
    assert len(waiter.words()) == 1


def test_a_stale_word_is_ignored_and_deleted(waiter: Waiter) -> None:
    drive(waiter.bucket.put(OTHER, b"", expect=ABSENT))
    assert found(waiter.pacing) is not None
    waiter.clock.advance(timedelta(seconds=60))
    assert found(waiter.pacing) is None
    assert waiter.words() == []


def test_a_word_keeps_its_place_when_it_is_rewritten(waiter: Waiter) -> None:
    first, second = OTHER, OTHER.replace("0", "1", 1)
    version = drive(waiter.bucket.put(first, b"", expect=ABSENT))
    waiter.clock.advance(timedelta(seconds=1))
    drive(waiter.bucket.put(second, b"", expect=ABSENT))
    guest = found(waiter.pacing)
    waiter.clock.advance(timedelta(seconds=1))
    drive(waiter.bucket.put(first, b"again", expect=version))
    assert found(waiter.pacing) == guest


def found(pacing: Pacing) -> object:
    """Return the guest that it would name after listing the words."""
    drive(pacing._look())
    return pacing.next_guest(pacing._time.now())
