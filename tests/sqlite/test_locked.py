"""Another program locks the file: a short lock has no effect, a long one is reported."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from casque import BrokerQueue, DirectQueue, NewJob, Queue, StorageError
from casque.stores.sqlite import connection as connections
from casque.stores.sqlite.store import SqliteStore
from tests.sqlite.waiting import closed_behind

LONG = timedelta(minutes=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of another program."""
    with closing(
        sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    ) as connection:
        yield connection


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is in real time, so make it short for a test."""
    monkeypatch.setattr(connections, "COMMIT_DEADLINE_US", 100_000)


def at_second_attempt(store: SqliteStore, do: Callable[[], object]) -> None:
    """Call `do` when the writer has found the lock taken and tries again."""
    attempts = 0

    def traced(statement: str) -> None:
        nonlocal attempts
        attempts += statement == "BEGIN IMMEDIATE"
        if attempts == 2:
            attempts += 1
            do()

    connection = store._writer.opened
    assert connection is not None
    connection.set_trace_callback(traced)


def test_a_lock_that_is_never_released_is_reported_and_nothing_is_lost(
    path: Path, other: sqlite3.Connection, impatient: None
) -> None:
    calls: list[Callable[[Queue], object]] = [
        lambda q: q.enqueue("e"),
        lambda q: q.enqueue("e", id="other"),
        lambda q: q.enqueue_many([NewJob("e"), NewJob("f")]),
        lambda q: q.dequeue(),
        lambda q: q.ack("held"),
        lambda q: q.nack("held"),
        lambda q: q.pause("default"),
    ]
    with Queue(path) as q:
        q.enqueue("e", id="held")
        [held] = q.dequeue()
        q.enqueue("e", id="queued")
        before = q.read_state().jobs
        other.execute("BEGIN IMMEDIATE")
        for call in calls:
            with pytest.raises(StorageError, match=r"jobs\.db.*locked.*nothing was written") as no:
                call(q)
            assert "a transaction left open" in str(no.value)
            assert not no.value.outcome_unknown
            assert q.read_state().jobs == before  # reads are not blocked
        other.execute("ROLLBACK")
        q.ack(held)
        [queued] = q.dequeue()
        q.ack(queued)
        assert q.stats().total == 0


def test_a_lock_from_the_start_is_reported_too(
    path: Path, other: sqlite3.Connection, impatient: None
) -> None:
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("CREATE TABLE theirs (id)")
    with Queue(path) as q:
        for _ in range(2):
            with pytest.raises(StorageError, match=r"jobs\.db.*locked"):
                q.enqueue("e")
            with pytest.raises(StorageError, match=r"jobs\.db.*locked"):
                q.stats()
        other.execute("COMMIT")
        other.execute("PRAGMA locking_mode = NORMAL")
        other.execute("SELECT * FROM theirs").fetchall()
        q.enqueue("e")
        assert q.stats().pending == 1
    assert other.execute("SELECT name FROM sqlite_master WHERE name = 'theirs'").fetchall()


def test_a_dequeue_that_finds_nothing_needs_no_lock(path: Path, other: sqlite3.Connection) -> None:
    with Queue(path) as q:
        assert q.dequeue() == []
        other.execute("BEGIN IMMEDIATE")
        assert q.dequeue() == []
        other.execute("ROLLBACK")


@pytest.mark.parametrize("job_id", [None, "named"])
def test_a_lock_that_is_held_for_a_moment_is_waited_for(
    path: Path, other: sqlite3.Connection, job_id: str | None
) -> None:
    store = SqliteStore(path)
    with closed_behind(store), Queue(store) as q:
        for _ in range(2):
            q.enqueue("e")
        other.execute("BEGIN IMMEDIATE")
        at_second_attempt(store, lambda: other.execute("ROLLBACK"))
        q.enqueue("e", id=job_id)
        assert not other.in_transaction
        assert q.stats().pending == 3


def test_a_commit_that_waited_for_the_lock_sees_what_its_holder_wrote(
    path: Path, other: sqlite3.Connection
) -> None:
    store = SqliteStore(path)
    with closed_behind(store), Queue(store) as q, Queue(path) as rival:
        first = q.enqueue("e")
        [claimed] = rival.dequeue()
        assert claimed.id == first.id
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM casque_job")
        other.execute("DELETE FROM casque_line")
        at_second_attempt(store, lambda: other.execute("COMMIT"))
        second = q.enqueue("e")
        assert [job.id for job in q.read_state().jobs] == [second.id]
        assert [job.id for job in rival.dequeue()] == [second.id]


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
def test_an_event_loop_keeps_running_while_a_commit_waits_for_the_lock(
    path: Path, other: sqlite3.Connection, kind: type[DirectQueue | BrokerQueue]
) -> None:
    async def test() -> None:
        loop, blocked = asyncio.get_running_loop(), asyncio.Event()
        store = SqliteStore(path)
        async with kind(store) as q:
            await q.enqueue("e")
            other.execute("BEGIN IMMEDIATE")
            at_second_attempt(store, lambda: loop.call_soon_threadsafe(blocked.set))
            waiting = asyncio.create_task(q.enqueue("e", id="second"))
            await blocked.wait()  # the commit is running on its thread, and this task still runs
            assert (await q.stats()).pending == 1
            assert not waiting.done()
            other.execute("ROLLBACK")
            await waiting
            assert (await q.stats()).pending == 2
        await store.close()

    asyncio.run(test())


def test_threads_that_wait_for_the_lock_are_committed_together(
    path: Path, other: sqlite3.Connection
) -> None:
    store = SqliteStore(path)
    with closed_behind(store), Queue(store) as q:
        q.enqueue("e", id="first")
        other.execute("BEGIN IMMEDIATE")
        blocked = threading.Event()
        at_second_attempt(store, blocked.set)
        threads = [threading.Thread(target=q.enqueue, args=("e",)) for _ in range(10)]
        for thread in threads:
            thread.start()
        assert blocked.wait(60)
        other.execute("ROLLBACK")
        for thread in threads:
            thread.join(60)
        assert q.stats().pending == 11


def test_a_dequeue_waits_for_a_job_through_a_lock(path: Path, other: sqlite3.Connection) -> None:
    store = SqliteStore(path)
    with closed_behind(store), Queue(store) as q:
        q.enqueue("e", id="job")
        other.execute("BEGIN IMMEDIATE")
        at_second_attempt(store, lambda: other.execute("ROLLBACK"))
        [job] = q.dequeue(wait=LONG)
        assert job.id == "job"
