"""Waiting: a dequeue that is certain to wait, without a sleep; and closing stores."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from casque import Job, Queue, Store
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import drive

LONG = timedelta(minutes=10)
HOUR = timedelta(hours=1)
PROMPTLY = 60
"""Seconds; far below the ten minutes for which the dequeues wait."""


@contextmanager
def waiting_dequeue(q: Queue, wait: timedelta = LONG) -> Iterator[Future[list[Job]]]:
    """A waiting dequeue, once the thread that watches for other processes has checked once."""
    store = q.store
    assert isinstance(store, SqliteStore)
    q.enqueue("later", delay=HOUR)
    assert q.dequeue(queue="default") == []
    before = store.touched
    assert q.dequeue(queue="default") == []
    once = store.touched - before
    assert once > 0
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(q.dequeue, queue="default", wait=wait)
        # It asks at the start, and again when the watch begins: its first check counts as a change.
        while store.touched < before + 3 * once and not future.done():
            pass
        yield future


def remove(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)


@contextmanager
def closed_behind(store: Store) -> Iterator[None]:
    """Close a store at the end: a queue does not close a store that the caller passed."""
    try:
        yield
    finally:
        drive(store.close())
