"""`connection=`: a job is added in the caller's transaction and shares its commit or rollback."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from casque import (
    BrokerQueue,
    CorruptError,
    DirectQueue,
    InvalidError,
    Job,
    NewJob,
    Queue,
    StorageError,
)
from casque.testing.rig import FLAVOURS, Flavour
from tests.sqlite.waiting import PROMPTLY

LONG = timedelta(minutes=10)
HEADERS = {"trace": "1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def q(path: Path) -> Iterator[Queue]:
    with Queue(path) as queue:
        yield queue


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    """The application's connection: it has its own table and an open transaction."""
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("CREATE TABLE orders (name TEXT)")
        opened.execute("INSERT INTO orders VALUES ('first')")
        yield opened


def orders(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as other:
        return [name for (name,) in other.execute("SELECT name FROM orders")]


def ids(q: Queue) -> list[str]:
    return [job.id for job in q.read_state().jobs]


# -- commit and rollback -------------------------------------------------------


def add(flavour: Flavour, path: Path, connection: sqlite3.Connection, name: str) -> Job:
    if flavour == "queue":
        with Queue(path) as q:
            return q.enqueue("e", b"data", id=name, headers=HEADERS, connection=connection)

    async def adding() -> Job:
        async with {"direct": DirectQueue, "broker": BrokerQueue}[flavour](path) as q:
            return await q.enqueue("e", b"data", id=name, headers=HEADERS, connection=connection)

    return asyncio.run(adding())


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_job_exists_when_the_transaction_commits(
    path: Path, connection: sqlite3.Connection, flavour: Flavour
) -> None:
    connection.commit()
    with Queue(path) as q:
        assert q.get("job") is None
        connection.execute("INSERT INTO orders VALUES ('second')")
        job = add(flavour, path, connection, "job")
        assert (job.id, job.payload, job.duplicate) == ("job", b"data", False)
        assert q.get("job") is None
        assert orders(path) == ["first"]
        connection.commit()
        stored = q.get("job")
        assert stored == job
        assert stored.headers == HEADERS
        assert orders(path) == ["first", "second"]
        [claimed] = q.dequeue()
        q.ack(claimed)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_job_never_existed_when_the_transaction_is_rolled_back(
    path: Path, connection: sqlite3.Connection, flavour: Flavour
) -> None:
    connection.commit()
    connection.execute("INSERT INTO orders VALUES ('second')")
    add(flavour, path, connection, "job")
    connection.rollback()
    with Queue(path) as q:
        assert ids(q) == []
        assert orders(path) == ["first"]
        assert not q.enqueue("e", id="job").duplicate
        assert [job.id for job in q.dequeue()] == ["job"]


def test_a_rollback_removes_the_tables_of_a_new_queue(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    q.enqueue("e", id="gone", connection=connection)
    tables = "SELECT count(*) FROM sqlite_master WHERE name LIKE 'casque%'"
    assert connection.execute(tables).fetchone()[0] > 5
    connection.rollback()
    assert connection.execute(tables).fetchone() == (0,)
    q.enqueue("e", id="job", connection=connection)
    connection.commit()
    assert ids(q) == ["job"]


def test_a_rollback_to_a_savepoint_removes_its_jobs(
    q: Queue, connection: sqlite3.Connection
) -> None:
    q.enqueue("e", id="kept", connection=connection)
    connection.execute("SAVEPOINT part")
    q.enqueue("e", id="gone", connection=connection)
    connection.execute("ROLLBACK TO part")
    q.enqueue("f", id="kept too", connection=connection)
    connection.commit()
    assert ids(q) == ["kept", "kept too"]
    assert [job.id for job in q.dequeue(batch_size=9)] == ["kept", "kept too"]


def test_many_jobs_are_committed_or_rolled_back_together(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    q.enqueue_many([NewJob("e", id=str(n)) for n in range(100)], connection=connection)
    connection.rollback()
    assert ids(q) == []
    jobs = q.enqueue_many(
        [NewJob("e", queue=f"q{n % 3}") for n in range(100)], connection=connection
    )
    connection.commit()
    assert ids(q) == [job.id for job in jobs]
    assert len(q.dequeue(batch_size=200)) == 100
    assert q.enqueue_many([], connection=connection) == []


def test_jobs_added_in_transactions_and_without_keep_their_order(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    connection.commit()
    added: list[str] = []
    for n in range(5):
        added.append(q.enqueue("e").id)
        added.append(q.enqueue("e", id=f"named-{n}").id)
        added.append(q.enqueue("e", connection=connection).id)
        added.append(q.enqueue("e", id=f"joined-{n}", connection=connection).id)
        connection.commit()
    assert ids(q) == added
    for name in added:
        [job] = q.dequeue()
        assert job.id == name
        q.ack(job)
    assert q.stats().total == 0


# -- duplicates and refusals ---------------------------------------------------


def test_a_duplicate_is_reported_inside_the_transaction_and_outside(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    connection.commit()
    q.enqueue("e", b"first", id="job")
    minted = q.enqueue("e", b"first")
    connection.execute("INSERT INTO orders VALUES ('second')")
    for name in ("job", minted.id):
        again = q.enqueue("e", b"second", id=name, connection=connection)
        assert again.duplicate
        assert again.payload == b"first"
    inside = q.enqueue("e", b"inside", connection=connection)
    assert q.enqueue("e", id=inside.id, connection=connection).duplicate
    twice = [NewJob("e", id="new"), NewJob("e", id="new")]
    [one, two] = q.enqueue_many(twice, connection=connection)
    assert (one.duplicate, two.duplicate) == (False, True)
    connection.commit()
    assert sorted(ids(q)) == sorted(["job", minted.id, inside.id, "new"])
    assert orders(path) == ["first", "second"]


def test_a_refusal_leaves_the_callers_own_changes_in_the_transaction(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    connection.commit()
    q.enqueue("e", id="taken", queue="a")
    connection.execute("INSERT INTO orders VALUES ('second')")
    q.enqueue("e", id="mine", connection=connection)
    with pytest.raises(InvalidError, match="taken"):
        q.enqueue("e", id="taken", queue="b", connection=connection)
    with pytest.raises(InvalidError, match="taken"):
        q.enqueue_many(
            [NewJob("e", id="half", queue="b"), NewJob("e", id="taken", queue="b")],
            connection=connection,
        )
    assert connection.in_transaction
    connection.execute("INSERT INTO orders VALUES ('third')")
    connection.commit()
    assert orders(path) == ["first", "second", "third"]
    assert ids(q) == ["taken", "mine"]
    assert q.queues() == ["a", "default"]


def test_a_wrong_call_is_refused_before_anything_is_done(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    wrong: list[Callable[[], object]] = [
        lambda: q.enqueue("", connection=connection),
        lambda: q.enqueue_many([NewJob("e"), NewJob("")], connection=connection),
    ]
    for call in wrong:
        with pytest.raises(InvalidError):
            call()
    connection.commit()
    assert orders(path) == ["first"]
    assert q.stats().total == 0


def test_a_connection_by_another_name_of_the_file_is_refused(
    path: Path, q: Queue, connection: sqlite3.Connection, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    for name in ("hard.db", f"other/{path.name}"):
        link = tmp_path / name
        link.hardlink_to(path)
        with closing(sqlite3.connect(link)) as linked:
            with pytest.raises(
                InvalidError, match=rf"{link}, which is another name .*{path}: a hard"
            ):
                q.enqueue("e", connection=linked)
            assert not linked.in_transaction
        link.unlink()
    connection.commit()
    assert ids(q) == []


def test_a_connection_through_a_symbolic_link_joins(
    path: Path, q: Queue, connection: sqlite3.Connection, tmp_path: Path
) -> None:
    connection.commit()
    (tmp_path / "soft.db").symlink_to(path)
    (tmp_path / "folder").symlink_to(tmp_path)
    for name in ("soft.db", f"folder/{path.name}"):
        with closing(sqlite3.connect(tmp_path / name)) as linked:
            q.enqueue("e", id=name, connection=linked)
            linked.commit()
    assert ids(q) == ["soft.db", f"folder/{path.name}"]


# -- waking waiting dequeues ---------------------------------------------------

WAITING = """
import sys
from datetime import timedelta
from casque import Queue
with Queue(sys.argv[1]) as q:
    q.stats()
    print("waiting", flush=True)
    [job] = q.dequeue(wait=timedelta(minutes=10))
    print(job.id, flush=True)
"""


def test_a_commit_wakes_a_dequeue_that_waits_in_another_process(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    connection.commit()
    q.stats()
    command = [sys.executable, "-c", WAITING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        q.enqueue("e", id="gone", connection=connection)
        connection.rollback()
        q.enqueue("e", id="job", connection=connection)
        connection.commit()
        assert child.communicate(timeout=PROMPTLY)[0] == "job\n"


def test_a_commit_wakes_a_dequeue_that_waits_in_this_process(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    connection.commit()
    with ThreadPoolExecutor(1) as threads:
        assert q.dequeue() == []
        waiting = threads.submit(q.dequeue, wait=LONG)
        q.enqueue("e", id="job", connection=connection)
        connection.commit()
        [job] = waiting.result(PROMPTLY)
        assert job.id == "job"


# -- errors --------------------------------------------------------------------


def test_a_transaction_with_an_outdated_read_gets_an_error_that_says_how_to_begin(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    connection.commit()
    q.enqueue("e", id="there")
    connection.execute("BEGIN")
    assert connection.execute("SELECT name FROM orders").fetchall() == [("first",)]
    q.enqueue("e", id="since")
    with pytest.raises(StorageError, match=r"app\.db.*not added.*BEGIN IMMEDIATE") as refused:
        q.enqueue("e", id="stale", connection=connection)
    assert not refused.value.outcome_unknown
    assert connection.in_transaction
    connection.rollback()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("SELECT name FROM orders").fetchall()
    q.enqueue("e", id="fresh", connection=connection)
    connection.commit()
    assert ids(q) == ["there", "since", "fresh"]


def test_a_transaction_that_cannot_get_the_lock_gets_an_error(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    connection.commit()
    connection.execute("PRAGMA busy_timeout = 0")
    q.enqueue("e", id="there")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match=r"app\.db.*not added.*timeout") as refused:
            q.enqueue("e", id="late", connection=connection)
        assert not refused.value.outcome_unknown
        other.execute("ROLLBACK")
    q.enqueue("e", id="job", connection=connection)
    connection.commit()
    assert ids(q) == ["there", "job"]


def test_a_database_that_may_not_grow_gives_an_error_and_keeps_its_content(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    connection.commit()
    q.enqueue("e", id="there")
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()
    connection.execute("INSERT INTO orders VALUES ('second')")
    with pytest.raises(StorageError, match=r"app\.db.*make room") as refused:
        q.enqueue("e", b"x" * 100_000, id="large", connection=connection)
    assert not refused.value.outcome_unknown
    connection.rollback()
    assert ids(q) == ["there"]
    assert orders(path) == ["first"]


def test_a_queue_of_a_newer_casque_is_left_alone_and_so_is_the_transaction(
    path: Path, q: Queue, connection: sqlite3.Connection
) -> None:
    connection.commit()
    q.enqueue("e", id="there")
    connection.execute("UPDATE casque_meta SET value = '999' WHERE key = 'schema'")
    connection.commit()
    connection.execute("INSERT INTO orders VALUES ('second')")
    with pytest.raises(CorruptError, match="newer casque"):
        q.enqueue("e", connection=connection)
    connection.commit()
    assert orders(path) == ["first", "second"]
    assert connection.execute("SELECT id FROM casque_job").fetchall() == [("there",)]
