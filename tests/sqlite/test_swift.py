"""The short ways of a single enqueue, claim and ack: fenced and fair as the long ones are.

Each of them is one statement with its conditions inside. Here one handle has
come to know its line and to have tokens in reserve, and then another changes
what it knows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import JobStatus, LeaseLostError, NewJob, Queue
from casque.stores.sqlite.rows import STATEMENTS
from casque.stores.sqlite.store import SqliteStore
from casque.testing import FakeClock
from tests.sqlite.waiting import closed_behind

LEASE = timedelta(milliseconds=50)
HOUR = timedelta(hours=1)


@contextmanager
def opened(path: Path, clock: FakeClock, lease: timedelta = HOUR) -> Iterator[Queue]:
    store = SqliteStore(path, clock=clock)
    with closed_behind(store), Queue(store, lease=lease) as q:
        yield q


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def a(tmp_path: Path, clock: FakeClock) -> Iterator[Queue]:
    with opened(tmp_path / "jobs.db", clock) as q:
        yield q


@pytest.fixture
def b(tmp_path: Path, clock: FakeClock) -> Iterator[Queue]:
    with opened(tmp_path / "jobs.db", clock) as q:
        yield q


def learn(q: Queue, jobs: int) -> None:
    """Leave so many jobs, in a line that `q` knows, with tokens for them in reserve."""
    q.enqueue_many([NewJob("e")] * (jobs + 3))
    for _ in range(3):
        q.ack(q.dequeue()[0])
    assert claims_swiftly(q)


def claims_swiftly(q: Queue) -> bool:
    """Whether a claim would go the short way, as far as its handle knows."""
    assert isinstance(q.store, SqliteStore)
    known = q.store._known
    return known is not None and known.first is not None and known.token < known.reserved


def test_a_stale_lease_cannot_ack_a_job_whose_id_was_minted(
    tmp_path: Path, clock: FakeClock
) -> None:
    path = tmp_path / "jobs.db"
    with opened(path, clock, LEASE) as a, opened(path, clock, LEASE) as b:
        for _ in range(4):
            a.enqueue("e")
        [first] = a.dequeue()
        clock.advance(LEASE)
        again = {job.id: job for job in b.dequeue(batch_size=4)}
        assert again[first.id].token > first.token
        a.enqueue("e")  # it knows its line again, and goes the short way
        with pytest.raises(LeaseLostError):
            a.ack(first)
        b.ack(again[first.id])
        tokens = [job.token for q in (a, b, a) for job in q.dequeue()]
        assert all(token > again[first.id].token for token in tokens)


def test_tokens_rise_from_claim_to_claim_whoever_has_some_in_reserve(a: Queue, b: Queue) -> None:
    learn(a, 60)
    learn(b, 60)
    tokens = [0]
    for q in (a, a, a, b, b, b, b, a, b, a, a, a, a, a, b, b, b, a):
        [job] = q.dequeue()
        tokens.append(job.token)
        if job.token % 3:
            q.ack(job)
    with a.lease_queue("other") as lease:
        assert lease is not None
        tokens.append(lease.token)
    tokens += [job.token for q in (b, a, a, a, a, b, b) for job in q.dequeue()]
    assert tokens == sorted(set(tokens))


def test_a_token_in_reserve_is_not_handed_out_again_after_the_process(
    tmp_path: Path, clock: FakeClock, a: Queue
) -> None:
    learn(a, 20)
    tokens = [a.dequeue()[0].token for _ in range(5)]
    for _ in range(3):
        with opened(tmp_path / "jobs.db", clock) as another:
            tokens += [another.dequeue()[0].token for _ in range(3)]
    assert tokens == sorted(set(tokens))


def test_claims_one_by_one_change_the_counters_now_and_then(tmp_path: Path, a: Queue) -> None:
    learn(a, 30)
    connection = sqlite3.connect(tmp_path / "jobs.db")
    counters = "SELECT * FROM casque_counter ORDER BY writer"
    before = connection.execute(counters).fetchall()
    tokens = [a.dequeue()[0].token for _ in range(20)]
    assert connection.execute(counters).fetchall() == before
    assert before[0][3] >= tokens[-1]
    connection.close()


def test_another_line_that_became_due_has_its_turn(a: Queue, b: Queue) -> None:
    learn(a, 9)
    b.enqueue("e", queue="other")
    assert claims_swiftly(a)
    assert {job.queue for _ in range(2) for job in a.dequeue()} == {"default", "other"}


def test_the_last_due_job_of_a_line_takes_the_line_along(a: Queue) -> None:
    learn(a, 2)
    a.enqueue("e", delay=HOUR)
    for _ in range(2):
        assert a.queues(due=True) == ["default"]
        assert a.dequeue()
    assert a.queues(due=True) == []


def test_a_queue_that_another_has_paused_gives_nothing(a: Queue, b: Queue) -> None:
    learn(a, 9)
    b.pause("default")
    assert claims_swiftly(a)
    assert a.dequeue() == []
    b.resume("default")
    assert a.dequeue()


def test_a_line_that_was_paused_comes_back_to_its_place(a: Queue, b: Queue) -> None:
    learn(a, 9)
    b.enqueue("e", queue="other")
    b.pause("other")
    assert claims_swiftly(a)
    assert {job.queue for _ in range(3) for job in a.dequeue()} == {"default"}
    b.resume("other")
    assert [job.queue for job in a.dequeue()] == ["other"]


@pytest.mark.parametrize("other", [NewJob("f"), NewJob("e", queue="other")])
def test_a_line_that_has_the_number_of_another_is_not_taken_for_it(
    a: Queue, b: Queue, other: NewJob
) -> None:
    learn(a, 3)
    b.drop("default")
    b.enqueue_many([other] * 3)
    assert claims_swiftly(a)
    assert a.dequeue("e", queue="default") == []
    assert [(job.queue, job.entrypoint) for job in a.dequeue()] == [(other.queue, other.entrypoint)]


def test_nor_does_it_get_the_others_jobs(a: Queue, b: Queue) -> None:
    for there, then in (("e", "f"), ("f", "e")):
        a.enqueue(there)
        b.drop("default")
        b.enqueue(then)
        a.enqueue(there)
        for entrypoint in (there, then):
            assert [job.entrypoint for job in a.dequeue(entrypoint)] == [entrypoint]
        b.drop("default")


def test_a_job_whose_holder_was_lost_is_taken_over_with_its_history(
    tmp_path: Path, clock: FakeClock
) -> None:
    with opened(tmp_path / "jobs.db", clock, LEASE) as a:
        a.enqueue_many([NewJob("e", priority=-1), NewJob("e", priority=-1, max_attempts=1)])
        lost, spent = a.dequeue(batch_size=2)
        learn(a, 9)
        clock.advance(LEASE)
        assert claims_swiftly(a)
        [again] = a.dequeue()
        assert (again.id, again.attempts, len(again.history)) == (lost.id, 2, 1)
        a.dequeue()
        buried = a.get(spent.id)
        assert buried is not None
        assert buried.status is JobStatus.DEAD


def test_a_better_job_that_is_not_due_yet_waits(a: Queue, clock: FakeClock) -> None:
    learn(a, 9)
    later = a.enqueue("e", priority=-1, delay=HOUR)
    assert claims_swiftly(a)
    assert later.id not in {job.id for _ in range(3) for job in a.dequeue()}
    clock.advance(HOUR)
    assert [job.id for job in a.dequeue()] == [later.id]


def test_a_job_added_to_a_line_that_waits_for_another_is_due_at_once(a: Queue, b: Queue) -> None:
    a.enqueue("e", delay=HOUR)
    now = a.enqueue("e")
    for q in (b, a):
        assert [job.id for job in q.peek()] == [now.id]
    assert [job.id for job in b.dequeue()] == [now.id]
    also_now = a.enqueue("e")
    assert [job.id for job in b.dequeue()] == [also_now.id]


class Doubtful:
    """A connection whose next claim by the short way is said to have failed."""

    def __init__(self, connection: sqlite3.Connection, *, lands: bool) -> None:
        self._connection = connection
        self._lands = lands
        self.failed = 0

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        if sql == STATEMENTS["claim_swiftly"] and not self.failed:
            self.failed += 1
            if self._lands:
                self._connection.execute(sql, parameters).fetchall()
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(sql, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("lands", [True, False])
def test_a_claim_that_is_said_to_have_failed_is_made_once(a: Queue, lands: bool) -> None:
    learn(a, 9)
    assert isinstance(a.store, SqliteStore)
    connection = a.store._writer.opened
    assert connection is not None
    a.store._writer.opened = doubtful = Doubtful(connection, lands=lands)  # type: ignore[assignment]
    [job] = a.dequeue()
    assert doubtful.failed
    a.store._writer.opened = connection
    assert a.get(job.id) == job
    assert a.stats().processing == 1
    [other] = a.dequeue()
    assert other.token > job.token
    a.ack_many([job, other])


def test_an_ack_after_the_lease_was_over_takes_the_line_along(
    tmp_path: Path, clock: FakeClock
) -> None:
    with opened(tmp_path / "jobs.db", clock, LEASE) as a:
        a.enqueue("e")
        a.enqueue("e", delay=HOUR)
        [job] = a.dequeue()
        clock.advance(LEASE)
        assert a.queues(due=True) == ["default"]
        a.ack(job)
        assert a.queues(due=True) == []
