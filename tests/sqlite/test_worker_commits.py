"""The usual commit of a busy worker: acks, and a claim of as many more jobs.

It takes the fast path of fast_path.py in the simple case, and the slow path, with
the same outcome, in all others. Each test is about one condition of the fast path.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from casque import Job, JobNotFoundError, JobStatus, LeaseLostError, NewJob, Queue
from casque.record import ABSENT
from casque.rules.operations import Ack, Nack, PutRecord, Request
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import span_us
from casque.testing import FakeClock
from tests.sqlite.waiting import closed_behind
from tests.sqlite.working import LEASE, Worker, acks_of, ask_for

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def q(path: Path, clock: FakeClock) -> Iterator[Queue]:
    """A queue object with another handle."""
    store = SqliteStore(path, clock=clock)
    with closed_behind(store), Queue(store, lease=LEASE) as opened:
        yield opened


@pytest.fixture
def worker(path: Path, clock: FakeClock) -> Iterator[Worker]:
    store = SqliteStore(path, clock=clock)
    with closed_behind(store):
        yield Worker(store, "one")


def busy(worker: Worker, q: Queue, jobs: Sequence[NewJob]) -> list[Job]:
    """Give the worker a cached line, tokens in reserve and three held jobs, before `jobs`."""
    q.enqueue_many([*[NewJob("e", retain=DAY)] * 9, *jobs])
    held: list[Job] = []
    for _ in range(3):
        held = worker.work(held, 3)
    assert len(held) == 3
    return held


@contextmanager
def only_fast_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def no(*_: Any) -> NoReturn:
        raise AssertionError("it took the slow path")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "_commit", no)
        yield


@contextmanager
def only_slow_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    taken = 0

    def counted(self: SqliteStore, *args: Any) -> Any:
        nonlocal taken
        taken += 1
        return commit(self, *args)

    commit = SqliteStore._commit
    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "_commit", counted)
        yield
    assert taken == 1


def writer_of(worker: Worker) -> Any:
    assert isinstance(worker.store, SqliteStore)
    return worker.store._writer


def opened(worker: Worker) -> sqlite3.Connection:
    connection = writer_of(worker).opened
    assert isinstance(connection, sqlite3.Connection)
    return connection


def lines(path: Path) -> dict[str, int | None]:
    """By line, the time until which it waits; None: it is in the ring."""
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT entrypoint, visit_us FROM casque_line"))


def settle_in(worker: Worker) -> None:
    """After time has passed, run the periodic upkeep, so that the next commit can be fast."""
    worker.commit(PutRecord("note", f"{worker.number}", b"", ABSENT))


def hasten(path: Path, entrypoint: str) -> None:
    """Put a line into the ring before it is due, as a process with a fast clock does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "UPDATE casque_line SET visit_us = NULL WHERE entrypoint = ?", (entrypoint,)
        )


def test_retained_and_other_jobs_take_the_fast_path(
    worker: Worker, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [NewJob("e", retain=DAY), NewJob("e", max_attempts=1), NewJob("e", retain=timedelta(0))]
    held = busy(worker, q, some * 9)
    waiting = [job.id for job in q.peek(limit=50)]
    claimed = []
    with only_fast_path(monkeypatch):
        for _ in range(6):
            held = worker.work(held, 3, result=b"\x00\xff")
            claimed += held
    assert [job.id for job in claimed] == waiting[:18]
    tokens = [job.token for job in claimed]
    assert tokens == sorted(set(tokens))
    assert q.stats().completed == 9 + 5
    assert q.stats().total == 9 + 27 - 10
    for job in claimed[:15]:
        found = q.get(job.id)
        if job.retain:
            assert found is not None
            assert (found.status, found.result) == (JobStatus.COMPLETED, b"\x00\xff")
        else:
            assert found is None


def test_the_fast_path_takes_few_statements_and_writes_only_jobs(
    worker: Worker, q: Queue, path: Path
) -> None:
    held = busy(worker, q, [NewJob("e", retain=DAY)] * 99)
    held = worker.work(held, 10)
    held = worker.work(held, 10)
    connection = opened(worker)
    others = "SELECT * FROM casque_line JOIN casque_counter ORDER BY writer"
    with closing(sqlite3.connect(path)) as looking:
        before = looking.execute(others).fetchall()
        said: list[str] = []
        connection.set_trace_callback(said.append)
        worker.work(held, 10)
        connection.set_trace_callback(None)
        assert looking.execute(others).fetchall() == before
    assert len([one for one in said if "history = json_insert" in one]) == 10
    # BEGIN, data version, held jobs, next jobs, the claim, COMMIT.
    assert len(said) == 10 + 6, said


def test_one_ack_of_a_retained_job_takes_the_fast_path(
    worker: Worker, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = busy(worker, q, [NewJob("e", retain=DAY)] * 9)
    with only_fast_path(monkeypatch):
        assert worker.commit(Ack(held[0].id, held[0].token, b"1")) == [None]
        assert worker.work(held[1:2], 1)
    found = q.get(held[0].id)
    assert found is not None
    assert found.result == b"1"


def test_jobs_with_given_ids_take_the_fast_path(
    worker: Worker, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [NewJob("e", id=f"name {n}", retain=DAY if n % 2 else None) for n in range(30)]
    held = busy(worker, q, [one for name in named for one in (name, NewJob("e"))])
    with only_fast_path(monkeypatch):
        for _ in range(9):
            held = worker.work(held, 4, result=b"r")
    done = [q.get(f"name {n}") for n in range(16)]
    assert [one is not None and one.result == b"r" for one in done] == [False, True] * 8


def test_a_better_job_that_is_held_does_not_prevent_the_fast_path(
    worker: Worker, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = busy(worker, q, [])
    q.enqueue_many([NewJob("e", priority=n // 5 - 2) for n in range(20)])
    held = worker.work(held, 3)
    with only_fast_path(monkeypatch):
        for _ in range(4):
            waiting = [job.id for job in q.peek(limit=2)]
            more = worker.work(held[:2], 2)
            assert [job.id for job in more] == waiting
            held = [*held[2:], *more]


def test_jobs_that_acks_add_are_added(worker: Worker, q: Queue) -> None:
    one, two, _ = busy(worker, q, [NewJob("e")] * 5)
    [new], [order] = worker.store.clock.mint(1)
    next_one = Request(new, "default", "g", b"", 0, 5, order=order, minted=True)
    adding = Ack(one.id, one.token, None, (next_one,), 5)
    *acks, leased = worker.commit(adding, *acks_of([two]), ask_for(2))
    assert acks == [None, None]
    assert len(leased.jobs) == 2
    added = q.get(new)
    assert added is not None
    assert added.depth == 1


def test_an_ack_that_comes_twice_is_refused_the_second_time(worker: Worker, q: Queue) -> None:
    one, two, _ = busy(worker, q, [NewJob("e")] * 5)
    first, second, third, leased = worker.commit(*acks_of([one, two, one]), ask_for(2))
    assert (first, second) == (None, None)
    assert isinstance(third, LeaseLostError)
    assert len(leased.jobs) == 2


def test_an_ack_without_a_token_is_refused(worker: Worker, q: Queue) -> None:
    one, two, _ = busy(worker, q, [NewJob("e")] * 5)
    refused, right, leased = worker.commit(Ack(one.id, 0), *acks_of([two]), ask_for(2))
    assert isinstance(refused, LeaseLostError)
    assert right is None
    assert len(leased.jobs) == 2
    assert q.stats().processing == 4


def test_an_ack_with_the_token_of_another_job_is_refused(worker: Worker, q: Queue) -> None:
    one, two, three = busy(worker, q, [NewJob("e")] * 5)
    swapped = [Ack(one.id, two.token), Ack(two.id, one.token)]
    *refused, right, leased = worker.commit(*swapped, *acks_of([three]), ask_for(2))
    assert [type(error) for error in refused] == [LeaseLostError] * 2
    assert right is None
    assert len(leased.jobs) == 2


def test_an_ack_of_a_finished_job_is_refused_and_the_rest_is_done(worker: Worker, q: Queue) -> None:
    one, two, three = busy(worker, q, [NewJob("e")] * 5)
    worker.commit(*acks_of([two]))
    right, refused, also, leased = worker.commit(*acks_of([one, two, three]), ask_for(2))
    assert (right, also) == (None, None)
    assert isinstance(refused, LeaseLostError)
    assert len(leased.jobs) == 2


def test_another_id_of_the_same_order_is_not_taken_for_the_job(worker: Worker, q: Queue) -> None:
    one, two, _ = busy(worker, q, [NewJob("e")] * 5)
    other = one.id[:-1] + ("0" if one.id[-1] != "0" else "1")
    refused, right, leased = worker.commit(
        Ack(other, one.token), Ack(two.id, two.token), ask_for(1)
    )
    assert isinstance(refused, JobNotFoundError)
    assert right is None
    assert len(leased.jobs) == 1
    assert worker.commit(*acks_of([one])) == [None]


def test_a_line_that_another_has_added_has_its_turn(worker: Worker, q: Queue) -> None:
    held = busy(worker, q, [NewJob("e")] * 9)
    q.enqueue("f", priority=-1)
    assert {job.entrypoint for job in worker.work(held, 2)} == {"e", "f"}


def test_a_job_that_another_has_taken_over_is_lost(
    worker: Worker, q: Queue, clock: FakeClock
) -> None:
    one, two, _ = busy(worker, q, [NewJob("e")] * 9)
    clock.advance(LEASE)
    [over] = q.dequeue(id=one.id)
    right, refused, leased = worker.commit(*acks_of([two, one]), ask_for(2))
    assert right is None
    assert isinstance(refused, LeaseLostError)
    assert all(job.token > over.token for job in leased.jobs)
    assert q.get(one.id) == over


def test_a_queue_that_another_has_paused_gives_nothing(worker: Worker, q: Queue) -> None:
    held = busy(worker, q, [NewJob("e")] * 9)
    q.pause("default")
    assert worker.work(held, 2) == []
    q.resume("default")
    assert len(worker.work([], 2)) == 2


def test_an_ack_after_the_lease_ended_moves_the_line(
    worker: Worker, q: Queue, path: Path, clock: FakeClock
) -> None:
    held = busy(worker, q, [])
    worker.commit(Nack(held[2].id, held[2].token, span_us(HOUR)))
    hasten(path, "e")
    worker.commit(*acks_of(held[:1]))
    clock.advance(LEASE)
    settle_in(worker)
    assert q.queues(due=True) == ["default"]
    assert worker.commit(*acks_of(held[1:2])) == [None]
    assert q.queues(due=True) == []
    assert lines(path) == {"e": clock.now() + span_us(HOUR - LEASE)}


def test_an_ack_of_the_first_job_to_become_due_moves_the_line(
    worker: Worker, q: Queue, path: Path, clock: FakeClock
) -> None:
    held = busy(worker, q, [NewJob("e")] * 3)
    clock.advance(timedelta(seconds=1))
    last = worker.work([], 3)
    assert lines(path) == {"e": clock.now() + span_us(LEASE) - 1_000_000}
    assert worker.commit(*acks_of([last[0], *held])) == [None] * 4
    assert lines(path) == {"e": clock.now() + span_us(LEASE)}
    assert worker.commit(*acks_of(last[1:])) == [None] * 2
    assert lines(path) == {}


def test_acks_of_the_last_jobs_of_an_early_line_delete_it(
    worker: Worker, q: Queue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = busy(worker, q, [NewJob("e")] * 2)
    held += worker.work([], 2)
    hasten(path, "e")
    assert worker.commit(*acks_of(held[:1])) == [None]
    with only_fast_path(monkeypatch):
        assert worker.commit(*acks_of(held[1:3])) == [None] * 2
    with only_slow_path(monkeypatch):
        assert worker.commit(*acks_of(held[3:])) == [None] * 2
    assert lines(path) == {}


def test_acks_of_the_last_jobs_of_a_line_not_claimed_from_delete_it(
    worker: Worker, q: Queue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = busy(worker, q, [NewJob("e")] * 9)
    q.enqueue_many([NewJob("f")] * 4)
    others = worker.work([], 4, entrypoints=("f",))
    hasten(path, "f")
    for _ in range(2):
        worker.work([held.pop(), others.pop()], 1, entrypoints=("e",))
    with only_fast_path(monkeypatch):
        worker.work([held.pop(), others.pop()], 1, entrypoints=("e",))
    assert set(lines(path)) == {"e", "f"}
    with only_slow_path(monkeypatch):
        worker.work(others, 1, entrypoints=("e",))
    assert set(lines(path)) == {"e"}


def test_lines_that_are_not_cached_are_read(
    worker: Worker, q: Queue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = busy(worker, q, [NewJob("e")] * 9)
    worker.commit(PutRecord("pause", "other", b"", ABSENT))
    with only_slow_path(monkeypatch):
        assert worker.commit(*acks_of(held[:2])) == [None] * 2


@pytest.mark.parametrize(
    "ask",
    [
        {"entrypoints": ("f",)},
        {"entrypoints": ("e",), "queue": "other"},
        {"id": "no such job"},
    ],
)
def test_only_jobs_that_match_the_dequeue_are_claimed(
    worker: Worker, q: Queue, ask: dict[str, Any]
) -> None:
    held = busy(worker, q, [NewJob("e")] * 9)
    assert worker.work(held, 3, **ask) == []
    assert q.stats().completed == 9
    assert q.stats().processing == 0


def test_a_line_that_comes_due_has_its_turn(worker: Worker, q: Queue, clock: FakeClock) -> None:
    soon = timedelta(seconds=5)
    held = busy(worker, q, [*[NewJob("e")] * 20, NewJob("f", priority=-1, delay=soon)])
    held = worker.work(held, 1)
    clock.advance(soon)
    settle_in(worker)
    assert {job.entrypoint for job in worker.work(held, 3)} == {"e", "f"}


def test_a_claim_of_all_due_jobs_makes_the_line_wait(
    worker: Worker, q: Queue, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for left in (2, 3):
        held = busy(worker, q, [NewJob("e")] * left)
        with only_slow_path(monkeypatch):
            held = worker.work(held, 3)
        assert len(held) == left
        assert q.queues(due=True) == []
        assert lines(path) == {"e": clock.now() + span_us(LEASE)}
        assert worker.work(held, 3) == []
        assert lines(path) == {}


def test_after_an_empty_claim_new_jobs_are_found(worker: Worker, q: Queue) -> None:
    held = busy(worker, q, [NewJob("e")])
    [one] = worker.work([], 3)
    assert worker.work([], 3) == []
    assert worker.work([one], 3) == []
    q.enqueue_many([NewJob("e")] * 5)
    assert len(worker.work(held, 3)) == 3


def test_jobs_whose_holder_was_lost_are_taken_over(
    worker: Worker, q: Queue, clock: FakeClock
) -> None:
    q.enqueue_many([NewJob("e", priority=-1), NewJob("e", priority=-1, max_attempts=1)])
    lost, spent = q.dequeue(batch_size=2)
    clock.advance(LEASE / 2)
    held = busy(worker, q, [NewJob("e")] * 9)
    clock.advance(LEASE / 2)
    over = worker.work(held, 2)
    assert over[0].id == lost.id
    assert [(job.attempts, len(job.history)) for job in over] == [(2, 1), (1, 0)]
    buried = q.get(spent.id)
    assert buried is not None
    assert buried.status is JobStatus.DEAD


def test_tokens_still_rise_when_the_reserved_ones_run_out(worker: Worker, q: Queue) -> None:
    held = busy(worker, q, [NewJob("e")] * 1_300)
    tokens = [job.token for job in held]
    for limit in (3, 5, 400, 7, 500, 300):
        held = worker.work(held, limit)
        assert len(held) == limit
        tokens += [job.token for job in held]
    assert tokens == sorted(set(tokens))


def test_a_repeated_commit_gets_the_same_answer(worker: Worker, q: Queue) -> None:
    held = busy(worker, q, [NewJob("e")] * 9)
    told = worker.commit(*acks_of(held), ask_for(2))
    worker.number -= 1
    assert worker.commit(*acks_of(held), ask_for(2)) == told
    assert q.stats().processing == 2
    told = worker.commit(ask_for(2))
    worker.number -= 1
    assert worker.commit(ask_for(2)) == told
    assert q.stats().processing == 4


def test_the_slow_path_continues_in_the_same_transaction(
    worker: Worker, q: Queue, clock: FakeClock
) -> None:
    held = busy(worker, q, [NewJob("e")] * 9)
    connection = opened(worker)
    said: list[str] = []
    connection.set_trace_callback(said.append)
    q.enqueue("f")
    assert len(worker.work(held[:1], 1)) == 1
    assert len(worker.work([], 50)) == 9
    worker.commit(*acks_of(held[1:2] * 2))
    connection.set_trace_callback(None)
    assert said.count("BEGIN IMMEDIATE") == 3
    assert said.count("ROLLBACK") == 0
    assert not connection.in_transaction


class Doubtful:
    """A connection whose next COMMIT reports an error."""

    def __init__(self, connection: sqlite3.Connection, *, lands: bool) -> None:
        self._connection = connection
        self._lands = lands
        self.failed = 0

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        if sql == "COMMIT" and not self.failed:
            self.failed += 1
            if self._lands:
                self._connection.execute(sql)
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(sql, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_that_reported_an_error_is_done_once(
    worker: Worker, q: Queue, lands: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = busy(worker, q, [NewJob("e")] * 9)
    connection = opened(worker)
    doubtful = Doubtful(connection, lands=lands)
    with monkeypatch.context() as patched:
        patched.setattr(writer_of(worker), "opened", doubtful)
        jobs = worker.work(held, count)
    assert doubtful.failed
    assert [q.get(job.id) for job in jobs] == jobs
    assert len(jobs) == count
    assert q.stats().processing == count
    assert q.stats().completed == 9
    worker.work(jobs, 1)
