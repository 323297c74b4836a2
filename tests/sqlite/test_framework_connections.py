"""`connection=` takes the objects of SQLAlchemy and Django that hold a connection, and no other."""

from __future__ import annotations

import asyncio
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from casque import BrokerQueue, InvalidError, NewJob, Queue
from casque.stores.callers_connection import driver_connection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def q(path: Path) -> Iterator[Queue]:
    with Queue(path) as queue:
        queue.stats()
        yield queue


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
    yield engine
    engine.dispose()


def ids(q: Queue) -> list[str]:
    return [job.id for job in q.read_state().jobs]


def orders(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as other:
        return [order for (order,) in other.execute("SELECT id FROM orders")]


# -- SQLAlchemy ----------------------------------------------------------------


def raw(engine: Engine) -> Any:
    return engine.raw_connection()


def scoped(engine: Engine) -> Any:
    return scoped_session(sessionmaker(engine))


KINDS: list[Callable[[Engine], Any]] = [Session, Engine.connect, raw, scoped]


@pytest.mark.parametrize("writes", [True, False], ids=["writes", "only enqueues"])
@pytest.mark.parametrize("kind", KINDS, ids=["session", "connection", "raw", "scoped_session"])
def test_a_job_shares_the_commit_and_the_rollback_of_sqlalchemy(
    path: Path, q: Queue, engine: Engine, kind: Callable[[Engine], Any], writes: bool
) -> None:
    connection = kind(engine)
    for end in ("rollback", "commit"):
        if writes:
            insert = "INSERT INTO orders VALUES (1)"
            if kind is raw:
                connection.cursor().execute(insert)
            else:
                connection.execute(text(insert))
        q.enqueue("e", id=f"one, {end}", connection=connection)
        q.enqueue_many([NewJob("e", id=f"many, {end}")], connection=connection)
        assert ids(q) == []
        getattr(connection, end)()
    connection.close()
    assert ids(q) == ["one, commit", "many, commit"]
    assert orders(path) == [1] * writes


def test_what_is_closed_without_a_commit_is_rolled_back(q: Queue, engine: Engine) -> None:
    with engine.connect() as connection:
        q.enqueue("e", connection=connection)
    with Session(engine) as session:
        q.enqueue("e", connection=session)
    with suppress(ZeroDivisionError), engine.begin() as connection:
        q.enqueue("e", connection=connection)
        _ = 1 / 0
    assert ids(q) == []


def test_a_block_of_sqlalchemy_commits_at_its_end(q: Queue, engine: Engine) -> None:
    with engine.begin() as connection:
        q.enqueue("e", id="connection", connection=connection)
    with Session(engine) as session, session.begin():
        q.enqueue("e", id="session", connection=session)
    assert ids(q) == ["connection", "session"]


def test_a_nested_block_that_fails_takes_its_jobs_with_it(
    path: Path, q: Queue, engine: Engine
) -> None:
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES (1)"))
        q.enqueue("e", id="outer", connection=session)
        with suppress(ZeroDivisionError), session.begin_nested():
            q.enqueue("e", id="inner", connection=session)
            _ = 1 / 0
        session.commit()
    assert (ids(q), orders(path)) == (["outer"], [1])


def test_a_connection_of_sqlalchemy_that_commits_by_itself_stores_at_once(
    q: Queue, engine: Engine
) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        q.enqueue("e", id="at once", connection=connection)
        assert ids(q) == ["at once"]


def test_the_async_session_joins_through_run_sync(path: Path, q: Queue, engine: Engine) -> None:
    async def test() -> None:
        sessions = create_async_engine(f"sqlite+aiosqlite:///{path}")
        async with BrokerQueue(path) as broker, AsyncSession(sessions) as session:
            for end in (session.rollback, session.commit):
                await session.execute(text("INSERT INTO orders VALUES (1)"))
                with warnings.catch_warnings():  # `q` is not async, which is right in here
                    warnings.simplefilter("error")
                    await session.run_sync(lambda sync: q.enqueue("e", id="job", connection=sync))
                assert await broker.get("job") is None
                await end()
            assert await broker.get("job") is not None
        await sessions.dispose()

    asyncio.run(test())
    assert (ids(q), orders(path)) == (["job"], [1])


def test_async_objects_are_refused_with_the_remedy(path: Path, q: Queue) -> None:
    async def test() -> None:
        sessions = create_async_engine(f"sqlite+aiosqlite:///{path}")
        scoped = async_scoped_session(async_sessionmaker(sessions), asyncio.current_task)
        async with (
            AsyncSession(sessions) as session,
            sessions.connect() as connection,
            BrokerQueue(path) as broker,
        ):
            for given in (session, connection, scoped, sessions):
                with pytest.raises(InvalidError, match=r"await session\.run_sync\(lambda"):
                    await broker.enqueue("e", connection=given)
        await scoped.remove()
        await sessions.dispose()

    asyncio.run(test())
    assert ids(q) == []


def test_an_engine_or_a_factory_is_refused_with_the_remedy(q: Queue, engine: Engine) -> None:
    with pytest.raises(InvalidError, match="An engine has no transaction: pass the Session or"):
        q.enqueue("e", connection=engine)
    for given in (sessionmaker(engine), Session, Connection):
        with pytest.raises(InvalidError, match="or a Session, Connection or"):
            q.enqueue("e", connection=given)


def test_a_closed_raw_connection_is_refused(q: Queue, engine: Engine) -> None:
    connection = engine.raw_connection()
    connection.close()
    with pytest.raises(InvalidError, match="is closed"):
        q.enqueue("e", connection=connection)


def test_an_engine_on_another_file_is_refused(q: Queue, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with Session(engine) as session, pytest.raises(InvalidError, match=r"other\.db, but this"):
        q.enqueue("e", connection=session)
    engine.dispose()


# -- Django, by its shape; tests/acceptance has a project ----------------------


class Wrapper:
    """A connection of Django: it opens its sqlite3 connection when it needs one."""

    def __init__(self, path: Path) -> None:
        self.connection: sqlite3.Connection | None = None
        self._path = path

    def ensure_connection(self) -> None:
        assert self.connection is None
        self.connection = sqlite3.connect(self._path, isolation_level=None)


def test_a_connection_of_django_is_opened_when_it_is_needed(path: Path, q: Queue) -> None:
    wrapper = Wrapper(path)
    q.enqueue("e", id="at once", connection=wrapper)
    assert ids(q) == ["at once"]
    assert wrapper.connection is not None
    wrapper.connection.execute("BEGIN")
    q.enqueue("e", id="gone", connection=wrapper)
    wrapper.connection.execute("ROLLBACK")
    wrapper.connection.execute("BEGIN")
    q.enqueue("e", id="kept", connection=wrapper)
    wrapper.connection.execute("COMMIT")
    assert ids(q) == ["at once", "kept"]
    wrapper.connection.close()


def test_a_transaction_that_django_will_roll_back_takes_no_job(path: Path, q: Queue) -> None:
    wrapper: Any = Wrapper(path)
    wrapper.in_atomic_block = wrapper.needs_rollback = True
    with pytest.raises(InvalidError, match="Django will roll back this transaction"):
        q.enqueue("e", connection=wrapper)
    wrapper.in_atomic_block = wrapper.needs_rollback = False
    q.enqueue("e", id="kept", connection=wrapper)
    assert ids(q) == ["kept"]
    wrapper.connection.close()


# -- anything else -------------------------------------------------------------


@pytest.mark.parametrize("given", [sqlite3, sqlite3.Connection, int, None.__class__])
def test_anything_else_is_refused_with_what_is_accepted(q: Queue, given: object) -> None:
    with pytest.raises(InvalidError, match=r"must be a sqlite3\.Connection, Django's `connection`"):
        q.enqueue("e", connection=given)


def test_a_connection_to_another_database_is_refused(q: Queue) -> None:
    given = SimpleNamespace(driver_connection=5j)
    with pytest.raises(InvalidError, match=r"SimpleNamespace leads to a complex: a job can only"):
        q.enqueue("e", connection=given)


def test_the_drivers_own_connection_is_used_as_it_is() -> None:
    class Own(sqlite3.Connection):
        connection = None

        def ensure_connection(self) -> None:
            raise AssertionError

    with closing(sqlite3.connect(":memory:", factory=Own)) as given:
        assert driver_connection(given, sqlite3.Connection) is given
