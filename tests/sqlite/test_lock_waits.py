"""A wait for the lock: it warns, it names a remedy, and no thread waits for itself."""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from casque import InvalidError, NewJob, Queue, StorageError
from casque.queues.commit import PendingOperation
from casque.queues.commit_threads import ThreadCommitter
from casque.stores.sqlite import lock_wait
from casque.stores.sqlite.lock_wait import (
    LOCKED,
    LOG_REMOVED,
    OPENING,
    LockWait,
    is_writing,
    refuse_own_transaction,
)
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import SECOND_US
from casque.testing import FakeClock
from tests.sqlite.waiting import closed_behind

BUSY = sqlite3.OperationalError("database is locked")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    with closed_behind(store):
        yield store


@pytest.fixture
def q(store: SqliteStore) -> Iterator[Queue]:
    with Queue(store) as queue:
        queue.enqueue("e", id="first")
        yield queue


@pytest.fixture
def mine(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of this thread's own code."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        yield connection


def after_waiting(store: SqliteStore, do: Callable[[], object]) -> None:
    """Call `do` when the writer has been refused the lock, and has thought about it."""
    attempts = 0

    def traced(statement: str) -> None:
        nonlocal attempts
        attempts += statement == "BEGIN IMMEDIATE"
        if attempts == 3:  # the first is made before the wait begins
            attempts += 1
            do()

    connection = store._writer.opened
    assert connection is not None
    connection.set_trace_callback(traced)


@pytest.fixture
def warns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_wait, "WARN_AFTER_US", 0)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "casque"]


# -- the warning ---------------------------------------------------------------


def test_a_wait_warns_once_after_five_seconds_and_ends_after_thirty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    wait = LockWait("jobs.db", clock, 30 * SECOND_US)
    clock.advance(timedelta(seconds=4.9))
    wait.check(LOCKED, BUSY)
    assert warnings_of(caplog) == []
    clock.advance(timedelta(seconds=0.1))
    wait.check(LOCKED, BUSY)
    clock.advance(timedelta(seconds=20))
    wait.check(LOCKED, BUSY)
    [said] = warnings_of(caplog)
    assert caplog.records[0].levelno == logging.WARNING
    assert "thread MainThread, waits for jobs.db, which has been locked" in said
    assert "for 5 s. This call waits up to 30 s." in said
    assert "`task.using(connection=…).enqueue(…)`, or `queue.enqueue(…, connection=…)`" in said
    clock.advance(timedelta(seconds=5))
    with pytest.raises(StorageError, match=r"locked .* for 30 s; nothing was written") as ended:
        wait.check(LOCKED, BUSY)
    assert "`task.using(connection=…).enqueue(…)`" in str(ended.value)
    assert not ended.value.outcome_unknown


@pytest.mark.parametrize(
    ("opened_for", "named"), [(4, "removed the log"), (6, "opening or closing a queue")]
)
def test_a_wait_names_the_opening_of_others_only_if_it_lasts(opened_for: int, named: str) -> None:
    clock = FakeClock()
    wait = LockWait("jobs.db", clock, 30 * SECOND_US)
    for second in range(30):
        wait.check(OPENING, BUSY)
        if second <= 30 - opened_for:
            wait.check(LOG_REMOVED, BUSY)
        clock.advance(timedelta(seconds=1))
    with pytest.raises(StorageError, match=named):
        wait.check(OPENING, BUSY)


@pytest.mark.usefixtures("warns_at_once")
def test_every_wait_that_is_long_warns(
    store: SqliteStore, q: Queue, mine: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(2):
        mine.execute("BEGIN IMMEDIATE")
        after_waiting(store, lambda: mine.execute("ROLLBACK"))
        q.enqueue("e")
        assert len(warnings_of(caplog)) == n + 1
    assert store.name in warnings_of(caplog)[0]


class Fails(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("no space for a log")


@pytest.fixture
def failing_handler() -> Iterator[None]:
    handler = Fails()
    logging.getLogger("casque").addHandler(handler)
    yield
    logging.getLogger("casque").removeHandler(handler)


@pytest.fixture
def no_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that cannot open more files: the module cannot be loaded."""
    monkeypatch.setitem(sys.modules, "logging", None)


@pytest.mark.usefixtures("warns_at_once")
@pytest.mark.parametrize("trouble", ["failing_handler", "no_logging"])
def test_a_warning_that_cannot_be_given_does_not_fail_the_commit(
    store: SqliteStore,
    q: Queue,
    mine: sqlite3.Connection,
    request: pytest.FixtureRequest,
    trouble: str,
) -> None:
    request.getfixturevalue(trouble)
    mine.execute("BEGIN IMMEDIATE")
    after_waiting(store, lambda: mine.execute("ROLLBACK"))
    assert q.enqueue("e", id="second").id == "second"
    assert q.stats().pending == 2


# -- this thread's own transaction ---------------------------------------------


def begun(mode: str, *, write: bool, folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "some.db", isolation_level=None, timeout=0)
    connection.execute(f"PRAGMA journal_mode = {mode}").fetchall()
    connection.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER)")
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM t").fetchall()
    if write:
        connection.execute("INSERT INTO t VALUES (1)")
    return connection


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_only_a_transaction_that_has_written_is_writing(mode: str, tmp_path: Path) -> None:
    with closing(begun(mode, write=False, folder=tmp_path)) as connection:
        assert not is_writing(connection)
        connection.execute("INSERT INTO t VALUES (1)")
        assert is_writing(connection)
        assert connection.in_transaction  # the question has changed nothing
        connection.execute("COMMIT")
        assert not is_writing(connection)
        assert connection.execute("SELECT n FROM t").fetchall() == [(1,)]
        connection.execute("BEGIN IMMEDIATE")
        assert is_writing(connection)


def test_the_exclusive_lock_of_another_connection_is_not_ones_own(tmp_path: Path) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(closing(begun("delete", write=False, folder=tmp_path)))
        other.execute("ROLLBACK")
        other.execute("BEGIN EXCLUSIVE")
        mine = sqlite3.connect(tmp_path / "some.db", isolation_level=None, timeout=0)
        stack.enter_context(closing(mine))
        mine.execute("BEGIN")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            is_writing(mine)
        found = (tmp_path / "some.db").stat()
        as_django(stack, mine)
        refuse_own_transaction("some.db", (found.st_dev, found.st_ino))  # raises nothing


def test_an_exclusive_lock_that_ends_meanwhile_is_not_ones_own_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = lock_wait._refuses_backup
    with (
        closing(begun("delete", write=False, folder=tmp_path)) as other,
        closing(sqlite3.connect(tmp_path / "some.db", isolation_level=None, timeout=0)) as mine,
    ):
        other.execute("ROLLBACK")
        other.execute("BEGIN EXCLUSIVE")
        mine.execute("BEGIN")

        def refused_then_free(connection: sqlite3.Connection) -> bool:
            is_refused = refuses(connection)
            if other.in_transaction:
                assert is_refused
                other.execute("ROLLBACK")
            return is_refused

        monkeypatch.setattr(lock_wait, "_refuses_backup", refused_then_free)
        assert not is_writing(mine)


def as_django(
    stack: ExitStack,
    connection: sqlite3.Connection | None,
    *,
    alias: str = "default",
    in_atomic_block: bool = True,
) -> None:
    """Show the connection as one that Django has open on this thread."""
    one = SimpleNamespace(alias=alias, connection=connection, in_atomic_block=in_atomic_block)
    connections = SimpleNamespace(all=lambda *, initialized_only: [one])
    patched = pytest.MonkeyPatch()
    stack.callback(patched.undo)
    patched.setitem(sys.modules, "django.db", SimpleNamespace(connections=connections))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


CALLS: list[Callable[[Queue], object]] = [
    lambda q: q.enqueue("e"),
    lambda q: q.enqueue("e", id="named"),
    lambda q: q.dequeue(),
    lambda q: q.cancel("first"),
]


def test_a_thread_that_holds_the_lock_itself_gets_an_error_at_once(
    path: Path, q: Queue, mine: sqlite3.Connection, stack: ExitStack
) -> None:
    as_django(stack, mine)
    mine.execute("BEGIN")
    mine.execute("INSERT INTO orders VALUES (7)")
    for call in CALLS:
        with pytest.raises(InvalidError, match=r"locked by this thread's own transaction") as no:
            call(q)
        assert "task.using(connection=connection).enqueue(…)" in str(no.value)
        assert "from django.db import connection`" in str(no.value)
        assert "transaction.on_commit(…)" in str(no.value)
    mine.execute("COMMIT")
    assert q.stats().pending == 1
    for call in CALLS:
        call(q)


def test_the_error_names_the_connection_that_it_means(
    q: Queue, mine: sqlite3.Connection, stack: ExitStack
) -> None:
    as_django(stack, mine, alias="jobs")
    mine.execute("BEGIN IMMEDIATE")
    with pytest.raises(InvalidError, match=r"connection=connections\['jobs'\]") as no:
        q.enqueue("e")
    assert "from django.db import connections`" in str(no.value)


def test_a_queue_that_is_opened_inside_ones_own_transaction_gets_the_error_too(
    path: Path, mine: sqlite3.Connection, stack: ExitStack
) -> None:
    as_django(stack, mine)
    mine.execute("BEGIN IMMEDIATE")
    with (
        Queue(path) as q,
        pytest.raises(InvalidError, match="this thread's own transaction"),
    ):
        q.enqueue("e")


def of_a_reader(stack: ExitStack, mine: sqlite3.Connection, path: Path) -> None:
    as_django(stack, mine)
    mine.execute("BEGIN")
    mine.execute("SELECT * FROM orders").fetchall()


def of_another_file(stack: ExitStack, mine: sqlite3.Connection, path: Path) -> None:
    elsewhere = begun("wal", write=True, folder=path.parent)
    stack.enter_context(closing(elsewhere))
    as_django(stack, elsewhere)


def in_memory(stack: ExitStack, mine: sqlite3.Connection, path: Path) -> None:
    elsewhere = sqlite3.connect(":memory:", isolation_level=None)
    stack.enter_context(closing(elsewhere))
    elsewhere.execute("BEGIN IMMEDIATE")
    as_django(stack, elsewhere)


def outside_atomic(stack: ExitStack, mine: sqlite3.Connection, path: Path) -> None:
    as_django(stack, mine, in_atomic_block=False)


def not_connected(stack: ExitStack, mine: sqlite3.Connection, path: Path) -> None:
    as_django(stack, None)


def closed(stack: ExitStack, mine: sqlite3.Connection, path: Path) -> None:
    mine.close()
    as_django(stack, mine)


def of_an_old_django(stack: ExitStack, mine: sqlite3.Connection, path: Path) -> None:
    patched = pytest.MonkeyPatch()
    stack.callback(patched.undo)
    connections = SimpleNamespace(all=list)
    patched.setitem(sys.modules, "django.db", SimpleNamespace(connections=connections))


def of_a_django_that_is_being_loaded(stack: ExitStack, mine: Any, path: Path) -> None:
    patched = pytest.MonkeyPatch()
    stack.callback(patched.undo)
    patched.setitem(sys.modules, "django.db", SimpleNamespace())


@pytest.mark.parametrize(
    "uncertain",
    [
        of_a_reader,
        of_another_file,
        in_memory,
        outside_atomic,
        not_connected,
        closed,
        of_an_old_django,
        of_a_django_that_is_being_loaded,
    ],
)
def test_a_commit_waits_unless_the_lock_is_certainly_its_own(
    uncertain: Callable[[ExitStack, sqlite3.Connection, Path], None],
    store: SqliteStore,
    q: Queue,
    mine: sqlite3.Connection,
    stack: ExitStack,
) -> None:
    with closing(sqlite3.connect(store.name, isolation_level=None)) as other:
        uncertain(stack, mine, Path(store.name))
        other.execute("BEGIN IMMEDIATE")
        after_waiting(store, lambda: other.execute("ROLLBACK"))
        assert q.enqueue("e", id="second").id == "second"


def test_the_operations_of_other_threads_do_not_fail_with_it(
    store: SqliteStore, q: Queue, mine: sqlite3.Connection, stack: ExitStack
) -> None:
    committer = q._queue._session._committer
    assert isinstance(committer, ThreadCommitter)
    theirs = [PendingOperation(operation_of(q, f"their-{n}")) for n in range(2)]
    committer._waiting.extend(theirs)
    as_django(stack, mine)
    mine.execute("BEGIN IMMEDIATE")
    with pytest.raises(InvalidError, match="this thread's own transaction"):
        q.enqueue("e", id="mine")
    assert list(committer._waiting) == theirs
    assert not any(one.is_done for one in theirs)
    mine.execute("COMMIT")
    q.enqueue("e", id="later")
    assert [one.outcome[0].id for one in theirs] == ["their-0", "their-1"]
    assert [job.id for job in q.read_state().jobs] == ["first", "their-0", "their-1", "later"]


def operation_of(q: Queue, id: str) -> Any:
    return q._queue._to_enqueue(NewJob("e", id=id))


def test_a_queue_that_is_closed_inside_ones_own_transaction_ends(
    store: SqliteStore, mine: sqlite3.Connection, stack: ExitStack
) -> None:
    with Queue(store) as q:
        q.enqueue("e")
        committer = q._queue._session._committer
        assert isinstance(committer, ThreadCommitter)
        theirs = PendingOperation(operation_of(q, "theirs"))
        committer._waiting.append(theirs)
        as_django(stack, mine)
        mine.execute("BEGIN IMMEDIATE")
    assert isinstance(theirs.outcome, InvalidError)
