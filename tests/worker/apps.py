"""Apps for the tests of workers, and helpers that run a worker beside the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casque import App, Backoff
from casque.tasks.app import TaskApp
from casque.testing import FakeClock
from casque.worker import store_thread
from casque.worker import worker as loop
from casque.worker.options import WorkerOptions
from casque.worker.worker import Ended, Worker

AT_ONCE = Backoff(base=timedelta(0))
PATIENCE = 100.0
"""How many seconds to wait for something that must happen, on however busy a machine."""
SECOND = timedelta(seconds=1)
SOON = timedelta(seconds=PATIENCE)
STORES = {"sqlite": "jobs.db", "json": "queue.json", "folder": "ledger/"}
WAYS = ("sqlite", "json")
"""A store whose calls block, and one whose calls suspend: a worker calls them differently.

Tests of the worker's own decisions use these; tests of what stores do use all.
"""


def hasten(patch: pytest.MonkeyPatch) -> None:
    """Make heartbeats and checks frequent, without making leases shorter.

    So the effect of a heartbeat comes soon, and no busy machine loses a lease.
    """
    patch.setattr(store_thread, "BEATS_PER_LEASE", 600)
    patch.setattr(loop, "_LONGEST_LOOK_SECONDS", 0.05)


def in_memory() -> Iterator[App]:
    """An app that no other process sees; used as a fixture."""
    with App("memory://") as app:
        yield app


def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on each of STORES; used as a fixture."""
    place = STORES[request.param]
    with App(f"{tmp_path}/{place}") as app:
        yield app


def until(condition: threading.Event) -> None:
    assert condition.wait(PATIENCE)


def wait_for(what: str, happened: Callable[[], object], within: float = PATIENCE) -> None:
    """Wait until `happened` returns something true; fail when the time is over."""
    end = time.monotonic() + within
    while not happened():
        assert time.monotonic() < end, f"not within {within:g} s: {what}"
        time.sleep(0.005)


def run_until_idle(app: TaskApp, **options: Any) -> Ended:
    """Run a worker until no job is due."""
    return Worker(app, WorkerOptions(until_idle=True, **options)).run()


def renewed_for(leases: int, lease: timedelta, clock: FakeClock, app: App, id: str) -> None:
    """Let this many leases pass; the worker that holds the job must renew at every beat."""
    for _ in range(leases * store_thread.BEATS_PER_LEASE):
        before = heartbeat_us(app, id)
        clock.advance(lease / store_thread.BEATS_PER_LEASE)
        wait_for("the lease is renewed", lambda: heartbeat_us(app, id) != before)  # noqa: B023


def heartbeat_us(app: App, id: str) -> int | None:
    job = app.queue.get(id)
    assert job is not None
    return job.heartbeat_us


class Beside:
    """A worker on a separate thread."""

    def __init__(self, app: App, options: WorkerOptions) -> None:
        self.worker = Worker(app, options)
        self.ended: Ended | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.ended = self.worker.run()
        except BaseException as error:  # noqa: BLE001 - raised by `join`
            self.error = error

    def join(self, seconds: float = PATIENCE) -> Ended:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the worker does not end"
        if self.error is not None:
            raise self.error
        assert self.ended is not None
        return self.ended


def run_until_idle_in_time(app: App) -> None:
    """Run a worker until no job is due, and fail if it does not end."""
    worker = Beside(app, WorkerOptions(until_idle=True))
    try:
        worker.join()
    finally:
        worker.worker.stop_now()
        worker.join()


@contextmanager
def beside(app: App, options: WorkerOptions | None = None, **changes: Any) -> Iterator[Beside]:
    """A worker beside the test, stopped at the end."""
    given = msgspec.structs.replace(options or WorkerOptions(), **changes)
    worker = Beside(app, given)
    try:
        yield worker
    finally:
        worker.worker.stop_now()
        worker.join()
