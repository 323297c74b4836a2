"""Apps for the tests of workers, and a way to run one beside the test."""

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
"""Seconds after which something that must happen has not, on however busy a machine."""
SECOND = timedelta(seconds=1)
SOON = timedelta(seconds=PATIENCE)
STORES = {"sqlite": "jobs.db", "json": "queue.json", "folder": "ledger/"}
WAYS = ("sqlite", "json")
"""A store whose calls block, and one whose calls suspend: a worker speaks to each in its own way.

What a worker decides by itself is tested on these, and what stores do on all.
"""


def hasten(patch: pytest.MonkeyPatch) -> None:
    """Heartbeats and looks come often, while leases stay as long as they are.

    Whatever a heartbeat brings is there soon, and no busy machine loses a lease.
    """
    patch.setattr(store_thread, "BEATS_PER_LEASE", 600)
    patch.setattr(loop, "_LONGEST_LOOK_SECONDS", 0.05)


def in_memory() -> Iterator[App]:
    """An app that no other process sees; to be made a fixture."""
    with App("memory://") as app:
        yield app


def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on each of STORES; to be made a fixture."""
    place = STORES[request.param]
    with App(f"{tmp_path}/{place}") as app:
        yield app


def until(condition: threading.Event) -> None:
    assert condition.wait(PATIENCE)


def wait_for(what: str, happened: Callable[[], object], within: float = PATIENCE) -> None:
    """Look for it again and again."""
    end = time.monotonic() + within
    while not happened():
        assert time.monotonic() < end, f"not within {within:g} s: {what}"
        time.sleep(0.005)


def work_off(app: TaskApp, **options: Any) -> Ended:
    """Work until nothing is due."""
    return Worker(app, WorkerOptions(until_idle=True, **options)).run()


def renewed_for(leases: int, lease: timedelta, clock: FakeClock, app: App, id: str) -> None:
    """Let so many leases pass; the worker that has the job must use every beat of theirs."""
    for _ in range(leases * store_thread.BEATS_PER_LEASE):
        before = heartbeat_us(app, id)
        clock.advance(lease / store_thread.BEATS_PER_LEASE)
        wait_for("the lease is renewed", lambda: heartbeat_us(app, id) != before)  # noqa: B023


def heartbeat_us(app: App, id: str) -> int | None:
    job = app.queue.get(id)
    assert job is not None
    return job.heartbeat_us


class Beside:
    """A worker on a thread of its own."""

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


def work_off_in_time(app: App) -> None:
    """Let a worker do all that is due, which it must come to the end of."""
    worker = Beside(app, WorkerOptions(until_idle=True))
    try:
        worker.join()
    finally:
        worker.worker.stop_now()
        worker.join()


@contextmanager
def beside(app: App, options: WorkerOptions | None = None, **changes: Any) -> Iterator[Beside]:
    """A worker beside the test; stopped at its end."""
    given = msgspec.structs.replace(options or WorkerOptions(), **changes)
    worker = Beside(app, given)
    try:
        yield worker
    finally:
        worker.worker.stop_now()
        worker.join()
