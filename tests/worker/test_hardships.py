"""A worker survives what stores, machines and people do to it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import App, InvalidError, JobStatus
from casque.rules.operations import Ack, Batch, Dequeue, Heartbeat, PutRecord
from casque.stores.memory import MemoryStore
from casque.stores.port import Answer
from casque.worker import store_thread
from casque.worker.options import WorkerOptions
from casque.worker.worker import Ended, Worker
from tests.worker.apps import (
    AT_ONCE,
    PATIENCE,
    SOON,
    Beside,
    beside,
    hasten,
    in_memory,
    run_until_idle,
    until,
    wait_for,
)

app = pytest.fixture(in_memory)
A_LITTLE = timedelta(milliseconds=300)


class Slow(MemoryStore):
    """A store whose claims can be blocked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_claiming, self.go_on = threading.Event(), threading.Event()

    async def commit(self, batches: Sequence[Batch], **options: Any) -> list[Answer]:
        if any(isinstance(one, Dequeue) for one in batches[0].operations):
            self.is_claiming.set()
            self.go_on.wait(PATIENCE)
        return await super().commit(batches, **options)


def test_jobs_claimed_during_a_stop_are_released_uncounted() -> None:
    store = Slow()
    app = App(store)

    @app.task(max_attempts=1)
    async def task() -> None: ...

    handles = [task.enqueue() for _ in range(5)]
    worker = Beside(app, WorkerOptions())
    assert store.is_claiming.wait(PATIENCE)
    worker.worker.stop()
    store.go_on.set()
    assert worker.join() is Ended.STOPPED
    jobs = [handle.job() for handle in handles]
    assert {(job.status, job.attempts) for job in jobs} <= {
        (JobStatus.QUEUED, 0),
        (JobStatus.COMPLETED, 1),
    }


def test_a_log_handler_that_raises_harms_no_job(app: App) -> None:
    class Raises(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no log today")

    @app.task
    async def task() -> None: ...

    factory = logging.getLogRecordFactory()

    def with_worker(*args: Any, **options: Any) -> logging.LogRecord:
        record = factory(*args, **options)
        record.worker = "mine"
        return record

    logger, handler = logging.getLogger("casque.worker"), Raises()
    logger.addHandler(handler)
    logging.setLogRecordFactory(with_worker)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        app.enqueue_many([task.job() for _ in range(30)])
        run_until_idle(app, concurrency=3)
    finally:
        logging.setLogRecordFactory(factory)
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert app.queue.stats().completed == 30


def test_a_thread_that_cannot_be_started_runs_nothing_twice(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures, runs, go_on = threading.Thread.start, [0], [], threading.Event()

    def failing(thread: threading.Thread) -> None:
        if thread.name.startswith("casque-task") and failures[0]:
            failures[0] -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    @app.task(backoff=AT_ONCE)
    def task(number: int) -> None:
        runs.append(number)
        go_on.wait(PATIENCE)

    monkeypatch.setattr(threading.Thread, "start", failing)
    with beside(app, concurrency=4):
        first = task.enqueue(1)
        wait_for("it runs", lambda: runs)
        failures[0] = 1
        second = task.enqueue(2)
        go_on.set()
        for handle in (first, second):
            handle.result(timeout=SOON)
    assert runs == [1, 2]


@pytest.mark.parametrize("kind", [Ack, Dequeue, PutRecord, Heartbeat])
def test_any_exception_of_a_store_counts_as_no_answer(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(monkeypatch)

    class Odd(MemoryStore):
        failures = 1

        async def commit(self, batches: Sequence[Batch], **options: Any) -> list[Answer]:
            asked = batches[0].operations
            if self.failures and any(isinstance(one, kind) for one in asked):
                self.failures -= 1
                raise ConnectionResetError("reset by peer")
            return await super().commit(batches, **options)

    store = Odd()
    app = App(store)
    runs: list[int] = []

    @app.task
    async def task() -> int:
        runs.append(1)
        while store.failures and kind is not Ack:  # the Ack comes after the task
            await asyncio.sleep(0.01)
        return 1

    with beside(app):
        assert task.enqueue().result(timeout=SOON) == 1
    assert len(runs) == 1


def test_a_delayed_job_runs_on_time_while_another_job_runs(app: App) -> None:
    go_on, begun = threading.Event(), threading.Event()

    @app.task
    def waits() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    @app.task
    def later() -> None: ...

    with beside(app):
        handle = later.using(delay=A_LITTLE).enqueue()
        waits.enqueue()
        until(begun)
        handle.result(timeout=SOON)
        go_on.set()


@pytest.mark.parametrize("queue", ["a", "b"])
def test_a_delayed_job_runs_on_time_in_any_of_several_queues(app: App, queue: str) -> None:
    @app.task
    def later() -> None: ...

    with beside(app, queues=("a", "b")):
        later.using(delay=A_LITTLE, queue=queue).enqueue().result(timeout=SOON)


def test_a_worker_can_stop_after_its_app_was_closed(tmp_path: Path) -> None:
    app = App(f"{tmp_path}/ledger/")
    begun = threading.Event()

    @app.task
    def task() -> None:
        begun.set()

    worker = Beside(app, WorkerOptions())
    task.enqueue()
    until(begun)
    app.close()
    worker.worker.stop()
    assert worker.join() is Ended.STOPPED


def test_a_worker_that_is_asked_to_stop_ends_without_its_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_thread, "LAST_WORDS_US", 300_000)

    class Away(MemoryStore):
        is_away = False

        async def commit(self, *args: Any, **options: Any) -> list[Any]:
            if self.is_away:
                raise OSError("gone")
            return await super().commit(*args, **options)

    store = Away()
    app = App(store)
    begun = threading.Event()

    @app.task
    async def task() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE)

    worker = Beside(app, WorkerOptions(grace_us=100_000))
    task.enqueue()
    until(begun)
    store.is_away = True
    worker.worker.stop()
    assert worker.join() is Ended.STOPPED


def test_a_lease_too_short_for_heartbeats_is_refused(app: App) -> None:
    @app.task
    def task() -> None: ...

    with pytest.raises(InvalidError, match="at least 1 s"):
        app.work(lease=timedelta(milliseconds=5))
    with pytest.raises(InvalidError, match="store in memory: use count=1"):
        app.work(count=2)


SCATTERED = {
    "core": 'from casque import App\napp = App("jobs.db")\n',
    "emails": "from core import app\n@app.task\ndef send() -> str:\n    return 'sent'\n",
    "images": "from core import app\n@app.task(run_in='process')\ndef resize():\n    return 1\n",
    "main": (
        "from core import app\nimport emails, images\n"
        "if __name__ == '__main__':\n"
        "    print(emails.send.enqueue().id, images.resize.enqueue().id)\n"
        "    app.work(count=2, until_idle=True)\n"
    ),
}


def test_every_process_loads_tasks_from_modules_besides_the_apps(tmp_path: Path) -> None:
    for name, text in SCATTERED.items():
        (tmp_path / f"{name}.py").write_text(text)
    said = subprocess.run(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    app = App(tmp_path / "jobs.db")
    assert [app.handle(one).result(SOON) for one in said.stdout.split()] == ["sent", 1]
    app.close()


def test_run_raises_if_the_store_thread_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(tmp_path / "queue.json")

    @app.task
    def task() -> None: ...

    def no_loop(coroutine: Coroutine[Any, Any, None]) -> None:
        coroutine.close()
        raise OSError("too many open files")

    monkeypatch.setattr("casque.worker.store_thread.asyncio.run", no_loop)
    with pytest.raises(OSError, match="too many open files"):
        Worker(app).run()
    app.close()
