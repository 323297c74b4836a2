"""A worker's entry: it is kept up to date, and a worker can be dismissed by its name."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from casque import App, JobStatus
from casque.cli.store import Access
from casque.record import DISMISSAL, WORKER, Record
from casque.rules.operations import DeleteRecord, Operation
from casque.stores.memory import MemoryStore
from casque.stores.port import Store
from casque.system.clock import drive
from casque.testing import FakeClock
from casque.testing.relays import Turnstile
from casque.worker.registry import process_identity
from casque.worker.registry.entries import WorkerEntry, dismissal, worker_entries
from casque.worker.worker import Ended
from tests.worker.apps import (
    PATIENCE,
    SECOND,
    STORES,
    beside,
    hasten,
    until,
    wait_for,
)

LONG = 600_000_000
"""A lease, in microseconds, so long that no third of it passes during a test."""
SHORT = 60_000_000
"""A lease whose beats, after `hasten`, come soon."""
ANYWHERE = pytest.mark.parametrize("app", STORES, indirect=True)


@pytest.fixture(params=["sqlite"])
def app(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[App]:
    hasten(monkeypatch)
    with App(f"{tmp_path}/{STORES[request.param]}") as app:

        @app.task
        def task() -> None: ...

        yield app


def records(app: App) -> list[Record]:
    with Access(app.store) as access:
        return access.records(WORKER)


def orders(app: App) -> list[Record]:
    with Access(app.store) as access:
        return access.records(DISMISSAL)


def commit(store: Store, made_of: Callable[[WorkerEntry], Operation]) -> None:
    """Submit an operation made from the entry of the only worker."""
    with Access(store) as access:
        wait_for("it is there", lambda: access.records(WORKER))
        [entry] = worker_entries(access.records(WORKER))
        access.submit(made_of(entry))


@ANYWHERE
def test_a_dismissed_worker_stops_at_its_next_beat(app: App) -> None:
    with beside(app, lease_us=SHORT) as worker:
        commit(app.store, dismissal)
        assert worker.join() is Ended.DISMISSED
    assert records(app) == orders(app) == []


def test_a_dismissed_worker_finishes_its_job_and_claims_no_other(app: App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def slow() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    def entry() -> WorkerEntry:
        [found] = worker_entries(records(app))
        return found

    handle = slow.enqueue()
    with beside(app, lease_us=SHORT, concurrency=1) as worker:
        until(begun)
        later = slow.enqueue()
        commit(app.store, dismissal)
        beat = entry().beat_at
        # It keeps renewing its entry, which keeps showing the dismissal.
        wait_for("it beats", lambda: entry().beat_at > beat and entry().is_dismissed)
        go_on.set()
        assert worker.join() is Ended.DISMISSED
    assert records(app) == []
    assert handle.job().status is JobStatus.COMPLETED
    assert (later.job().status, later.job().attempts) == (JobStatus.QUEUED, 0)


def test_a_stopping_worker_finds_its_dismissal_at_its_end(app: App) -> None:
    with beside(app, lease_us=LONG) as worker:
        commit(app.store, dismissal)
        worker.worker.stop()
        assert worker.join() is Ended.DISMISSED
    assert records(app) == []


def test_a_worker_that_renews_late_still_finds_its_dismissal() -> None:
    clock = FakeClock()
    inner = MemoryStore(clock)
    store = Turnstile(inner)
    app = App(store)

    @app.task
    def task() -> None: ...

    with beside(app, lease_us=1_000_000) as worker:
        wait_for("it is there", lambda: drive(inner.records(WORKER)))
        store.gate.clear()
        commit(inner, dismissal)
        clock.advance(3 * SECOND)
        store.gate.set()
        assert worker.join() is Ended.DISMISSED


def test_an_entry_lists_the_jobs_left_to_finish(app: App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def slow() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    handle = slow.enqueue()
    with beside(app, lease_us=LONG) as worker:
        until(begun)
        worker.worker.stop()
        wait_for("it says so", lambda: worker_entries(records(app))[0].running == (handle.id,))
        go_on.set()
        assert worker.join() is Ended.STOPPED


def test_a_worker_restores_its_entry_after_a_removal(app: App) -> None:
    with beside(app, lease_us=SHORT) as worker:
        commit(app.store, lambda entry: DeleteRecord(WORKER, entry.name, None))
        wait_for("it is there", lambda: records(app))
        worker.worker.stop()
        assert worker.join() is Ended.STOPPED
    assert records(app) == []


def test_an_entry_identifies_its_process(app: App) -> None:
    with beside(app, lease_us=LONG, grace_us=7_000_000):
        wait_for("it is there", lambda: records(app))
        [entry] = worker_entries(records(app))
    vitals = process_identity.vitals(os.getpid())
    assert vitals is not None
    assert (entry.pid, entry.birth) == (os.getpid(), vitals.birth)
    assert (entry.supervisor, entry.lease_us, entry.grace_us) == (None, LONG, 7_000_000)
    assert entry.is_here
    assert not entry.is_gone


def test_an_entry_of_an_older_version_can_be_read() -> None:
    old = b"""{"name": "a", "host": "h", "pid": 1, "started_at": "2026-01-01T00:00:00Z",
        "beat_at": "2026-01-01T00:00:00Z", "concurrency": 1, "queues": null,
        "entrypoints": [], "running": []}"""
    entry = msgspec.json.decode(old, type=WorkerEntry)
    assert (entry.supervisor, entry.is_dismissed, entry.is_here) == (None, False, False)


def test_a_worker_polls_as_often_as_its_options_say() -> None:
    store = Turnstile(MemoryStore())  # it rings, so without `poll_us` it is never polled
    app = App(store)

    @app.task
    def task() -> None: ...

    with beside(app, poll_us=10_000, lease_us=LONG):
        wait_for("it asks", lambda: store.commits > 10)
