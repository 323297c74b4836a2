"""Caller's connection: finds the driver's connection in an object of Django or SQLAlchemy.

The objects are recognised by their attributes, so neither library is imported.
"""

from __future__ import annotations

from typing import Any, TypeVar

from casque.errors import InvalidError

Driver = TypeVar("Driver")


def driver_connection(connection: object, driver: type[Driver]) -> Driver:
    """Return the driver's connection that `connection` is or holds.

    A Session or a Connection of SQLAlchemy begins its transaction, as its own statements would.
    Raises InvalidError, with the remedy, if there is no connection of this driver inside.
    """
    if isinstance(connection, driver):
        return connection
    _refuse_async(connection)
    found = _inside(connection)
    if isinstance(found, driver):
        return found
    wanted = f"{driver.__module__}.{driver.__qualname__}"
    if found is None:
        raise InvalidError(f"`connection` cannot be used here: this {_name(connection)} is closed.")
    if found is not connection:
        raise InvalidError(
            f"`connection` must lead to a {wanted}, and this {_name(connection)} leads to a "
            f"{_name(found)}: a job can only join a transaction on the queue's own database."
        )
    raise InvalidError(
        f"`connection` must be a {wanted}, Django's `connection`, or a Session, Connection or "
        f"`engine.raw_connection()` of SQLAlchemy; got {_name(connection)}.{_hint(connection)}"
    )


def _inside(given: Any) -> Any:
    """The connection that an object of Django or SQLAlchemy holds; else the object itself."""
    if isinstance(given, type):
        return given
    if hasattr(given, "ensure_connection"):  # Django's
        if getattr(given, "in_atomic_block", False) and getattr(given, "needs_rollback", False):
            raise InvalidError(
                "Django will roll back this transaction, because an error happened in it, so the "
                "job would be lost. Catch the error outside of the `atomic()` block, or put the "
                "statement that may fail into an `atomic()` block of its own."
            )
        if given.connection is None:
            _open(given)
        return given.connection
    if hasattr(given, "get_bind") and hasattr(given, "connection"):  # SQLAlchemy's Session
        given = given.connection()
    if hasattr(given, "exec_driver_sql"):  # SQLAlchemy's Connection
        if not given.in_transaction():
            # Without this, its `commit` would do nothing, and its `close` would roll back.
            given.begin()
        given = given.connection
    if hasattr(given, "driver_connection"):  # SQLAlchemy's raw connection
        driver = given.driver_connection
        # aiosqlite's connection, inside `run_sync`: its own thread is idle meanwhile.
        return getattr(driver, "_conn", driver)
    return given


def _open(given: Any) -> None:
    try:
        given.ensure_connection()
    except Exception as error:
        if type(error).__name__ != "SynchronousOnlyOperation":
            raise
        raise InvalidError(
            "`connection` is Django's, which does not work in the thread of an event loop. Enqueue "
            "where its transaction is, in a plain function, and await that by `sync_to_async`: in "
            "it, `task.using(connection=connection).enqueue(…)`.",
            cause=error,
        ) from error


def _refuse_async(given: object) -> None:
    kind = type(given)
    if hasattr(kind, "run_sync") or kind.__module__.startswith("sqlalchemy.ext.asyncio"):
        raise InvalidError(
            f"`connection` must not be async; got {_name(given)}. Enqueue in its `run_sync`: "
            "`await session.run_sync(lambda sync: task.using(connection=sync).enqueue(…))`."
        )


def _hint(given: object) -> str:
    if hasattr(given, "raw_connection"):
        return " An engine has no transaction: pass the Session or Connection that you write with."
    if type(given).__module__.startswith("django."):
        return " Pass `django.db.connection`, or `connections['default']`."
    return ""


def _name(value: object) -> str:
    kind = value if isinstance(value, type) else type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"
