"""`connection=`: which connections can be used, with any settings, and which cannot."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from casque import InvalidError, Queue


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def q(path: Path) -> Iterator[Queue]:
    with Queue(path) as queue:
        yield queue


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as opened:
        yield opened


def ids(q: Queue) -> list[str]:
    return [job.id for job in q.read_state().jobs]


# -- connections of every kind -------------------------------------------------


def test_a_connection_with_no_transaction_open_begins_one(path: Path, q: Queue) -> None:
    q.stats()
    with closing(sqlite3.connect(path)) as connection:
        q.enqueue("e", id="job", connection=connection)
        assert connection.in_transaction
        assert q.get("job") is None
        connection.commit()
        assert ids(q) == ["job"]
        with connection:
            q.enqueue("e", id="second", connection=connection)
        assert ids(q) == ["job", "second"]


def test_a_connection_that_commits_by_itself_stores_the_job_at_once(path: Path, q: Queue) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        q.enqueue("e", id="job", connection=connection)
        assert not connection.in_transaction
        assert ids(q) == ["job"]
        with pytest.raises(InvalidError):
            q.enqueue("e", id="job", queue="other", connection=connection)
        connection.execute("BEGIN")  # fails in a transaction
        q.enqueue("e", id="second", connection=connection)
        connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
        q.enqueue("e", id="third", connection=connection)
        connection.execute("COMMIT")
        assert ids(q) == ["job", "third"]


# Python 3.12 and later.
AUTOCOMMIT = hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL")


def connect_as(path: Path, **options: Any) -> sqlite3.Connection:
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    return connect(path, **options)


@pytest.mark.skipif(not AUTOCOMMIT, reason="autocommit= came with Python 3.12")
@pytest.mark.parametrize("isolation_level", ["", None, "IMMEDIATE"])
def test_autocommit_on_stores_the_job_at_once(
    path: Path, q: Queue, isolation_level: str | None
) -> None:
    options = {"autocommit": True, "isolation_level": isolation_level}
    with closing(connect_as(path, **options)) as connection:
        q.enqueue("e", id="job", connection=connection)
        assert not connection.in_transaction  # commit() would do nothing in this mode
        assert ids(q) == ["job"]
        connection.execute("BEGIN")
        q.enqueue("e", id="gone", connection=connection)
        connection.execute("ROLLBACK")
        assert ids(q) == ["job"]


@pytest.mark.skipif(not AUTOCOMMIT, reason="autocommit= came with Python 3.12")
@pytest.mark.parametrize("isolation_level", ["", None])
def test_autocommit_off_leaves_the_commit_to_the_caller(
    path: Path, q: Queue, isolation_level: str | None
) -> None:
    options = {"autocommit": False, "isolation_level": isolation_level}
    with closing(connect_as(path, **options)) as connection:
        q.enqueue("e", id="gone", connection=connection)
        connection.rollback()
        q.enqueue("e", id="job", connection=connection)
        connection.commit()
        assert ids(q) == ["job"]


FACTORIES: dict[str, tuple[Any, Any]] = {
    "rows by name": (sqlite3.Row, str),
    "dicts": (lambda cursor, row: dict(zip(cursor.description, row, strict=True)), str),
    "nothing": (lambda _, __: None, str),
    "bytes": (None, bytes),
    "another encoding": (None, lambda raw: raw.decode("latin-1")),
    "capitals": (None, lambda raw: raw.decode().upper()),
    "text that fails": (None, lambda _: 1 / 0),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_the_callers_factories_are_kept_and_harmless(path: Path, q: Queue, name: str) -> None:
    row_factory, text_factory = FACTORIES[name]
    q.enqueue("e", b"first", id="there")
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory, connection.text_factory = row_factory, text_factory
        job = q.enqueue("e", connection=connection)
        assert q.enqueue("e", b"again", id="there", connection=connection).payload == b"first"
        with pytest.raises(InvalidError):
            q.enqueue("e", id="there", queue="other", connection=connection)
        assert connection.row_factory is row_factory
        assert connection.text_factory is text_factory
        connection.commit()
        assert ids(q) == ["there", job.id]


class Loud(sqlite3.Connection):
    """A subclass of a connection, with its own cursors."""

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or LoudCursor)


class LoudCursor(sqlite3.Cursor):
    def execute(self, *_: Any) -> Any:
        raise AssertionError("this is for the application alone")


def test_a_connection_of_a_subclass_is_accepted(path: Path, q: Queue) -> None:
    with closing(sqlite3.connect(path, factory=Loud)) as connection:
        sqlite3.Connection.execute(connection, "BEGIN")
        q.enqueue("e", id="job", connection=connection)
        connection.commit()
        assert ids(q) == ["job"]


# -- connections that cannot be used -------------------------------------------


def test_a_connection_to_another_file_is_refused(tmp_path: Path, q: Queue) -> None:
    memory = "a database in memory"
    others = {str(tmp_path / "other.db"): r"other\.db", ":memory:": memory, "": memory}
    for place, says in others.items():
        with closing(sqlite3.connect(place)) as connection:
            for _ in range(2):
                with pytest.raises(InvalidError, match=rf"{says}.*app\.db.*one file"):
                    q.enqueue("e", connection=connection)
                q.enqueue("e")  # so that the queue's own file exists too
            assert not connection.in_transaction
            assert connection.execute("SELECT * FROM sqlite_master").fetchall() == []


def test_a_file_that_is_only_attached_is_refused(tmp_path: Path, path: Path, q: Queue) -> None:
    q.enqueue("e", id="there")
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("ATTACH ? AS jobs", (str(path),))
        with pytest.raises(InvalidError, match=r"other\.db.*app\.db"):
            q.enqueue("e", connection=connection)


def test_a_link_to_the_file_is_the_file(tmp_path: Path, path: Path, q: Queue) -> None:
    (tmp_path / "link.db").symlink_to(path)
    with closing(sqlite3.connect(tmp_path / "link.db")) as connection:
        q.enqueue("e", id="job", connection=connection)
        connection.commit()
    assert ids(q) == ["job"]


@pytest.mark.parametrize("wrong", [3, "app.db", object(), True])
def test_a_value_that_is_not_a_connection_is_refused(q: Queue, wrong: object) -> None:
    with pytest.raises(
        InvalidError, match=rf"sqlite3\.Connection, .*; got {type(wrong).__name__}\."
    ):
        q.enqueue("e", connection=wrong)


def test_a_closed_connection_and_one_of_another_thread_are_refused(path: Path, q: Queue) -> None:
    closed = sqlite3.connect(path)
    closed.close()
    with ThreadPoolExecutor(1) as thread:
        theirs = thread.submit(sqlite3.connect, path).result()
        for connection in (closed, theirs):
            with pytest.raises(InvalidError, match="cannot be used here"):
                q.enqueue("e", connection=connection)
        thread.submit(theirs.close).result()
    assert ids(q) == []


@pytest.mark.parametrize("address", ["memory://", "json"])
def test_a_queue_without_transactions_refuses(
    tmp_path: Path, connection: sqlite3.Connection, address: str
) -> None:
    with (
        Queue(tmp_path / "jobs.json" if address == "json" else address) as q,
        pytest.raises(InvalidError, match=r"no transactions to join.*SQLite"),
    ):
        q.enqueue("e", connection=connection)


def test_a_closed_queue_refuses(path: Path, connection: sqlite3.Connection) -> None:
    q = Queue(path)
    q.close()
    with pytest.raises(InvalidError, match="closed"):
        q.enqueue("e", connection=connection)


@pytest.mark.parametrize("kind", ["TABLE casque_job (id)", "VIEW Casque_Line AS SELECT 1"])
def test_a_temporary_table_in_the_way_is_refused(path: Path, q: Queue, kind: str) -> None:
    q.enqueue("e", id="there")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TEMP {kind}")
        with pytest.raises(InvalidError, match=r"(?i)temporary table or view casque_.*Drop it"):
            q.enqueue("e", connection=connection)
        connection.execute(f"DROP {' '.join(kind.split()[:2])}")
        q.enqueue("e", id="joined", connection=connection)
        connection.commit()
    assert ids(q) == ["there", "joined"]


def test_a_temporary_table_hides_no_new_queue(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, Queue(path) as q:
        connection.execute("CREATE TABLE theirs (id)")
        connection.execute("CREATE TEMP TABLE casque_line (id)")
        with pytest.raises(InvalidError, match="temporary table or view casque_line"):
            q.enqueue("e", connection=connection)
        assert connection.execute("SELECT name FROM main.sqlite_master").fetchall() == [("theirs",)]
