"""The cached first jobs of lines: after any change to them, the handle reads them again.

Several lines are due, so each claim merges them, from the cached jobs that the claim
before it left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from casque import NewJob, Queue
from casque.stores.sqlite.store import SqliteStore
from casque.testing import FakeClock

LINES = ("e", "f")
HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def q(tmp_path: Path, clock: FakeClock) -> Iterator[Queue]:
    """A queue whose handle has cached the first jobs of both lines, from `e-2` and `f-2` on."""
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    with closing(Queue(store, lease=HOUR)) as q:
        q.enqueue_many(
            [NewJob(name, id=f"{name}-{place}") for place in range(20) for name in LINES]
        )
        assert [claimed(q) for _ in range(4)] == ["e-0", "f-0", "e-1", "f-1"]
        assert store._cache is not None
        assert all(line.front for line in store._cache.ring or ())
        yield q
        q._run(store.close())


def claimed(q: Queue) -> str:
    [job] = q.dequeue(LINES)
    return job.id


def test_a_better_job_goes_first(q: Queue) -> None:
    better = q.enqueue("e", priority=-1)
    assert [claimed(q) for _ in range(2)] == [better.id, "e-2"]


def test_several_better_jobs_added_at_once_go_first(q: Queue) -> None:
    better = q.enqueue_many([NewJob("f", priority=-1)] * 2)
    assert [claimed(q) for _ in range(3)] == [better[0].id, better[1].id, "e-2"]


def test_a_cancelled_job_is_not_claimed(q: Queue) -> None:
    q.cancel("e-2")
    assert [claimed(q) for _ in range(2)] == ["f-2", "e-3"]


def test_a_job_claimed_by_its_id_is_not_claimed_again(q: Queue) -> None:
    [held] = q.dequeue(id="e-2")
    assert [claimed(q) for _ in range(2)] == ["f-2", "e-3"]
    q.release(held, delay=timedelta(0))
    assert [claimed(q) for _ in range(2)] == ["e-2", "f-3"]


def test_a_job_claimed_by_another_process_is_not_claimed_again(
    q: Queue, tmp_path: Path, clock: FakeClock
) -> None:
    with closing(Queue(SqliteStore(tmp_path / "jobs.db", clock=clock))) as other:
        assert claimed(other) == "e-2"
        assert [claimed(q) for _ in range(2)] == ["f-2", "e-3"]
        other._run(other.store.close())


def test_lost_jobs_of_a_better_priority_go_first(q: Queue, clock: FakeClock) -> None:
    better = q.enqueue("e", priority=-1)
    assert [claimed(q) for _ in range(2)] == [better.id, "e-2"]
    clock.advance(HOUR)
    assert claimed(q) == better.id
