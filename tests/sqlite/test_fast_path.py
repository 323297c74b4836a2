"""The fast paths of enqueues, claims and acks: as fenced and fair as the slow path.

For one job it is a statement that contains its conditions; for several jobs, a
transaction that relies on the cache of its handle. In these tests one handle has its
line in the cache and tokens in reserve, and then another handle changes the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from casque import App, BrokerQueue, InvalidError, JobStatus, LeaseLostError, NewJob, Queue
from casque.rules.operations import Batch, Dequeue
from casque.stores.sqlite.rows import STATEMENTS
from casque.stores.sqlite.store import SqliteStore
from casque.stores.sqlite.transaction import CLAIMS_AT_ONCE
from casque.system.clock import drive, span_us
from casque.testing import FakeClock
from casque.testing.rig import inside
from tests.sqlite.waiting import closed_behind

LEASE = timedelta(milliseconds=50)
HOUR = timedelta(hours=1)

Learn = Callable[[Queue, int], None]


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
    """Leave `jobs` jobs, in a line that `q` has cached, with tokens for them in reserve."""
    q.enqueue_many([NewJob("e")] * (jobs + 3))
    for _ in range(3):
        q.ack(q.dequeue()[0])
    assert claims_fast(q)


def learn_to_leap(q: Queue, jobs: int) -> None:
    """As `learn`, with jobs of better priority ahead that are not due yet."""
    for priority in (-3, -2):
        q.enqueue_many([NewJob("e", priority=priority, delay=100 * HOUR)] * 2)
    learn(q, jobs)
    assert isinstance(q.store, SqliteStore)
    assert q.store._cache is not None
    assert q.store._cache.leaps


@pytest.fixture(params=[learn, learn_to_leap])
def learned(request: pytest.FixtureRequest) -> Learn:
    learned: Learn = request.param
    return learned


@contextmanager
def only_fast_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In this context, every commit must take the fast path."""

    def no(*_: Any) -> NoReturn:
        raise AssertionError("it did not take the fast path")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "_commit", no)
        yield


def claims_fast(q: Queue) -> bool:
    """True if a claim would take the fast path, according to the cache of its handle."""
    assert isinstance(q.store, SqliteStore)
    cache = q.store._cache
    return cache is not None and cache.ring is not None and cache.token < cache.reserved


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
        a.enqueue("e")  # its line is cached again, so it takes the fast path
        with pytest.raises(LeaseLostError):
            a.ack(first)
        b.ack(again[first.id])
        tokens = [job.token for q in (a, b, a) for job in q.dequeue()]
        assert all(token > again[first.id].token for token in tokens)


def test_tokens_rise_from_claim_to_claim_even_if_several_handles_reserve_some(
    a: Queue, b: Queue, learned: Learn
) -> None:
    learned(a, 60)
    learned(b, 60)
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


def test_a_reserved_token_is_not_issued_again_after_the_process_ends(
    tmp_path: Path, clock: FakeClock, a: Queue, learned: Learn
) -> None:
    learned(a, 20)
    tokens = [a.dequeue()[0].token for _ in range(5)]
    for _ in range(3):
        with opened(tmp_path / "jobs.db", clock) as another:
            tokens += [another.dequeue()[0].token for _ in range(3)]
    assert tokens == sorted(set(tokens))


def test_claims_one_by_one_rarely_write_the_counters(tmp_path: Path, a: Queue) -> None:
    learn(a, 30)
    connection = sqlite3.connect(tmp_path / "jobs.db")
    counters = "SELECT token, * FROM casque_counter ORDER BY writer"
    before = connection.execute(counters).fetchall()
    tokens = [a.dequeue()[0].token for _ in range(20)]
    assert connection.execute(counters).fetchall() == before
    assert before[0][0] >= tokens[-1]
    connection.close()


def test_another_line_that_became_due_has_its_turn(a: Queue, b: Queue, learned: Learn) -> None:
    learned(a, 9)
    b.enqueue("e", queue="other")
    assert claims_fast(a)
    assert {job.queue for _ in range(2) for job in a.dequeue()} == {"default", "other"}


def test_claiming_the_last_due_job_of_a_line_makes_the_line_wait(a: Queue, learned: Learn) -> None:
    learned(a, 2)
    a.enqueue("e", delay=HOUR)
    for _ in range(2):
        assert a.queues(due=True) == ["default"]
        assert a.dequeue()
    assert a.queues(due=True) == []


def test_a_queue_that_another_has_paused_gives_nothing(a: Queue, b: Queue, learned: Learn) -> None:
    learned(a, 9)
    b.pause("default")
    assert claims_fast(a)
    assert a.dequeue() == []
    b.resume("default")
    assert a.dequeue()


def test_a_line_that_was_paused_comes_back_to_its_place(a: Queue, b: Queue, learned: Learn) -> None:
    learned(a, 9)
    b.enqueue_many([NewJob("e", queue="other")] * 3)
    b.pause("other")
    assert claims_fast(a)
    assert {job.queue for _ in range(3) for job in a.dequeue()} == {"default"}
    b.resume("other")
    assert [job.queue for _ in range(4) for job in a.dequeue()] == ["default", "other"] * 2


@pytest.mark.parametrize("other", [NewJob("f"), NewJob("e", queue="other")])
def test_a_line_that_reuses_an_id_is_not_mistaken_for_the_old_one(
    a: Queue, b: Queue, other: NewJob, learned: Learn
) -> None:
    learned(a, 3)
    b.drop("default")
    b.enqueue_many([other] * 3)
    assert claims_fast(a)
    assert a.dequeue("e", queue="default") == []
    assert [(job.queue, job.entrypoint) for job in a.dequeue()] == [(other.queue, other.entrypoint)]


def test_a_line_that_reuses_an_id_does_not_get_jobs_of_the_old_one(a: Queue, b: Queue) -> None:
    for there, then in (("e", "f"), ("f", "e")):
        a.enqueue(there)
        b.drop("default")
        b.enqueue(then)
        a.enqueue(there)
        for entrypoint in (there, then):
            assert [job.entrypoint for job in a.dequeue(entrypoint)] == [entrypoint]
        b.drop("default")


def test_a_job_whose_holder_was_lost_is_taken_over_with_its_history(
    tmp_path: Path, clock: FakeClock, learned: Learn
) -> None:
    with opened(tmp_path / "jobs.db", clock, LEASE) as a:
        a.enqueue_many([NewJob("e", priority=-1), NewJob("e", priority=-1, max_attempts=1)])
        lost, spent = a.dequeue(batch_size=2)
        learned(a, 9)
        clock.advance(LEASE)
        assert claims_fast(a)
        [again] = a.dequeue()
        assert (again.id, again.attempts, len(again.history)) == (lost.id, 2, 1)
        a.dequeue()
        buried = a.get(spent.id)
        assert buried is not None
        assert buried.status is JobStatus.DEAD


def test_a_better_job_that_is_not_due_yet_waits(a: Queue, clock: FakeClock, learned: Learn) -> None:
    learned(a, 9)
    later = a.enqueue("e", priority=-1, delay=HOUR)
    assert claims_fast(a)
    assert later.id not in {job.id for _ in range(3) for job in a.dequeue()}
    clock.advance(HOUR)
    assert [job.id for job in a.dequeue()] == [later.id]


def test_the_fast_path_skips_better_jobs_that_are_not_due_yet(
    a: Queue, b: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn_to_leap(a, 20)
    waiting = [job.id for job in a.peek(limit=20)]
    assert len(waiting) == 20
    with only_fast_path(monkeypatch):
        claimed = [a.dequeue()[0] for _ in range(5)]
        for job in claimed:
            a.ack(job)
    assert [job.id for job in claimed] == waiting[:5]
    better = [b.enqueue("e", priority=priority) for priority in (-1, -9)]
    worse = b.enqueue("e", priority=1)
    assert claims_fast(a)
    claimed = [a.dequeue()[0] for _ in range(3)]
    assert [job.id for job in claimed] == [better[1].id, better[0].id, waiting[5]]
    a.ack_many(claimed)
    clock.advance(100 * HOUR)
    assert [a.dequeue()[0].priority for _ in range(5)] == [-3, -3, -2, -2, 0]
    rest = [a.dequeue()[0].id for _ in range(14)]
    assert worse.id == rest[-1]


def test_a_job_added_to_a_line_that_waits_for_another_is_due_at_once(a: Queue, b: Queue) -> None:
    a.enqueue("e", delay=HOUR)
    now = a.enqueue("e")
    for q in (b, a):
        assert [job.id for job in q.peek()] == [now.id]
    assert [job.id for job in b.dequeue()] == [now.id]
    also_now = a.enqueue("e")
    assert [job.id for job in b.dequeue()] == [also_now.id]


def test_a_job_of_a_task_takes_the_fast_path_with_all_task_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with App(tmp_path / "jobs.db") as app:

        @app.task(priority=3, max_attempts=5, timeout=HOUR, retain=2 * HOUR)
        def add(x: int, y: int = 0) -> int:
            return x + y

        add.enqueue(1)
        parent = add.enqueue(2).job()
        with only_fast_path(monkeypatch), inside(parent):
            handle = add.using(headers={"trace": "1"}).enqueue(3, y=4)
        stored = app.queue.get(handle.id)
        assert stored == handle._job
        assert stored is not None
        assert (stored.priority, stored.max_attempts) == (3, 5)
        assert (stored.timeout, stored.retain) == (HOUR, 2 * HOUR)
        assert (stored.depth, stored.chain, stored.headers) == (1, ("add",), {"trace": "1"})
        assert stored.payload == b'{"x":3,"y":4}'


def test_a_job_that_is_too_deep_is_refused_on_the_fast_path_too(tmp_path: Path) -> None:
    with Queue(tmp_path / "jobs.db", max_depth=1) as q:
        q.enqueue("e")
        parent = replace(q.enqueue("e"), depth=1)
        with inside(parent), pytest.raises(InvalidError, match="2 jobs deep"):
            q.enqueue("e")
        assert q.stats().total == 2


def test_several_jobs_are_claimed_and_acked_on_the_fast_path_in_order(
    a: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(a, 40)
    waiting = [job.id for job in a.peek(limit=50)]
    with only_fast_path(monkeypatch):
        first = a.dequeue(batch_size=10)
        second = a.dequeue(batch_size=3)
        a.ack_many(reversed(first))
        a.ack_many(second)
    assert [job.id for job in first + second] == waiting[:13]
    tokens = [job.token for job in first + second]
    assert tokens == sorted(set(tokens))
    assert a.stats().total == 27


def test_a_claim_of_more_jobs_than_there_are_takes_the_slow_path(a: Queue) -> None:
    learn(a, 5)
    assert len(a.dequeue(batch_size=9)) == 5
    assert a.queues(due=True) == []
    learn(a, 5)
    assert len(a.dequeue(batch_size=5)) == 5, "the last claim makes the line wait"
    assert a.queues(due=True) == []


def test_a_claim_of_several_ignores_the_cache_after_another_handle_wrote(
    a: Queue, b: Queue
) -> None:
    learn(a, 9)
    b.enqueue_many([NewJob("e", queue="other")] * 2)
    assert claims_fast(a)
    taken = a.dequeue(batch_size=4) + a.dequeue(batch_size=4)
    assert {job.queue for job in taken} == {"default", "other"}
    learn(a, 9)
    held = b.dequeue(batch_size=2)
    assert all(one.token > max(job.token for job in taken) for one in held)
    again = a.dequeue(batch_size=2)
    assert min(job.token for job in again) > max(job.token for job in held)


def test_several_lost_jobs_are_taken_over_with_their_history(
    tmp_path: Path, clock: FakeClock
) -> None:
    with opened(tmp_path / "jobs.db", clock, LEASE) as a:
        a.enqueue_many([NewJob("e", priority=-1)] * 2)
        held = a.dequeue(batch_size=2)
        learn(a, 9)
        clock.advance(LEASE)
        assert claims_fast(a)
        over = a.dequeue(batch_size=2)
        assert [job.id for job in over] == [job.id for job in held]
        assert [(job.attempts, len(job.history)) for job in over] == [(2, 1), (2, 1)]


def test_a_claim_of_several_leaves_a_better_job_that_is_not_due_yet(a: Queue) -> None:
    later = a.enqueue("e", priority=-1, delay=HOUR)
    learn(a, 9)
    assert claims_fast(a)
    assert later.id not in {job.id for job in a.dequeue(batch_size=3)}


def test_a_claim_of_more_jobs_than_reserved_tokens_still_gets_rising_tokens(
    a: Queue, b: Queue
) -> None:
    learn(a, 3 * CLAIMS_AT_ONCE)
    tokens = [job.token for job in a.dequeue(batch_size=2 * CLAIMS_AT_ONCE)]
    tokens += [job.token for q in (b, a, b) for job in q.dequeue(batch_size=2)]
    assert tokens == sorted(set(tokens))


def test_several_acks_are_refused_one_by_one(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "jobs.db"
    with opened(path, clock, LEASE) as a, opened(path, clock) as b:
        learn(a, 12)
        held = a.dequeue(batch_size=3)
        clock.advance(LEASE)
        [taken] = b.dequeue(id=held[1].id)
        a.enqueue("e")
        with pytest.raises(LeaseLostError) as lost:
            a.ack_many(held)
        assert lost.value.job_ids == (taken.id,)
        assert b.get(taken.id) == taken
        assert b.stats().total == 11


def test_several_acks_that_mix_up_their_tokens_do_nothing(a: Queue) -> None:
    learn(a, 9)
    one, two = a.dequeue(batch_size=2)
    swapped = [replace(one, token=two.token), replace(two, token=one.token)]
    with pytest.raises(LeaseLostError) as lost:
        a.ack_many(swapped)
    assert set(lost.value.job_ids) == {one.id, two.id}
    a.ack_many([one, two])


def test_several_acks_report_the_one_whose_job_is_done(a: Queue) -> None:
    learn(a, 9)
    one, two = a.dequeue(batch_size=2)
    a.ack(one)
    for acks in ([one, two], [two, one]):
        with pytest.raises(LeaseLostError) as lost:
            a.ack_many(acks)
        assert one.id in lost.value.job_ids
    three, four = a.dequeue(batch_size=2)
    with pytest.raises(LeaseLostError) as lost:
        a.ack_many([three, four, three])
    assert lost.value.job_ids == (three.id,)
    assert a.stats().processing == 0


def test_several_acks_of_two_lines_update_each_line(tmp_path: Path, a: Queue) -> None:
    learn(a, 9)
    a.enqueue_many([NewJob("f"), NewJob("f")])
    jobs = [*a.dequeue("e", batch_size=2), *a.dequeue("f", batch_size=2)]
    a.ack_many(jobs)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        assert connection.execute("SELECT entrypoint FROM casque_line").fetchall() == [("e",)]


def test_several_acks_move_a_line_that_another_has_moved(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "jobs.db"
    with opened(path, clock, LEASE) as a, opened(path, clock) as b:
        learn(a, 4)
        jobs = a.dequeue(batch_size=2)
        assert len(b.dequeue(batch_size=2)) == 2
        a.ack_many(jobs)
        clock.advance(LEASE)
        assert b.queues(due=True) == []


def test_acks_that_add_jobs_add_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with BrokerQueue(tmp_path / "jobs.db") as q:
            await q.enqueue_many([NewJob("e")] * 9)
            for _ in range(3):
                jobs = await q.dequeue(batch_size=2)
                await asyncio.gather(*(q.ack(job, enqueue=[NewJob("next")]) for job in jobs))
            assert (await q.stats()).total == 9
            assert len(await q.dequeue("next", batch_size=9)) == 6

    asyncio.run(work())


def test_acks_of_the_last_jobs_delete_the_line(tmp_path: Path, a: Queue) -> None:
    learn(a, 3)
    jobs = a.dequeue(batch_size=3)
    a.ack_many(jobs)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        assert connection.execute("SELECT count(*) FROM casque_line").fetchone() == (0,)


def test_several_acks_after_their_lease_ended_make_the_line_wait(
    tmp_path: Path, clock: FakeClock
) -> None:
    with opened(tmp_path / "jobs.db", clock, LEASE) as a:
        a.enqueue_many([NewJob("e")] * 2)
        a.enqueue("e", delay=HOUR)
        jobs = a.dequeue(batch_size=2)
        clock.advance(LEASE)
        assert a.queues(due=True) == ["default"]
        a.ack_many(jobs)
        assert a.queues(due=True) == []


class Doubtful:
    """A connection whose next claim on the fast path reports an error."""

    def __init__(self, connection: sqlite3.Connection, *, lands: bool) -> None:
        self._connection = connection
        self._lands = lands
        self.failed = 0

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        if sql in (STATEMENTS["claim_fast"], "COMMIT") and not self.failed:
            self.failed += 1
            if self._lands:
                self._connection.execute(sql, parameters).fetchall()
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(sql, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("lands", [True, False])
def test_a_claim_that_reported_an_error_is_made_once(a: Queue, lands: bool, count: int) -> None:
    learn(a, 9)
    assert isinstance(a.store, SqliteStore)
    connection = a.store._writer.opened
    assert connection is not None
    a.store._writer.opened = doubtful = Doubtful(connection, lands=lands)  # type: ignore[assignment]
    jobs = a.dequeue(batch_size=count)
    assert doubtful.failed
    a.store._writer.opened = connection
    assert len(jobs) == count
    assert [a.get(job.id) for job in jobs] == jobs
    assert a.stats().processing == count
    [other] = a.dequeue()
    assert other.token > jobs[-1].token
    a.ack_many([*jobs, other])


def test_an_ack_after_the_lease_ended_makes_the_line_wait(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path / "jobs.db", clock, LEASE) as a:
        a.enqueue("e")
        a.enqueue("e", delay=HOUR)
        [job] = a.dequeue()
        clock.advance(LEASE)
        assert a.queues(due=True) == ["default"]
        a.ack(job)
        assert a.queues(due=True) == []


def test_dequeues_in_one_commit_take_their_jobs_from_the_cache_too(a: Queue) -> None:
    a.enqueue_many([NewJob("e")] * 30)
    a.dequeue()
    taken = [job.id for job in a.dequeue(batch_size=2)]
    two = Dequeue("another", span_us(HOUR), 2)
    [outcomes] = drive(a.store.commit([Batch("another", 1, (two, two))]))
    assert isinstance(outcomes, list)
    taken += [job.id for leased in outcomes for job in leased.jobs]
    taken += [job.id for _ in range(3) for job in a.dequeue(batch_size=2)]
    assert len(set(taken)) == len(taken) == 12
