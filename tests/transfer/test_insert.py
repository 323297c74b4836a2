"""`Insert` on every store: jobs arrive as they are, once, and tokens continue above them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from casque import CASConflictError, InvalidError, Job, JobStatus, Queue, Store
from casque.record import ABSENT, TRANSFER
from casque.rules.operations import Batch, Insert, Operation, PutRecord
from casque.system.clock import DAY_US, SystemClock
from casque.transfer.opened_store import OpenedStore
from tests.transfer.places import KINDS, jobs_in, place

NOW = SystemClock().now()
FAR = NOW + 400 * DAY_US


def job(id: str, **changes: object) -> Job:
    made = Job(id=id, entrypoint="send", payload=b"p", created_us=5, run_us=6, updated_us=7)
    return replace(made, **changes)


def finished(id: str, status: JobStatus, **changes: object) -> Job:
    times = {"finished_us": 8, "expires_us": NOW + DAY_US}
    return job(id, status=status, **(times | changes))


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | Store:
    return place(request.param, tmp_path)


def insert(store: str | Store, *jobs: Job, token: int = 0) -> list[bool]:
    with OpenedStore(store) as opened:
        [is_new] = opened.submit_all([Insert(jobs, token)])
    assert isinstance(is_new, list)
    return is_new


def test_jobs_arrive_as_they_are_and_in_their_order(store: str | Store) -> None:
    jobs = [
        job("b", queue="q", priority=-3, attempts=2, token=9, worker="w", error="no"),
        finished("a", JobStatus.COMPLETED, result=b"r", retain_us=5),
        finished("c", JobStatus.DEAD, depth=2, chain=("x",), header_pairs=(("k", "v"),)),
        finished("d", JobStatus.CANCELLED, timeout_us=3, progress=0.5, note="n", output=b"o"),
    ]
    assert insert(store, *jobs) == [True] * 4
    assert jobs_in(store) == jobs


def test_an_id_that_exists_is_not_added_again(store: str | Store) -> None:
    assert insert(store, job("a"), job("a", payload=b"other")) == [True, False]
    assert insert(store, job("b"), job("a", payload=b"third")) == [True, False]
    assert [(one.id, one.payload) for one in jobs_in(store)] == [("a", b"p"), ("b", b"p")]


def test_an_id_whose_record_has_expired_is_free(store: str | Store) -> None:
    assert insert(store, finished("a", JobStatus.DEAD, expires_us=NOW - 1)) == [True]
    assert insert(store, job("a")) == [True]
    assert jobs_in(store) == [job("a")]


def test_tokens_continue_above_the_token_and_those_of_the_jobs(store: str | Store) -> None:
    insert(store, job("a", token=FAR))
    with Queue(store) as queue:
        [claimed] = queue.dequeue("send")
        assert claimed.token > FAR
        queue.release(claimed)
    insert(store, token=FAR * 2)
    with Queue(store) as queue:
        [claimed] = queue.dequeue("send")
        assert claimed.token > FAR * 2


def test_a_job_in_progress_is_refused_and_nothing_is_added(store: str | Store) -> None:
    held = job("b", status=JobStatus.IN_PROGRESS, lease_until_us=9, heartbeat_us=8, worker="w")
    with pytest.raises(InvalidError, match="job b is in progress"):
        insert(store, job("a"), held)
    assert jobs_in(store) == []


def test_inserted_jobs_are_counted_claimed_and_retried(store: str | Store) -> None:
    insert(store, job("a"), job("b", run_us=FAR), finished("c", JobStatus.DEAD))
    with Queue(store) as queue:
        stats = queue.stats()
        assert (stats.pending, stats.scheduled, stats.dead) == (1, 1, 1)
        assert [one.id for one in queue.dequeue(batch_size=9)] == ["a"]
        queue.retry("c")
        assert [one.id for one in queue.dequeue(batch_size=9)] == ["c"]


def test_a_due_job_of_a_line_that_waits_is_claimable_at_once(store: str | Store) -> None:
    insert(store, job("later", run_us=FAR))
    with Queue(store) as queue:
        assert queue.dequeue() == []
        insert(store, job("now"))
        assert [one.id for one in queue.dequeue(batch_size=9)] == ["now"]


def test_an_insert_into_a_paused_queue_waits_for_its_resumption(store: str | Store) -> None:
    with Queue(store) as queue:
        queue.pause("default")
        insert(store, job("a"))
        assert queue.dequeue() == []
        queue.resume("default")
        assert len(queue.dequeue()) == 1


def test_an_insert_unless_a_record_exists_is_refused_with_its_batch(store: str | Store) -> None:
    def batch(id: str, mark: bytes) -> list[Operation]:
        return [Insert((job(id),), unless="0"), PutRecord(TRANSFER, "0", mark, ABSENT)]

    with OpenedStore(store) as opened:
        opened.submit_all(batch("a", b"1"))
        outcomes = opened.try_all(batch("b", b"2"))
        assert [type(one) for one in outcomes] == [CASConflictError] * 2
        assert [one.value for one in opened.records(TRANSFER)] == [b"1"]
    assert jobs_in(store) == [job("a")]


def test_a_repeated_remote_batch_gets_the_same_answer(store: str | Store) -> None:
    batch = Batch("w", 1, [Insert((job("a"), job("a"), job("b")))], is_remote=True)
    for _ in range(2):
        with OpenedStore(store) as opened:
            assert opened.run(opened.store.commit([batch])) == [[[True, False, True]]]
