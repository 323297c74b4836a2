"""A worker survives what tasks do to it."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import App, JobStatus, NewJob
from casque.worker.attempt import RunningAttempt
from casque.worker.logging.events import Report
from casque.worker.options import WorkerOptions
from casque.worker.worker import Ended
from tests.worker.apps import (
    AT_ONCE,
    PATIENCE,
    SECOND,
    SOON,
    Beside,
    beside,
    in_memory,
    run_until_idle,
    until,
)

app = pytest.fixture(in_memory)


@pytest.mark.parametrize("payload", [b'{"\xff": 1}', b"[" * 100_000, b'{"n": ' + b"[" * 100_000])
def test_a_job_whose_payload_cannot_be_decoded_is_dead(app: App, payload: bytes) -> None:
    @app.task
    def task(n: Any = None) -> None: ...

    [job] = app.queue.enqueue_many([NewJob("task", payload)])
    after = task.enqueue()
    run_until_idle(app, concurrency=1)
    found = app.queue.get(job.id)
    assert found is not None
    assert found.status is JobStatus.DEAD
    assert after.job().status is JobStatus.COMPLETED


async def _raises_beside(error: BaseException) -> None:
    async def beside_it() -> None:
        raise error

    asyncio.ensure_future(beside_it())  # noqa: RUF006 - nobody awaits it
    await asyncio.sleep(0.05)


async def _stops_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)


async def _cancels_everything() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "mischief",
    [
        functools.partial(_raises_beside, SystemExit(3)),
        functools.partial(_raises_beside, KeyboardInterrupt()),
        _stops_the_loop,
        _cancels_everything,
    ],
    ids=["SystemExit", "KeyboardInterrupt", "stop", "cancel"],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_task_that_interrupts_the_event_loop_harms_no_other(
    app: App, mischief: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    @app.task(backoff=AT_ONCE, max_attempts=2)
    async def bad() -> None:
        await mischief()

    @app.task(backoff=AT_ONCE)
    async def good() -> str:
        await asyncio.sleep(0.01)
        return "done"

    with beside(app):
        handles = [good.enqueue(), app.enqueue("bad"), good.enqueue()]
        for handle in (handles[0], handles[2]):
            assert handle.result(timeout=SOON) == "done"
        assert good.enqueue().result(timeout=SOON) == "done"


BLOCKED = """
import asyncio, time
from casque import App
from casque.worker import store_thread

store_thread.CANCEL_SECONDS = 0.1
app = App("jobs.db")

@app.task
async def blocks():
    print("blocked", flush=True)
    time.sleep(100)

@app.task
async def waits():
    await asyncio.sleep(100)
"""


def test_a_blocked_event_loop_does_not_prevent_a_clean_stop(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(BLOCKED)
    app = App(tmp_path / "jobs.db")
    jobs = app.queue.enqueue_many([NewJob("waits", b"{}"), NewJob("blocks", b"{}")])
    command = [sys.executable, "-m", "casque.worker", "tasks:app", "--grace", "0.1"]
    worker = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "blocked\n"
    worker.terminate()
    try:
        assert worker.wait(PATIENCE) == 0
    finally:
        worker.kill()
        worker.stdout.close()
    for job in jobs:
        found = app.queue.get(job.id)
        assert found is not None
        assert (found.status, found.attempts) == (JobStatus.QUEUED, 0)
    app.close()


def test_a_function_that_ended_in_time_is_done_however_late_the_loop_is(app: App) -> None:
    ended = threading.Event()

    @app.task(timeout=SECOND / 2)
    def quick() -> None:
        ended.set()

    @app.task
    async def blocks() -> None:
        ended.wait(PATIENCE)
        time.sleep(1)

    # Enqueued before the worker starts, so both start together: no timer fires before the block.
    handle, other = quick.enqueue(), blocks.enqueue()
    with beside(app):
        other.result(timeout=SOON)
        handle.result(timeout=SOON)
    assert handle.job().attempts == 1


@pytest.mark.parametrize("how", ["stopped", "timed out"])
def test_a_function_that_finishes_while_it_is_cancelled_is_completed(app: App, how: str) -> None:
    begun = threading.Event()
    options: Any = {"timeout": timedelta(seconds=0.2)} if how == "timed out" else {}

    @app.task(**options)
    async def tidy() -> str:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            return "tidied up"
        return "slept"

    worker = Beside(app, WorkerOptions(grace_us=50_000))
    handle = tidy.enqueue()
    until(begun)
    if how == "stopped":
        worker.worker.stop()
        worker.join()
    assert handle.result(timeout=SOON) == "tidied up"
    worker.worker.stop_now()
    worker.join()


def test_a_thread_that_ends_as_it_times_out_frees_its_slot_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, goes_on = threading.Event(), Report.goes_on

    def late(report: Report, attempt: RunningAttempt, why: str) -> None:
        release.set()
        while not attempt.is_over:
            time.sleep(0.001)
        goes_on(report, attempt, why)

    monkeypatch.setattr(Report, "goes_on", late)
    lock, now, most = threading.Lock(), [0], [0]

    @app.task(timeout=timedelta(milliseconds=50), max_attempts=1)
    def stuck() -> None:
        release.wait(PATIENCE)

    @app.task
    def counts() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1

    with beside(app, concurrency=1):
        handle = stuck.enqueue()
        with pytest.raises(Exception, match="timed out"):
            handle.result(timeout=SOON)
        for one in [counts.enqueue() for _ in range(5)]:
            one.result(timeout=SOON)
    assert most[0] == 1


def test_a_plain_wrapper_around_an_async_function_is_run(app: App) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    @app.task
    @functools.wraps(double)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return double(*args, **kwargs)

    handle: Any = wrapper.enqueue(21)
    run_until_idle(app)
    assert handle.result() == 42


def test_middleware_that_raises_after_the_work_changes_nothing(app: App) -> None:
    class Exits:
        def after(self, job: object, result: object) -> None:
            raise SystemExit(3)

    runs: list[str] = []
    with_middleware = App(app.store, middleware=[Exits()])

    @with_middleware.task
    def plain() -> None:
        runs.append("plain")

    @with_middleware.task
    async def coroutine() -> None:
        runs.append("coroutine")

    handles = [plain.enqueue(), coroutine.enqueue()]
    run_until_idle(with_middleware)
    assert {handle.job().status for handle in handles} == {JobStatus.COMPLETED}
    assert sorted(runs) == ["coroutine", "plain"]


def test_a_finished_job_leaves_nothing_in_memory(app: App) -> None:
    @app.task(timeout=timedelta(hours=1))
    async def task() -> None: ...

    with beside(app):
        for handle in [task.enqueue() for _ in range(100)]:
            handle.result(timeout=SOON)
        alive, looks = 100, 50
        while alive >= 50 and looks:  # the last ones may still be freed
            gc.collect()
            alive = sum(isinstance(one, RunningAttempt) for one in gc.get_objects())
            looks -= 1
            time.sleep(0.05)
        assert alive < 50, "some may belong to other tests"


def test_an_error_that_cannot_be_formatted_is_still_a_failed_attempt(app: App) -> None:
    class Mute(Exception):  # noqa: N818 - what a user may call one
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @app.task
    async def mute() -> None:
        raise Mute

    @app.task
    def odd() -> None:
        error = SyntaxError("odd")
        error.lineno, error.text, error.offset = 1, "x", "y"  # type: ignore[assignment]
        raise error

    handles = [mute.enqueue(), odd.enqueue()]
    run_until_idle(app)
    for handle, kind in zip(handles, ("Mute", "SyntaxError"), strict=True):
        job = handle.job()
        assert job.status is JobStatus.QUEUED
        assert job.error is not None
        assert kind in job.error


def test_a_fork_of_an_async_task_runs_no_other_job(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db")
    log = tmp_path / "log"

    @app.task
    async def forks() -> int:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        await asyncio.sleep(0.05)
        return child

    @app.task
    async def other() -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")

    handles: list[Any] = [forks.enqueue(), *(other.enqueue() for _ in range(5))]
    run_until_idle(app)
    for handle in handles:
        handle.result(timeout=SOON)
    assert log.read_text().split() == [str(os.getpid())] * 5
    app.close()


def test_an_asyncio_task_that_a_job_left_behind_cannot_break_the_stop(app: App) -> None:
    left: list[asyncio.Task[None]] = []

    async def stays() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            raise SystemExit(3) from None

    @app.task
    async def leaves() -> None:
        left.append(asyncio.ensure_future(stays()))
        await asyncio.sleep(0)

    handle = leaves.enqueue()
    assert run_until_idle(app) is Ended.IDLE
    assert handle.job().status is JobStatus.COMPLETED
