"""The outcome of a job, by how its task ends."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import (
    App,
    CasqueError,
    Discard,
    InvalidError,
    JobStatus,
    NewJob,
    Retry,
    Snooze,
    current_job,
)
from casque.worker.worker import Ended
from tests.worker.apps import AT_ONCE, PATIENCE, SOON, beside, run_until_idle, until, wait_for

HOUR = timedelta(hours=1)


@pytest.fixture(params=["memory://", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    address = request.param if "://" in request.param else tmp_path / "jobs.db"
    with App(address) as app:
        yield app


def test_async_and_plain_tasks_return_their_results(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    @app.task
    def shout(text: str) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return text.upper()

    doubled, shouted = double.enqueue(21), shout.enqueue("hi")
    assert run_until_idle(app) is Ended.IDLE
    assert doubled.result() == 42
    assert shouted.result() == "HI"
    assert app.queue.stats().completed == 2


def test_a_task_that_fails_is_tried_again_until_it_succeeds(app: App) -> None:
    @app.task(backoff=AT_ONCE)
    async def flaky() -> int:
        if current_job().attempt < 3:
            raise ValueError("not yet")
        return current_job().attempt

    handle = flaky.enqueue()
    run_until_idle(app)
    assert handle.result() == 3
    job = handle.job()
    assert [one.failure and one.failure.text for one in job.history[:2]] == ["not yet", "not yet"]


def test_every_attempt_has_the_headers_of_its_job_and_child_jobs_do_not(app: App) -> None:
    seen: list[dict[str, str]] = []

    @app.task(backoff=AT_ONCE, max_attempts=2)
    def flaky() -> None:
        seen.append(current_job().headers)
        if current_job().attempt < 2:
            raise ValueError("not yet")
        below.enqueue()

    @app.task
    async def below() -> None:
        seen.append(current_job().headers)

    flaky.using(headers={"trace": "1"}).enqueue()
    run_until_idle(app)
    assert seen == [{"trace": "1"}, {"trace": "1"}, {}]


def test_after_its_last_attempt_a_job_is_dead_with_its_error(app: App) -> None:
    @app.task(backoff=AT_ONCE, max_attempts=2)
    def broken() -> None:
        raise ValueError("never")

    handle = broken.enqueue()
    run_until_idle(app)
    job = handle.job()
    assert (job.status, job.attempts, job.error) == (JobStatus.DEAD, 2, "ValueError: never")
    assert job.history[-1].failure is not None
    said = job.history[-1].failure.traceback
    assert "test_outcomes.py" in said
    assert "casque/worker" not in said, "only the user's own frames"


def test_the_backoff_sets_the_time_of_the_retry(app: App) -> None:
    @app.task
    def broken() -> None:
        raise ValueError

    handle = broken.enqueue()
    run_until_idle(app)
    job = handle.job()
    assert job.status is JobStatus.QUEUED
    assert timedelta(seconds=0.9) < job.run_at - job.updated_at <= timedelta(seconds=2)


@pytest.mark.parametrize(
    ("error", "status", "attempts"),
    [
        (Retry(HOUR), JobStatus.QUEUED, 1),
        (Snooze(HOUR), JobStatus.QUEUED, 0),
        (Discard("why"), JobStatus.CANCELLED, 1),
        (KeyError("given up on"), JobStatus.DEAD, 1),
        (OSError("not retried on"), JobStatus.DEAD, 1),
        (LookupError("retried on"), JobStatus.QUEUED, 1),
        (SystemExit(3), JobStatus.QUEUED, 1),
        (KeyboardInterrupt(), JobStatus.QUEUED, 1),
        (BaseException("of all"), JobStatus.QUEUED, 1),
        (asyncio.CancelledError(), JobStatus.QUEUED, 1),
        (StopIteration(), JobStatus.QUEUED, 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
@pytest.mark.parametrize("app", ["memory://"], indirect=True)
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_each_exception_has_its_outcome(
    app: App, error: BaseException, status: JobStatus, attempts: int, kind: str
) -> None:
    options: dict[str, Any] = {"retry_on": (LookupError, RuntimeError), "give_up_on": (KeyError,)}

    @app.task(**options)
    async def async_task() -> None:
        raise error

    @app.task(**options)
    def plain_task() -> None:
        raise error

    @app.task
    def after() -> str:
        return "the worker lives"

    handle = (async_task if kind == "async" else plain_task).enqueue()
    then = after.enqueue()
    run_until_idle(app)
    job = handle.job()
    assert (job.status, job.attempts) == (status, attempts)
    if isinstance(error, Retry | Snooze):
        assert job.run_at - job.updated_at >= timedelta(minutes=59)
    if isinstance(error, Discard):
        assert job.error == "why"
    assert then.result() == "the worker lives"


def test_a_result_that_cannot_be_stored_does_not_undo_the_work(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    runs = []

    @app.task
    def strange() -> Any:
        runs.append(1)
        return {1, object()}

    @app.task
    async def large() -> str:
        runs.append(2)
        return "x" * 70_000

    @app.task(retain=None)
    def unwanted() -> str:
        return "x" * 70_000

    reasons = {"strange": "the result is not JSON", "large": "the result is 70,002 bytes"}
    handles = [strange.enqueue(), large.enqueue()]
    unwanted.enqueue()
    run_until_idle(app)
    for handle, (task, reason) in zip(handles, reasons.items(), strict=True):
        job = handle.job()
        assert (job.status, job.attempts, job.error) == (JobStatus.COMPLETED, 1, None)
        assert (job.result or b"").startswith(f"(no result) {task}: {reason}".encode())
        for one in (handle, app.handle(job.id)):
            with pytest.raises(CasqueError, match=f"{task}.* is completed.*{reason}") as refused:
                one.result()
            assert not isinstance(refused.value, InvalidError), "the caller did nothing wrong"
            assert "The work is done" in str(refused.value)
            with pytest.raises(CasqueError, match=f"{task}.* is completed.*{reason}"):
                asyncio.run(_awaited(one))
    assert sorted(runs) == [1, 2]
    lines = [one for one in caplog.records if getattr(one, "event", "") == "result_unstored"]
    assert {(one.levelno, one.entrypoint) for one in lines} == {  # type: ignore[attr-defined]
        (logging.WARNING, "strange"),
        (logging.WARNING, "large"),
    }, "and none for a job whose result nobody keeps"


async def _awaited(handle: Any) -> object:
    return await handle


def test_a_result_that_looks_like_the_note_is_a_result(app: App) -> None:
    values = ["(no result) large: no", {"(no result)": "no"}, ["(no result) "]]

    @app.task
    def echo(place: int) -> Any:
        return values[place]

    handles = [echo.enqueue(place) for place in range(len(values))]
    run_until_idle(app)
    assert [handle.result() for handle in handles] == values


def test_a_job_whose_payload_is_not_json_is_dead_with_the_reason(app: App) -> None:
    @app.task
    def greet(name: str) -> None:
        raise AssertionError

    payloads = (b"not json", b'{"name": "x"', b"\xff", b'"name"')
    jobs = app.queue.enqueue_many([NewJob("greet", payload) for payload in payloads])
    run_until_idle(app)
    for job in jobs:
        after = app.queue.get(job.id)
        assert after is not None
        assert after.status is JobStatus.DEAD
        assert after.error is not None
        assert "greet" in after.error


def test_jobs_of_unknown_entrypoints_stay_in_the_queue(app: App) -> None:
    @app.task
    def known() -> None: ...

    app.queue.enqueue("unknown")
    known.enqueue()
    run_until_idle(app)
    assert app.queue.stats().pending == 1


def test_an_attempt_is_ended_at_its_timeout(app: App) -> None:
    ended = threading.Event()

    @app.task(timeout=timedelta(milliseconds=50))
    async def slow() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.set()

    handle = slow.enqueue()
    run_until_idle(app)
    assert ended.is_set()
    job = handle.job()
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 1)
    assert job.error == "TimeoutError: timed out after 0.05 s"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"give_up_on": (TimeoutError,)}, JobStatus.DEAD),
        ({"give_up_on": (OSError,)}, JobStatus.DEAD),
        ({"retry_on": (ConnectionError,)}, JobStatus.DEAD),
        ({"retry_on": (TimeoutError,)}, JobStatus.QUEUED),
        ({"give_up_on": (ConnectionError,)}, JobStatus.QUEUED),
    ],
)
@pytest.mark.parametrize("app", ["memory://"], indirect=True)
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_retry_on_and_give_up_on_apply_to_timeouts(
    app: App, kind: str, options: dict[str, Any], status: JobStatus
) -> None:
    over = threading.Event()

    @app.task(timeout=timedelta(milliseconds=50), **options)
    async def async_task() -> None:
        await asyncio.sleep(PATIENCE)

    @app.task(timeout=timedelta(milliseconds=50), **options)
    def plain_task() -> None:
        over.wait(PATIENCE)

    handle = (async_task if kind == "async" else plain_task).enqueue()
    with beside(app):
        wait_for("it timed out", lambda: handle.job().history)
        over.set()
    job = handle.job()
    assert (job.status, job.attempts) == (status, 1)
    assert job.error == "TimeoutError: timed out after 0.05 s"


def test_a_thread_that_times_out_keeps_its_slot_until_it_ends(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    begun, release, second = threading.Event(), threading.Event(), threading.Event()

    @app.task(timeout=timedelta(milliseconds=50), max_attempts=1)
    def stuck() -> None:
        begun.set()
        release.wait(PATIENCE)

    @app.task
    def next_one() -> None:
        second.set()

    with beside(app, concurrency=1):
        handle = stuck.enqueue()
        with pytest.raises(Exception, match="timed out"):
            handle.result(timeout=SOON)
        until(begun)
        after = next_one.enqueue()
        assert not second.wait(0.2)
        release.set()
        after.result(timeout=SOON)
    assert "keeps its slot until it ends" in caplog.text


def test_the_child_of_a_task_that_forks_settles_no_job(app: App, tmp_path: Path) -> None:
    if app.store.instant:
        pytest.skip("a store that lives in one process")
    log = tmp_path / "log"

    def note() -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")

    @app.task
    def forks() -> int:
        child = os.fork()
        note()
        if child:
            os.waitpid(child, 0)
        return child

    @app.task
    async def forks_too() -> int:
        child = os.fork()
        note()
        if child:
            os.waitpid(child, 0)
        return child

    handles = [forks.enqueue(), forks_too.enqueue()]
    run_until_idle(app)
    pids = log.read_text().split()
    assert len(pids) == len(set(pids)) + 1 == 4
    for handle in handles:
        assert str(handle.result()) in pids


def test_the_log_names_job_entrypoint_and_attempt(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(max_attempts=1)
    def broken() -> None:
        raise ValueError("never")

    @app.task
    def fine() -> None: ...

    caplog.set_level(logging.INFO, "casque.worker")
    handle, good = broken.enqueue(), fine.enqueue()
    run_until_idle(app)
    records = {record.job_id: record for record in caplog.records if hasattr(record, "job_id")}
    assert records[handle.id].levelname == "ERROR"
    assert records[handle.id].exc_info is not None
    fields = vars(records[good.id])
    assert (fields["entrypoint"], fields["attempt"], fields["queue"]) == ("fine", 1, "default")


def test_middleware_runs_around_every_task(app: App) -> None:
    seen: list[str] = []

    class Plain:
        def before(self, job: Any) -> None:
            seen.append(f"before {job.entrypoint} {current_job().attempt}")

        def after(self, job: Any, result: object) -> None:
            seen.append(f"after {job.entrypoint} {result}")

        def on_failure(self, job: Any, error: BaseException) -> None:
            seen.append(f"failure {job.entrypoint} {error}")

    class Async:
        async def before(self, job: Any) -> None:
            await asyncio.sleep(0)
            seen.append(f"async before {job.entrypoint}")

        async def after(self, job: Any, result: object) -> None:
            raise RuntimeError("which changes nothing")

    with_middleware = App(app.store, middleware=[Plain(), Async()])

    @with_middleware.task
    def plain() -> int:
        return 1

    @with_middleware.task
    async def coroutine() -> int:
        return 2

    @with_middleware.task(max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    handles = [plain.enqueue(), coroutine.enqueue()]
    fails.enqueue()
    run_until_idle(with_middleware, concurrency=1)
    assert [handle.result() for handle in handles] == [1, 2]
    assert seen == [
        *("before plain 1", "async before plain", "after plain 1"),
        *("before coroutine 1", "async before coroutine", "after coroutine 2"),
        *("before fails 1", "async before fails", "failure fails no"),
    ]


def test_progress_is_stored_with_the_job(app: App) -> None:
    go_on = threading.Event()

    @app.task
    def slow() -> None:
        current_job().progress(0.4, "resizing")
        go_on.wait(PATIENCE)

    with beside(app):
        handle = slow.enqueue()
        wait_for("it is stored", lambda: handle.job().progress is not None)
        assert (handle.job().progress, handle.job().note) == (0.4, "resizing")
        go_on.set()
        handle.result(timeout=SOON)


def test_a_task_can_read_its_deadline(app: App) -> None:
    @app.task(timeout=HOUR)
    async def looks() -> float:
        deadline = current_job().deadline
        assert deadline is not None
        return deadline.timestamp()

    @app.task
    async def has_none() -> bool:
        return current_job().deadline is None

    deadline, none = looks.enqueue(), has_none.enqueue()
    run_until_idle(app)
    assert abs(deadline.result() - deadline.job().created_at.timestamp() - 3600) < 60
    assert none.result() is True
