"""Ids: given by the caller, minted, and given ones that look minted.

A minted id contains the key of its row; any other id is found by name. Both lead
to the same job.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import InvalidError, Job, JobNotFoundError, JobStatus, NewJob, Queue
from casque.rules.operations import Enqueue, Request
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import drive
from casque.system.ids import order_of
from casque.testing import FakeClock
from casque.testing.batches import commit_batch

HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> SqliteStore:
    return SqliteStore(tmp_path / "jobs.db", clock=clock)


@pytest.fixture
def q(store: SqliteStore) -> Iterator[Queue]:
    with Queue(store) as queue:
        yield queue
    drive(store.close())


def ids(q: Queue) -> list[str]:
    return [job.id for job in q.read_state().jobs]


def orders(store: SqliteStore) -> dict[str, int]:
    """By id, the key of the job's row."""
    with closing(sqlite3.connect(store.name)) as connection:
        return dict(connection.execute("SELECT id, seq FROM casque_job"))


def whole_life(q: Queue, job_id: str) -> None:
    """Do everything by id on a job that exists and is not claimed; it ends cancelled."""
    assert q.get(job_id) is not None
    assert q.enqueue("e", b"other", id=job_id).duplicate
    [job] = q.dequeue(id=job_id)
    assert job.id == job_id
    q.heartbeat(job_id, note="at it")
    assert q.release(job_id).status is JobStatus.QUEUED
    [job] = q.dequeue(id=job_id)
    assert q.nack(job, error="no").status is JobStatus.QUEUED
    assert q.cancel(job_id).status is JobStatus.CANCELLED
    assert q.enqueue("e", id=job_id).duplicate  # while its record is kept
    with pytest.raises(InvalidError):
        q.enqueue("e", id=job_id, queue="another")


def claim_and_ack(q: Queue, job_id: str) -> None:
    [job] = q.dequeue(id=job_id)
    q.ack(job)
    assert q.get(job_id) is None
    with pytest.raises(JobNotFoundError):
        q.cancel(job_id)


# -- minted ids ----------------------------------------------------------------


def test_a_minted_id_contains_the_key_of_its_row(store: SqliteStore, q: Queue) -> None:
    jobs = [q.enqueue("e"), *q.enqueue_many([NewJob("e")] * 10), q.enqueue("e")]
    assert orders(store) == {job.id: order_of(job.id) for job in jobs}
    assert [job.seq for job in jobs] == sorted(job.seq for job in jobs)


def test_a_minted_id_works_like_a_given_one(q: Queue) -> None:
    whole_life(q, q.enqueue("e").id)
    whole_life(q, q.enqueue("e", id="given").id)
    claim_and_ack(q, q.enqueue("e").id)
    claim_and_ack(q, q.enqueue("e", id="given again").id)


def test_a_minted_id_is_a_duplicate_when_it_is_given(q: Queue) -> None:
    first = q.enqueue("e", b"first")
    again = q.enqueue("e", b"second", id=first.id)
    assert again.duplicate
    assert (again.id, again.payload, again.seq) == (first.id, b"first", first.seq)
    [a, b, c] = q.enqueue_many([NewJob("e", id="a"), NewJob("e", id=first.id), NewJob("e")])
    assert (a.duplicate, b.duplicate, c.duplicate) == (False, True, False)
    with pytest.raises(InvalidError, match=first.id):
        q.enqueue("e", id=first.id, queue="another")
    assert ids(q) == [first.id, "a", c.id]


def test_a_minted_id_can_be_given_again_once_its_job_is_gone(store: SqliteStore, q: Queue) -> None:
    first = q.enqueue("e", b"first")
    claim_and_ack(q, first.id)
    again = q.enqueue("e", b"second", id=first.id)
    assert not again.duplicate
    assert q.enqueue("e", id=first.id).duplicate
    found = q.get(first.id)
    assert found is not None
    assert found.payload == b"second"
    claim_and_ack(q, first.id)
    assert orders(store) == {}


def test_the_same_id_in_capitals_is_another(q: Queue) -> None:
    first = q.enqueue("e", b"first")
    capital = first.id.upper()
    assert capital != first.id
    assert q.get(capital) is None
    with pytest.raises(JobNotFoundError):
        q.cancel(capital)
    other = q.enqueue("e", b"second", id=capital)
    assert not other.duplicate
    for job_id, payload in ((first.id, b"first"), (capital, b"second")):
        found = q.get(job_id)
        assert found is not None
        assert found.payload == payload
    claim_and_ack(q, capital)
    assert ids(q) == [first.id]
    claim_and_ack(q, first.id)


# -- ids that look minted ------------------------------------------------------

LOOKALIKES = {
    "a UUIDv7": "01890a5d-ac96-774b-bcce-b302099a8057",
    "the same in capitals": "01890A5D-AC96-774B-BCCE-B302099A8057",
    "a UUIDv4": "f47ac10b-58cc-4372-a567-0e02b2c3d479",
    "another variant": "01890a5d-ac96-774b-3cce-b302099a8057",
    "the largest": "ffffffff-ffff-7fff-bfff-ffffffffffff",
    "the smallest": "00000000-0000-7000-8000-000000000000",
    "other separators": "01890a5d_ac96_774b_bcce-b302099a8057",
    "a letter too far": "01890a5g-ac96-774b-bcce-b302099a8057",
    "blanks": "      5d-ac96-774b-bcce-b302099a8057",
    "a sign": "+1890a5d-ac96-774b-bcce-b302099a8057",
    "underscores": "0_890a5d-ac96-774b-bcce-b302099a8057",
    "a minus": "-1890a5d-ac96-774b-bcce-b302099a8057",
    "digits of another script": "\u0660\u0661890a5d-ac96-774b-bcce-b302099a8057",
    "braces": "{01890a5d-ac96-774b-bcce-b302099a80}",
    "36 other characters": "an id that happens to be so long 36!",
    "a number": "1",
    "a row's key": str(2**62),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_an_id_that_looks_minted_works_like_any_other(q: Queue, name: str) -> None:
    given = LOOKALIKES[name]
    others = [q.enqueue("e").id, q.enqueue("e", id=FakeClock(seed=7).new_id()).id]
    job = q.enqueue("e", b"data", id=given)
    assert (job.id, job.duplicate) == (given, False)
    assert ids(q) == [*others, given]
    whole_life(q, given)
    purged = q.purge(older_than=timedelta(0))
    assert purged == 1
    assert not q.enqueue("e", id=given).duplicate
    claim_and_ack(q, given)
    assert ids(q) == others


def test_an_id_of_the_same_order_as_another_job_is_not_mistaken_for_it(q: Queue) -> None:
    there = q.enqueue("e", b"there")
    # The same order and another tail, as another process might mint it.
    neighbour = there.id[:-1] + ("0" if there.id[-1] != "0" else "1")
    assert order_of(neighbour) == order_of(there.id)
    assert q.get(neighbour) is None
    with pytest.raises(JobNotFoundError):
        q.ack(neighbour)
    with pytest.raises(JobNotFoundError):
        q.cancel(neighbour)
    assert not q.enqueue("e", b"given", id=neighbour).duplicate
    whole_life(q, neighbour)
    found = q.get(there.id)
    assert found is not None
    assert found.payload == b"there"
    claim_and_ack(q, there.id)


# -- two processes that mint ids of the same order -----------------------------


def request(job_id: str, order: int, **options: Any) -> Request:
    """A request of one of the processes."""
    usual: dict[str, Any] = {"queue": "default", "entrypoint": "e", "payload": job_id.encode()}
    usual |= {"priority": 0, "max_attempts": 3, "minted": True}
    return Request(id=job_id, order=order, **{**usual, **options})


def commit(store: SqliteStore, *jobs: Request) -> list[Job]:
    """Commit each request with its own writer, as separate processes do."""
    writer = store.clock.new_id()
    [added] = drive(commit_batch(store, writer, 1, [Enqueue(jobs, 16)]))
    assert isinstance(added, list)
    return added


def colliding(clock: FakeClock, count: int) -> list[tuple[str, int]]:
    """Ids that differ only below their order."""
    made = clock.new_id()
    order = order_of(made)
    assert order is not None
    return [(f"{made[:-4]}{tail:04x}", order) for tail in range(count)]


@pytest.mark.parametrize("together", [True, False])
def test_ids_of_the_same_order_are_different_jobs(
    store: SqliteStore, q: Queue, clock: FakeClock, together: bool
) -> None:
    q.enqueue("e", id="warm")  # so that the line exists and is cached
    made = colliding(clock, 4)
    requests = [request(*one) for one in made]
    added = commit(store, *requests) if together else [commit(store, one)[0] for one in requests]
    assert [job.id for job in added] == [job_id for job_id, _ in made]
    assert not any(job.duplicate for job in added)
    assert len(set(orders(store).values())) == 5
    for job_id, _ in made:
        found = q.get(job_id)
        assert found is not None
        assert (found.id, found.payload) == (job_id, job_id.encode())
    (a, _), (b, _), (c, _), (d, _) = made
    whole_life(q, a)
    whole_life(q, b)
    claim_and_ack(q, c)
    claim_and_ack(q, d)
    assert q.purge(older_than=timedelta(0)) == 2
    assert ids(q) == ["warm"]


def test_the_same_minted_id_twice_is_a_duplicate_even_if_its_order_is_taken(
    store: SqliteStore, q: Queue, clock: FakeClock
) -> None:
    made = colliding(clock, 2)
    for one in made:
        assert not commit(store, request(*one))[0].duplicate
    for job_id, order in made:
        [again] = commit(store, request(job_id, order, payload=b"other"))
        assert again.duplicate
        assert again.payload == job_id.encode()
        assert q.enqueue("e", id=job_id).duplicate
    assert all(job.duplicate for job in commit(store, *(request(*made[1]) for _ in range(2))))
    assert ids(q) == [job_id for job_id, _ in made]


def test_one_batch_with_an_id_twice_adds_it_once(
    store: SqliteStore, q: Queue, clock: FakeClock
) -> None:
    [(job_id, order), (other, _)] = colliding(clock, 2)
    twice = [request(job_id, order), request(job_id, order), request(other, order)]
    added = commit(store, *twice)
    assert [job.duplicate for job in added] == [False, True, False]
    assert sorted(ids(q)) == [job_id, other]


def test_jobs_whose_order_was_taken_keep_their_enqueue_order(
    store: SqliteStore, q: Queue, clock: FakeClock
) -> None:
    made = colliding(clock, 5)
    for one in made:
        commit(store, request(*one))
        clock.advance(timedelta(milliseconds=1))
    assert [job.id for job in q.dequeue(batch_size=5)] == [job_id for job_id, _ in made]


# -- over and over -------------------------------------------------------------


@pytest.mark.parametrize("given", [True, False])
def test_an_id_can_be_used_again_any_number_of_times(
    store: SqliteStore, q: Queue, clock: FakeClock, given: bool
) -> None:
    job_id = "round" if given else q.enqueue("e", retain=HOUR).id
    for turn in range(5):
        job = q.enqueue("e", b"%d" % turn, id=job_id, retain=HOUR)
        assert job.duplicate == (not given and turn == 0)
        [claimed] = q.dequeue()
        assert claimed.id == job_id
        q.ack(claimed, result=b"%d" % turn)
        kept = q.get(job_id)
        assert kept is not None
        assert (kept.status, kept.result) == (JobStatus.COMPLETED, b"%d" % turn)
        assert q.enqueue("e", b"too soon", id=job_id).duplicate
        clock.advance(HOUR)
        assert q.get(job_id) is None
    assert not q.enqueue("e", id=job_id).duplicate
    assert ids(q) == [job_id]


def test_a_dead_job_with_a_minted_id_is_retried_by_it(q: Queue) -> None:
    made = q.enqueue("e", max_attempts=1)
    for _ in range(3):
        [job] = q.dequeue()
        assert q.nack(job, error="no").status is JobStatus.DEAD
        assert q.retry(made.id).status is JobStatus.QUEUED
    claim_and_ack(q, made.id)
