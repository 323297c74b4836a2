"""Apps for the tests of workers, and a way to run one beside the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casque import App, Backoff
from casque.worker.loop import Ended, Worker
from casque.worker.options import WorkerOptions

AT_ONCE = Backoff(base=timedelta(0))
SHORT = 300_000
"""A lease, in microseconds, that is over soon."""
SAFE = 1_500_000
"""One that is not over while a busy machine does something else."""
SECOND = timedelta(seconds=1)
SOON = timedelta(seconds=10)
STORES = {"sqlite": "jobs.db", "json": "queue.json", "folder": "ledger/"}


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
    assert condition.wait(20)


def work_off(app: App, **options: Any) -> Ended:
    """Work until nothing is due."""
    return Worker(app, WorkerOptions(until_idle=True, **options)).run()


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

    def join(self, seconds: float = 20) -> Ended:
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
        worker.join(60)
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
