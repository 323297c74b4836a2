"""How a worker starts, registers and ends."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest
from msgspec.structs import asdict

from casque import App, InvalidError, JobStatus, Queue, current_job
from casque.admin import requests
from casque.record import WORKER
from casque.worker import store_thread
from casque.worker.options import WorkerOptions
from casque.worker.registry.entries import WorkerEntry, worker_entries
from casque.worker.worker import Ended, Worker
from tests.worker.apps import (
    PATIENCE,
    SOON,
    WAYS,
    Beside,
    beside,
    hasten,
    on_disk,
    run_until_idle,
    until,
    wait_for,
)

app = pytest.fixture(params=WAYS)(on_disk)
on_one = pytest.mark.parametrize("app", ["sqlite"], indirect=True)


@on_one
def test_a_worker_without_tasks_is_refused(app: App) -> None:
    with pytest.raises(InvalidError, match="has no tasks"):
        Worker(app)


@on_one
def test_a_worker_inside_an_event_loop_is_refused(app: App) -> None:
    @app.task
    def task() -> None: ...

    async def inside() -> None:
        Worker(app).run()

    with pytest.raises(InvalidError, match="its own event loop"):
        asyncio.run(inside())


def test_a_worker_is_in_the_registry_while_it_works(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(monkeypatch)
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def slow() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    def entries() -> list[WorkerEntry]:
        with Queue(app.store) as q:
            return worker_entries(q._run(q._live._session.records(WORKER)))

    with beside(app, concurrency=3, queues=("default",)):
        handle = slow.enqueue()
        until(begun)
        wait_for("it lists what it runs", lambda: [one for one in entries() if one.running])
        [entry] = entries()
        assert entry.running == (handle.id,)
        assert (entry.concurrency, entry.queues, entry.entrypoints) == (3, ("default",), ("slow",))
        first = entry.beat_at
        wait_for("it beats", lambda: entries()[0].beat_at != first)
        go_on.set()
    assert entries() == []


def test_a_stopping_worker_lets_running_jobs_finish(app: App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    async def slow() -> str:
        begun.set()
        await asyncio.to_thread(go_on.wait, PATIENCE)
        return "ended"

    with beside(app, concurrency=1) as worker:
        first, second = slow.enqueue(), slow.enqueue()
        until(begun)
        worker.worker.stop()
        go_on.set()
        assert worker.join() is Ended.STOPPED
    assert first.result(timeout=SOON) == "ended"
    assert second.job().status is JobStatus.QUEUED
    assert second.job().attempts == 0


@pytest.mark.parametrize("kind", ["async", "stubborn", "thread"])
def test_a_job_that_outlasts_the_grace_is_released_uncounted(
    app: App, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_thread, "CANCEL_SECONDS", 0.1)
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    async def sleeps() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE)

    @app.task
    async def stubborn() -> None:
        begun.set()
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    @app.task
    def thread() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    task = {"async": sleeps, "stubborn": stubborn, "thread": thread}[kind]
    worker = Beside(app, WorkerOptions(grace_us=100_000))
    handle = task.enqueue()
    until(begun)
    worker.worker.stop()
    assert worker.join() is Ended.STOPPED
    go_on.set()
    job = handle.job()
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)


def test_a_worker_logs_its_requests_to_a_bucket_when_it_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for place, lines in ((f"{tmp_path}/ledger/", 1), (f"{tmp_path}/jobs.db", 0)):
        caplog.clear()
        with App(place) as app:

            @app.task
            def task() -> None: ...

            task.enqueue()
            run_until_idle(app)
            sent = requests(app.store)
        said = [one for one in caplog.records if getattr(one, "event", "") == "sent"]
        assert len(said) == lines
        if sent is not None:
            assert vars(said[0])["requests"] == asdict(sent)
            assert f"sent {sent.total} requests to the bucket: {sent}" in said[0].getMessage()


def test_stop_now_releases_jobs_at_once(app: App) -> None:
    begun = threading.Event()

    @app.task
    async def sleeps() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE)

    worker = Beside(app, WorkerOptions())
    handle = sleeps.enqueue()
    until(begun)
    worker.worker.stop()
    worker.worker.stop_now()
    assert worker.join() is Ended.STOPPED
    assert handle.job().attempts == 0


@on_one
def test_a_worker_that_is_stopped_before_it_runs_ends(app: App) -> None:
    @app.task
    def task() -> None: ...

    worker = Worker(app)
    worker.stop()
    assert worker.run() is Ended.STOPPED


def test_a_worker_ends_after_max_jobs_to_be_replaced(app: App) -> None:
    @app.task
    async def task() -> None: ...

    app.enqueue_many([task.job() for _ in range(10)])
    assert run_until_idle(app, max_jobs=7, concurrency=4) is Ended.RECYCLED
    assert app.queue.stats().completed == 7
    assert app.queue.stats().pending == 3


@on_one
def test_the_last_job_before_a_worker_is_replaced_has_all_its_time(app: App) -> None:
    ended: list[int] = []

    @app.task
    async def slow() -> None:
        await asyncio.sleep(0.5)
        ended.append(current_job().attempt)

    handle = slow.enqueue()
    assert run_until_idle(app, max_jobs=1, grace_us=100_000) is Ended.RECYCLED
    assert ended == [1]
    assert handle.job().status is JobStatus.COMPLETED


@on_one
def test_a_worker_that_awaits_its_replacement_can_still_be_stopped(app: App) -> None:
    begun = threading.Event()

    @app.task
    async def endless() -> None:
        begun.set()
        await asyncio.sleep(600)

    handle = endless.enqueue()
    with beside(app, max_jobs=1, grace_us=100_000) as worker:
        until(begun)
        worker.worker.stop()
        worker.join()
    job = handle.job()
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)


@on_one
def test_a_worker_above_max_mib_ends_to_be_replaced(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(monkeypatch)

    @app.task
    async def task() -> None: ...

    with beside(app, max_mib=1) as worker:
        assert worker.join() is Ended.RECYCLED
