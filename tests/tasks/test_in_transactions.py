"""`task.using(connection=…)`: a task is enqueued inside the caller's own transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import (
    App,
    Handle,
    InvalidError,
    JobNotFoundError,
    JobStatus,
    StorageError,
    Task,
    current_job,
)

SECOND = timedelta(seconds=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def app(path: Path) -> Iterator[App]:
    with App(path) as app:
        app.queue.stats()  # opens the file, which gives it a log: then a writer delays no reader
        yield app


@pytest.fixture
def unopened(path: Path) -> Iterator[App]:
    with App(path) as app:
        yield app


@pytest.fixture
def ship(app: App) -> Task[[int], int]:
    @app.task
    def ship(order: int) -> int:
        return -order

    return ship


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    """The application's connection, with a table of its own."""
    with closing(sqlite3.connect(path, timeout=1)) as opened:
        opened.execute("CREATE TABLE orders (id INTEGER)")
        opened.commit()
        yield opened


def orders(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as other:
        return [order for (order,) in other.execute("SELECT id FROM orders")]


def payloads(app: App) -> list[bytes]:
    return [job.payload for job in app.queue.read_state().jobs]


def work_off(app: App) -> None:
    for job in app.queue.dequeue(batch_size=10):
        task = app.tasks[job.entrypoint]
        args, kwargs = task.call.decode(job.payload)
        app.queue.ack(job, result=task.call.encode_result(task.function(*args, **kwargs)))


# -- commit and rollback -------------------------------------------------------


def test_a_task_enqueued_with_a_connection_is_stored_when_the_caller_commits(
    path: Path, app: App, ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    db.execute("INSERT INTO orders VALUES (7)")
    handle = ship.using(connection=db).enqueue(7)
    assert isinstance(handle, Handle)
    assert db.in_transaction
    assert (payloads(app), orders(path)) == ([], [])
    db.commit()
    assert (payloads(app), orders(path)) == ([b'{"order":7}'], [7])
    work_off(app)
    assert handle.result() == -7


def test_a_task_enqueued_with_a_connection_never_existed_after_a_rollback(
    path: Path, app: App, ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    db.execute("INSERT INTO orders VALUES (7)")
    ship.using(connection=db).enqueue(7)
    db.rollback()
    assert (payloads(app), orders(path)) == ([], [])


def enqueue(app: App, how: str, db: sqlite3.Connection) -> list[Handle[Any]]:
    """Enqueue `ship` with 1, in one of the ways that an App offers."""
    ship = app.tasks["ship"]

    async def awaited() -> list[Handle[Any]]:
        if how == "task.aenqueue":
            return [await ship.using(connection=db).aenqueue(1)]
        if how == "app.aenqueue":
            return [await app.aenqueue("ship", {"order": 1}, connection=db)]
        return await app.aenqueue_many([ship.job(1)], connection=db)

    if how == "task.enqueue":
        return [ship.using(connection=db).enqueue(1)]
    if how == "app.enqueue":
        return [app.enqueue("ship", {"order": 1}, connection=db)]
    if how == "app.enqueue_many":
        return app.enqueue_many([ship.job(1)], connection=db)
    return asyncio.run(awaited())


WAYS = [f"{of}enqueue{many}" for of in ("app.", "app.a") for many in ("", "_many")]
WAYS += ["task.enqueue", "task.aenqueue"]


@pytest.mark.parametrize("how", WAYS)
def test_every_way_to_enqueue_a_task_joins_the_transaction(
    app: App, ship: Task[[int], int], db: sqlite3.Connection, how: str
) -> None:
    enqueue(app, how, db)
    db.rollback()
    assert payloads(app) == []
    [handle] = enqueue(app, how, db)
    with pytest.raises(InvalidError, match="has not been committed"):
        handle.status()
    db.commit()
    assert handle.status() is JobStatus.QUEUED
    assert payloads(app) == [b'{"order":1}']


def test_options_and_a_connection_go_together_in_any_order(
    app: App, ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    ship.using(connection=db, priority=3).using(queue="q").enqueue(1)
    ship.using(priority=3).using(connection=db).using(id="mine").enqueue(2)
    again = ship.using(connection=db, id="mine").enqueue(3)
    assert again.duplicate
    db.rollback()
    assert payloads(app) == []
    ship.using(connection=db, priority=3).using(queue="q").enqueue(1)
    db.commit()
    [job] = app.queue.read_state().jobs
    assert (job.priority, job.queue) == (3, "q")


def test_without_a_connection_a_derived_task_commits_by_itself(
    app: App, ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    ship.using(connection=db).using(connection=None).enqueue(1)
    assert not db.in_transaction
    assert payloads(app) == [b'{"order":1}']


def test_no_jobs_in_a_transaction_are_no_handles(app: App, db: sqlite3.Connection) -> None:
    assert app.enqueue_many([], connection=db) == []
    assert not db.in_transaction


def test_jobs_of_a_task_in_a_transaction_know_the_job_that_enqueued_them(
    app: App, db: sqlite3.Connection
) -> None:
    @app.task
    def parent() -> None: ...

    parent.enqueue()
    [job] = app.queue.dequeue()
    with app.queue.running(job):
        parent.using(connection=db).enqueue()
        db.commit()
        assert current_job().id == job.id
    [child] = app.queue.dequeue()
    assert child.depth == job.depth + 1


# -- refusals ------------------------------------------------------------------


def test_a_job_of_a_transaction_cannot_be_taken_out_of_it(
    ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    with pytest.raises(InvalidError, match=r"app\.enqueue_many\(jobs, connection=…\)"):
        ship.using(connection=db).job(1)


def test_wrong_arguments_are_refused_and_the_transaction_stays(
    path: Path, ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    db.execute("INSERT INTO orders VALUES (7)")
    wrong: Any = "seven"
    with pytest.raises(InvalidError, match="argument `order`"):
        ship.using(connection=db).enqueue(wrong)
    with pytest.raises(TypeError, match="colour"):
        ship.using(connection=db, colour="red")  # type: ignore[call-arg]
    db.commit()
    assert orders(path) == [7]


def test_a_store_without_transactions_refuses_the_connection(db: sqlite3.Connection) -> None:
    with App("memory://") as app:
        work = app.task(abs_of)
        with pytest.raises(InvalidError, match="no transactions to join"):
            work.using(connection=db).enqueue(1)
        with pytest.raises(InvalidError, match="no transactions to join"):
            asyncio.run(work.using(connection=db).aenqueue(1))


def abs_of(n: int) -> int:
    return abs(n)


def test_an_enqueue_with_a_connection_in_a_loop_gives_no_warning(
    app: App, ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    # `aenqueue` would block the loop just as long, and `run_sync` of SQLAlchemy needs `enqueue`.
    async def test() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ship.using(connection=db).enqueue(1)

    asyncio.run(test())
    db.commit()
    assert payloads(app) == [b'{"order":1}']


# -- immediate -----------------------------------------------------------------


@pytest.mark.parametrize("how", WAYS)
def test_an_immediate_app_runs_the_task_at_once_and_leaves_the_connection_alone(
    path: Path, db: sqlite3.Connection, how: str
) -> None:
    ran: list[int] = []
    with App(path, immediate=True) as app:

        @app.task
        def ship(order: int) -> int:
            ran.append(order)
            return -order

        [handle] = enqueue(app, how, db)
        assert (ran, handle.result(), db.in_transaction) == ([1], -1, False)


# -- handles -------------------------------------------------------------------


def calls_of(handle: Handle[int]) -> list[Any]:
    async def awaited() -> int:
        return await handle

    return [
        lambda: handle.result(timeout=SECOND),
        lambda: asyncio.run(awaited()),
        handle.status,
        lambda: asyncio.run(handle.astatus()),
        handle.job,
        lambda: asyncio.run(handle.ajob()),
        handle.cancel,
        lambda: asyncio.run(handle.acancel()),
    ]


def test_a_handle_of_an_open_transaction_says_that_it_must_be_committed_first(
    ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    handle = ship.using(connection=db).enqueue(7)
    refuses_until_the_commit(handle, db)


def test_the_first_handle_of_a_new_queue_does_not_wait_for_its_own_transaction(
    unopened: App, db: sqlite3.Connection
) -> None:
    handle = unopened.task(abs_of).using(connection=db).enqueue(7)
    refuses_until_the_commit(handle, db)


def refuses_until_the_commit(handle: Handle[int], db: sqlite3.Connection) -> None:
    for call in calls_of(handle):
        with pytest.raises(InvalidError, match=r"has not been committed\. Commit it first") as no:
            call()
        assert no.value.job_id == handle.id
    db.commit()
    assert handle.status() is JobStatus.QUEUED
    assert handle.cancel().status is JobStatus.CANCELLED


def test_a_handle_of_a_transaction_that_was_rolled_back_says_so(
    app: App, ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    handle = ship.using(connection=db).enqueue(7)
    db.rollback()
    for call in calls_of(handle):
        with pytest.raises(JobNotFoundError, match="was rolled back") as no:
            call()
        assert no.value.job_id == handle.id


def test_a_handle_of_a_closed_connection_says_that_it_was_rolled_back(
    path: Path, ship: Task[[int], int]
) -> None:
    with closing(sqlite3.connect(path)) as db:
        handle = ship.using(connection=db).enqueue(7)
    with pytest.raises(JobNotFoundError, match="was rolled back"):
        handle.status()


def test_a_later_transaction_on_the_connection_does_not_hide_a_committed_job(
    ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    handle = ship.using(connection=db).enqueue(7)
    db.commit()
    db.execute("INSERT INTO orders VALUES (8)")
    assert handle.status() is JobStatus.QUEUED


def test_nor_does_it_if_the_queue_was_opened_meanwhile(
    unopened: App, db: sqlite3.Connection
) -> None:
    handle = unopened.task(abs_of).using(connection=db).enqueue(7)
    db.commit()
    unopened.queue.stats()
    db.execute("INSERT INTO orders VALUES (8)")
    assert handle.status() is JobStatus.QUEUED


def test_a_committed_job_that_is_gone_later_was_not_rolled_back(
    app: App, ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    handle = ship.using(connection=db, retain=None).enqueue(7)
    db.commit()
    assert handle.status() is JobStatus.QUEUED
    work_off(app)
    with pytest.raises(JobNotFoundError, match="its record no longer exists") as gone:
        handle.status()
    assert "rolled back" not in str(gone.value)


def later_transaction(db: sqlite3.Connection) -> None:
    """As in a pool: the connection serves another request by now, which has not committed."""
    db.execute("INSERT INTO orders VALUES (8)")
    assert db.in_transaction


@pytest.mark.parametrize("flavour", ["plain", "async"])
def test_a_later_transaction_does_not_make_a_finished_job_an_uncommitted_one(
    app: App, ship: Task[[int], int], db: sqlite3.Connection, flavour: str
) -> None:
    handle = ship.using(connection=db, retain=None).enqueue(7)
    db.commit()
    work_off(app)
    later_transaction(db)
    with pytest.raises(JobNotFoundError, match="its record no longer exists") as gone:
        handle.status() if flavour == "plain" else asyncio.run(handle.astatus())
    assert "not been committed" not in str(gone.value)


def test_a_handle_does_not_say_which_of_two_ends_its_transaction_had_if_it_cannot_know(
    app: App, ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    committed = ship.using(connection=db, retain=None).enqueue(1)
    db.commit()
    rolled_back = ship.using(connection=db, retain=None).enqueue(2)
    db.rollback()
    ship.using(connection=db).enqueue(3)
    db.commit()
    work_off(app)
    later_transaction(db)
    for handle in (committed, rolled_back):
        with pytest.raises(JobNotFoundError, match=r"either .* was rolled back, or its record"):
            handle.status()


def test_a_handle_of_a_rolled_back_transaction_claims_no_commit_if_a_later_one_is_open(
    ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    handle = ship.using(connection=db).enqueue(7)
    db.rollback()
    later_transaction(db)
    with pytest.raises(InvalidError, match="After a rollback there is no such job"):
        handle.status()
    db.commit()
    with pytest.raises(JobNotFoundError, match="was rolled back") as no:
        handle.status()
    assert "no longer exists" not in str(no.value), "nothing was committed since"


def test_a_commit_on_another_thread_while_a_handle_looks_is_not_taken_for_a_rollback(
    path: Path, app: App, ship: Task[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(path, check_same_thread=False)) as db:
        store: Any = app.store
        read = store._last_joined

        def finished_after_the_read() -> int:
            number: int = read()
            db.commit()
            work_off(app)
            return number

        monkeypatch.setattr(store, "_last_joined", finished_after_the_read)
        handle = ship.using(connection=db, retain=None).enqueue(7)
        with pytest.raises(InvalidError, match="has not been committed"):
            handle.status()
        with pytest.raises(JobNotFoundError, match="its record no longer exists"):
            handle.status()


def test_a_duplicate_in_the_same_transaction_is_as_uncommitted_as_the_first(
    ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    first = ship.using(connection=db, id="one").enqueue(1)
    again = ship.using(connection=db, id="one").enqueue(1)
    for handle in (first, again):
        with pytest.raises(InvalidError, match="has not been committed"):
            handle.status()
    db.commit()
    assert first.status() is again.status() is JobStatus.QUEUED


def test_the_handle_of_a_duplicate_is_that_of_the_stored_job(
    ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    ship.using(id="one").enqueue(1)
    handle = ship.using(connection=db, id="one").enqueue(1)
    assert handle.duplicate
    assert handle.status() is JobStatus.QUEUED
    db.rollback()
    assert handle.status() is JobStatus.QUEUED


def test_a_thread_can_wait_for_a_job_that_another_thread_commits(
    path: Path, app: App, ship: Task[[int], int]
) -> None:
    """A commit between the read and the question about the transaction is not a rollback."""
    with closing(sqlite3.connect(path, check_same_thread=False)) as db:
        handle = ship.using(connection=db).enqueue(7)
        get = app.queue.get

        def committed_after_the_read(id: str) -> Any:
            job = get(id)
            db.commit()
            return job

        app.queue.get = committed_after_the_read  # type: ignore[method-assign,assignment]
        with pytest.raises(InvalidError, match="has not been committed"):
            handle.status()
        assert handle.status() is JobStatus.QUEUED


def test_a_handle_may_be_asked_on_another_thread(
    ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    handle = ship.using(connection=db).enqueue(7)
    db.commit()
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(handle.status).result() is JobStatus.QUEUED


# -- the file of another program ----------------------------------------------


def test_another_threads_transaction_delays_the_task_and_the_callers_own_part_stays(
    path: Path, app: App, ship: Task[[int], int], db: sqlite3.Connection
) -> None:
    db.execute("BEGIN")
    db.execute("PRAGMA busy_timeout = 0")
    holds, done = threading.Event(), threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            holds.set()
            done.wait(60)
            other.execute("ROLLBACK")

    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(hold)
        assert holds.wait(60)
        with pytest.raises(StorageError, match="BEGIN IMMEDIATE"):
            ship.using(connection=db).enqueue(7)
        done.set()
        held.result(60)
    ship.using(connection=db).enqueue(8)
    db.commit()
    assert payloads(app) == [b'{"order":8}']
