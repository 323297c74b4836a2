"""Acks in SQL have the same effect as the rules, one by one or many at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casque import Job, JobNotFoundError, JobStatus, LeaseLostError
from casque.job import Failure
from casque.rules.operations import Ack, Batch, Completed, Enqueue, Heartbeat, Nack
from casque.rules.transitions import HISTORY_LIMIT, completed
from casque.stores.sqlite.store import SqliteStore
from casque.system import local_disk
from casque.system.clock import drive
from casque.testing import FakeClock
from tests.buckets.forks import quick_folder
from tests.sqlite.waiting import closed_behind
from tests.sqlite.working import DAY_US, SECOND, Both, Worker, acks_of, request

ODD = 'a "quoted" \\ name,\n[0] \x00 é \U0001f41d'
FAILURE = Failure("Error", ODD, f"Traceback:\n{ODD}")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def worker(path: Path, clock: FakeClock) -> Iterator[Worker]:
    store = SqliteStore(path, clock=clock)
    with closed_behind(store):
        yield Worker(store, "one")


def got(worker: Worker, job_id: str) -> Job:
    job = drive(worker.store.get(job_id))
    assert job is not None
    return job


@pytest.mark.parametrize("attempts", [1, 2, 9, 10, 11, 12, 13])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("ids", [{}, {"id": "named"}])
def test_a_retained_job_is_the_same_as_by_the_rules(
    worker: Worker, clock: FakeClock, attempts: int, count: int, ids: dict[str, str]
) -> None:
    wanted = {"payload": ODD.encode(), "timeout_us": 5, "delay_us": 7} | ids
    wanted |= {"header_pairs": ((ODD, ODD),)}
    some = [request(clock, retain_us=DAY_US, priority=1, **wanted)]
    sizes = (0, 8_192, 8_193)
    some += [request(clock, retain_us=DAY_US + n, payload=bytes(sizes[n])) for n in range(1, count)]
    worker.commit(Enqueue(tuple(some), 0))
    held: Sequence[Job] = ()
    for _ in range(attempts):
        if held:
            worker.commit(*(Nack(job.id, job.token, 0, FAILURE) for job in held))
        clock.advance(SECOND)
        held = worker.work([], count, worker=ODD)
        assert len(held) == count
        clock.advance(SECOND)
    holds = tuple((job.id, job.token) for job in held)
    worker.commit(Heartbeat(holds, None, 0.5, ODD, b"\xff\x00"))
    clock.advance(SECOND)
    before = [got(worker, job.id) for job in held]
    results = [(b"\x00\xff", None, b"")[n] for n in range(count)]
    acks = [Ack(job.id, job.token, res) for job, res in zip(held, results, strict=True)]
    assert worker.commit(*acks) == [None] * count
    now = clock.now()
    for job, result in zip(before, results, strict=True):
        assert job.error == (None if attempts == 1 else f"Error: {ODD}")
        assert job.retain_us is not None
        after = got(worker, job.id)
        event = Completed(job.id, result, now + job.retain_us, len(job.payload) <= 8_192)
        assert after == completed(job, event, now)
        assert len(after.history) == min(attempts, HISTORY_LIMIT)


def test_the_row_of_a_retained_job_is_like_any_finished_one(
    worker: Worker, clock: FakeClock, path: Path
) -> None:
    worker.commit(Enqueue(tuple(request(clock, retain_us=DAY_US) for _ in range(3)), 0))
    one, two, three = worker.work([], 3)
    worker.commit(*acks_of([one, two], b"r"))
    child = request(clock, entrypoint="f")
    worker.commit(Ack(three.id, three.token, b"r", (child,), 9))  # by the rules
    rows = "SELECT * FROM casque_job WHERE stage = 4 ORDER BY seq"
    with closing(sqlite3.connect(path)) as connection:
        cursor = connection.execute(rows)
        names = [column[0] for column in cursor.description]
        found = [dict(zip(names, row, strict=True)) for row in cursor]
        assert connection.execute("SELECT entrypoint FROM casque_line").fetchall() == [("f",)]
    for row in found:
        # The rules also write values for which NULL stands.
        row["run_us"] = row["run_us"] or row["created_us"]
        for unlike in ("seq", "id", "token"):
            del row[unlike]
    assert len(found) == 3
    assert found[0] == found[1] == found[2]


def test_acks_before_and_after_one_that_adds_jobs_keep_their_order(
    worker: Worker, clock: FakeClock
) -> None:
    worker.commit(Enqueue(tuple(request(clock, id=name) for name in "abc"), 0))
    a, b, c = worker.work([], 3)
    assert [a.id, b.id, c.id] == ["a", "b", "c"]
    again = request(clock, id="a")
    # The id of `a` is free after its ack, and taken again after the ack of `b`.
    adding = Ack(b.id, b.token, None, (again,), 9)
    *right, refused, last = worker.commit(*acks_of([a]), adding, *acks_of([a, c]))
    assert (right, last) == ([None, None], None)
    assert isinstance(refused, LeaseLostError)
    assert got(worker, "a").status is JobStatus.QUEUED
    assert got(worker, "a").depth == 1


def test_each_wrong_ack_of_many_is_refused_alone(
    worker: Worker, clock: FakeClock, path: Path
) -> None:
    jobs = [request(clock, retain_us=DAY_US if n % 2 else None) for n in range(8)]
    named = request(clock, id="named", retain_us=DAY_US)
    worker.commit(Enqueue((*jobs, named, request(clock, delay_us=DAY_US)), 0))
    held = worker.work([], 9)
    other = held[7].id[:-1] + ("0" if held[7].id[-1] != "0" else "1")
    right = acks_of([*held[:4], held[8]])
    wrong = [
        Ack(held[4].id, held[5].token),
        Ack(held[5].id, held[4].token),
        Ack(held[6].id, 0),
        Ack(other, held[7].token),
        Ack("nobody", 1),
    ]
    outcomes = worker.commit(*wrong, *right, *right)
    assert [type(one) for one in outcomes[:5]] == [
        *[LeaseLostError] * 3,
        *[JobNotFoundError] * 2,
    ]
    assert outcomes[5:10] == [None] * 5
    over = [JobNotFoundError if n % 2 == 0 else LeaseLostError for n in range(4)]
    assert [type(one) for one in outcomes[10:]] == [*over, LeaseLostError]
    refused, *rest = worker.commit(*acks_of([held[8], *held[4:8]]))
    assert isinstance(refused, LeaseLostError)
    assert rest == [None] * 4


def test_the_right_one_of_two_acks_of_a_job_counts(worker: Worker, clock: FakeClock) -> None:
    worker.commit(Enqueue((request(clock), request(clock)), 0))
    one, two = worker.work([], 2)
    wrong, right, also = worker.commit(Ack(one.id, two.token), *acks_of([one, two]))
    assert isinstance(wrong, LeaseLostError)
    assert (right, also) == (None, None)


# -- side by side with the rules ---------------------------------------------------

KEPT = st.sampled_from([None, 0, DAY_US])
ADDS = st.tuples(
    st.just("add"), st.sampled_from("eeef"), st.integers(1, 6), KEPT, st.sampled_from([0, 0, 0, 1])
)
WORKS = st.tuples(
    st.just("work"),
    st.integers(0, 4),
    st.sampled_from([1, 2, 3, 5]),
    st.sampled_from([None, ("e",), ("e", "f"), ("f",)]),
    st.sampled_from(["", "", "", "", "twice", "wrong", "adds"]),
)
BACK = st.tuples(st.sampled_from(["nack", "release"]))
WAITS = st.tuples(st.just("wait"), st.sampled_from([1, 20, 60]))
STEPS = st.lists(st.one_of(WORKS, WORKS, WORKS, WORKS, ADDS, BACK, WAITS), max_size=25)


@settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(st.tuples(st.sampled_from([0, 0, 0, 1]), STEPS), min_size=1, max_size=4))
def tell(stories: list[tuple[int, list[Any]]]) -> None:
    clock = FakeClock()
    with quick_folder() as folder, ExitStack() as stack:
        both = Both(folder, clock, stack, durability="normal")
        for who, steps in stories:
            both.add(who, "e", 6, DAY_US, 0)
            for _ in range(3):
                both.work(who, 1, 1, None, "")
            for kind, *options in steps:
                if kind == "wait":
                    clock.advance(options[0] * SECOND)
                    both.compare()
                elif kind in ("nack", "release"):
                    both.back(who, kind)
                else:
                    getattr(both, kind)(who, *options)


def test_a_worker_gets_the_same_answers_as_by_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {True: 0, False: 0}
    commit_fast = SqliteStore._commit_fast

    def counted(self: SqliteStore, batch: Batch) -> Any:
        done = commit_fast(self, batch)
        if len(batch.operations) > 1:
            ways[done is not None] += 1
        return done

    monkeypatch.setattr(local_disk, "_mounts", lambda: iter(()))  # do not read it each time
    monkeypatch.setattr(SqliteStore, "_commit_fast", counted)
    tell()
    assert min(ways.values()) > 100, "otherwise one path was compared with itself"
