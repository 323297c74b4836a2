"""How a worker keeps its jobs, whatever happens to clocks and storage."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from casque import (
    App,
    JobNotFoundError,
    JobStatus,
    LeaseLostError,
    Queue,
    StorageError,
    current_job,
)
from casque.rules.operations import Ack
from casque.stores.sqlite.store import SqliteStore
from casque.stores.url import open_store
from casque.system.clock import SystemClock, span_us
from casque.tasks import app_store
from casque.testing import FakeClock
from casque.testing.faults import STORE_FAULTS, Fault, FaultyStore
from casque.worker.attempt import Returned, RunningAttempt
from casque.worker.messages import Settlement, answered
from tests.worker.apps import (
    AT_ONCE,
    PATIENCE,
    SECOND,
    SOON,
    STORES,
    beside,
    hasten,
    heartbeat_us,
    on_disk,
    renewed_for,
    run_until_idle,
    until,
    wait_for,
)

app = pytest.fixture(params=STORES)(on_disk)
LEASE = timedelta(seconds=6)
LEASE_US = span_us(LEASE)
DAY = timedelta(days=1)


class Steady(FakeClock):
    """It advances only when the test says so: waiting for a lock takes real time."""

    async def sleep(self, span: int, *, blocking: bool) -> None:
        await SystemClock().sleep(span, blocking=blocking)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The time of every store that an app opens: leases end when the test says so."""
    clock = Steady()
    monkeypatch.setattr(app_store, "open_store", partial(open_store, clock=clock))
    return clock


def test_a_task_slower_than_its_lease_runs_once(clock: FakeClock, app: App) -> None:
    runs: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    async def slow() -> None:
        runs.append(current_job().attempt)
        begun.set()
        await asyncio.to_thread(go_on.wait, PATIENCE)

    handle = slow.enqueue()
    with beside(app, lease_us=LEASE_US), beside(app, lease_us=LEASE_US):
        until(begun)
        renewed_for(3, LEASE, clock, app, handle.id)
        go_on.set()
        wait_for("it is done", lambda: handle.job().status is JobStatus.COMPLETED)
    assert runs == [1]


def test_leases_are_renewed_at_once_when_the_clock_steps(clock: FakeClock, app: App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def slow() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    handle = slow.enqueue()

    def is_renewed_since(before: int | None) -> bool:
        clock.advance(SECOND)
        return heartbeat_us(app, handle.id) != before

    with beside(app, lease_us=span_us(DAY)):
        until(begun)
        for _ in range(2):  # a beat is due every 8 hours, which do not pass here
            before = heartbeat_us(app, handle.id)
            clock.jump(DAY)
            wait_for("it is renewed", lambda: is_renewed_since(before))  # noqa: B023 - at once
        go_on.set()
        wait_for("it is done", lambda: handle.job().status is JobStatus.COMPLETED)


def test_a_task_that_blocks_the_loop_longer_than_its_lease_runs_once(
    clock: FakeClock, app: App
) -> None:
    runs: list[int] = []
    blocked, go_on = threading.Event(), threading.Event()

    @app.task
    def other() -> None: ...

    @app.task
    async def blocks() -> None:
        runs.append(current_job().attempt)
        enqueueing = asyncio.ensure_future(other.aenqueue())
        for _ in range(5):
            await asyncio.sleep(0)  # the enqueue is under way, and will not continue
        blocked.set()
        go_on.wait(PATIENCE)
        await enqueueing

    handle = blocks.enqueue()
    with beside(app, lease_us=LEASE_US), beside(app, lease_us=LEASE_US):
        until(blocked)
        renewed_for(3, LEASE, clock, app, handle.id)
        go_on.set()
        wait_for("it is done", lambda: handle.job().status is JobStatus.COMPLETED)
    assert runs == [1]


def test_the_task_of_a_cancelled_job_is_ended(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)
    begun, ended = threading.Event(), threading.Event()

    @app.task
    async def long() -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.set()

    with beside(app):
        handle = long.enqueue()
        until(begun)
        handle.cancel(reason="enough")
        until(ended)
    assert handle.job().status is JobStatus.CANCELLED


@pytest.mark.parametrize("app", ["sqlite"], indirect=True)
def test_a_thread_can_ask_whether_its_job_is_lost(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(monkeypatch)
    begun, saw = threading.Event(), threading.Event()

    @app.task
    def long() -> None:
        begun.set()
        while not current_job().is_lost:
            time.sleep(0.01)
        saw.set()

    with beside(app):
        handle = long.enqueue()
        until(begun)
        handle.cancel()
        until(saw)
    assert f"job {handle.id}" in caplog.text
    assert "the lease was lost" in caplog.text


def _noting(runs: list[int]) -> Callable[[int], Coroutine[Any, Any, None]]:
    async def task(number: int) -> None:
        runs.append(number)

    return task


@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_one_lost_request_or_reply_anywhere_neither_loses_nor_doubles_a_job(
    tmp_path: Path, fault: Fault
) -> None:
    for nth in count(1):
        path = tmp_path / f"{nth}.db"
        store = FaultyStore(SqliteStore(path), fault, nth)
        app = App(store)
        runs: list[int] = []

        task = app.task(_noting(runs))

        with Queue(path) as q:
            q.enqueue_many([task.job(number) for number in range(5)])
        run_until_idle(app, concurrency=2)
        assert sorted(runs) == list(range(5)), f"{fault.name} of commit {nth}"
        with Queue(path) as q:
            assert q.stats().completed == 5
        if not store.fired:
            return


class Away(SqliteStore):
    """A store that fails for a while."""

    is_away = False
    asked = 0

    def commit_now(self, *args: Any) -> list[Any]:
        if self.is_away:
            self.asked += 1
            raise StorageError("nobody there", outcome_unknown=False)
        return super().commit_now(*args)


def test_a_storage_that_fails_for_a_while_loses_no_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Away(tmp_path / "jobs.db")
    app = App(store)
    begun, go_on = threading.Event(), threading.Event()

    @app.task(backoff=AT_ONCE)
    def task() -> int:
        begun.set()
        go_on.wait(PATIENCE)
        return current_job().attempt

    with beside(app):
        handle = task.enqueue()
        until(begun)
        store.is_away = True
        begun_us = store.clock.monotonic()
        go_on.set()
        wait_for("it is asked again", lambda: store.asked >= 3)
        assert store.clock.monotonic() - begun_us > 100_000, "it does not pause between tries"
        store.is_away = False
        assert handle.result(timeout=SOON) == 1
    assert caplog.text.count("the storage failed") == 1
    assert caplog.text.count("the storage answers again") == 1


def test_a_storage_that_fails_for_a_whole_lease_ends_running_tasks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(monkeypatch)
    clock = FakeClock()
    store = Away(tmp_path / "jobs.db", clock=clock)
    app = App(store)
    begun, ended = threading.Event(), threading.Event()

    @app.task
    async def task() -> str:
        if current_job().attempt > 1:
            return "again"
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.set()
        return "first"

    handle = task.enqueue()
    with beside(app, lease_us=LEASE_US):
        until(begun)
        store.is_away = True
        clock.advance(LEASE)
        until(ended)
        store.is_away = False
        while handle.job().status is not JobStatus.COMPLETED:
            clock.advance(SECOND)  # it pauses between tries
            time.sleep(0.01)
    assert handle.result() == "again"
    assert "no heartbeat succeeded" in caplog.text


@pytest.mark.parametrize("refusal", [JobNotFoundError(), LeaseLostError()])
def test_an_outcome_stored_without_an_answer_is_not_taken_for_lost(
    tmp_path: Path, refusal: Exception
) -> None:
    app = App(tmp_path / "jobs.db")

    @app.task
    def task() -> None: ...

    job = app.queue.enqueue("task")
    attempt = RunningAttempt(job, app.tasks["task"], app.store.clock)
    one = Settlement(attempt, Returned(None), Ack(job.id, 1))
    assert answered(one, refusal) == (one, refusal)
    one.is_unsure = True
    assert answered(one, refusal) == (one, None)
    app.close()
