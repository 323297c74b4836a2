"""What tasks, stores and people do to a worker, and that it bears it."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import App, InvalidError, JobStatus, NewJob
from casque.operations import Ack, Dequeue, Heartbeat, PutRecord
from casque.stores.memory import MemoryStore
from casque.worker.attempt import Attempt
from casque.worker.loop import Ended, Worker
from casque.worker.options import WorkerOptions
from casque.worker.report import Report
from tests.worker.apps import AT_ONCE, Beside, beside, work_off

SOON = timedelta(seconds=10)
SECOND = timedelta(seconds=1)


@pytest.fixture
def app() -> Iterator[App]:
    with App("memory://") as app:
        yield app


@pytest.mark.parametrize("payload", [b'{"\xff": 1}', b"[" * 100_000, b'{"n": ' + b"[" * 100_000])
def test_a_payload_that_cannot_even_be_read_is_dead(app: App, payload: bytes) -> None:
    @app.task
    def task(n: Any = None) -> None: ...

    [job] = app.queue.enqueue_many([NewJob("task", payload)])
    after = task.enqueue()
    work_off(app, concurrency=1)
    found = app.queue.get(job.id)
    assert found is not None
    assert found.status is JobStatus.DEAD
    assert after.job().status is JobStatus.COMPLETED


class Slow(MemoryStore):
    """A store whose claims can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.is_claiming, self.go_on = threading.Event(), threading.Event()

    async def commit(self, *args: Any, **options: Any) -> list[Any]:
        if any(isinstance(one, Dequeue) for one in args[2]):
            self.is_claiming.set()
            self.go_on.wait(20)
        return await super().commit(*args, **options)


def test_what_is_claimed_while_it_is_told_to_stop_is_given_back_uncounted() -> None:
    store = Slow()
    app = App(store)

    @app.task(max_attempts=1)
    async def task() -> None: ...

    handles = [task.enqueue() for _ in range(5)]
    worker = Beside(app, WorkerOptions())
    assert store.is_claiming.wait(20)
    worker.worker.stop()
    store.go_on.set()
    assert worker.join() is Ended.STOPPED
    jobs = [handle.job() for handle in handles]
    assert {(job.status, job.attempts) for job in jobs} <= {
        (JobStatus.QUEUED, 0),
        (JobStatus.COMPLETED, 1),
    }


async def _raises_beside(error: BaseException) -> None:
    async def beside_it() -> None:
        raise error

    asyncio.ensure_future(beside_it())  # noqa: RUF006 - nobody is to await it
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
def test_a_task_that_interrupts_its_event_loop_harms_no_other(
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


def test_a_log_that_raises_harms_nobody(app: App) -> None:
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
        work_off(app, concurrency=3)
    finally:
        logging.setLogRecordFactory(factory)
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert app.queue.stats().completed == 30


def test_a_function_that_ended_in_time_is_done_however_late_that_is_heard(app: App) -> None:
    ended = threading.Event()

    @app.task(timeout=SECOND)
    def quick() -> None:
        ended.set()

    @app.task
    async def blocks() -> None:
        ended.wait(20)
        time.sleep(1.5)

    with beside(app):
        handle, other = quick.enqueue(), blocks.enqueue()
        other.result(timeout=SOON)
        handle.result(timeout=SOON)
    assert handle.job().attempts == 1


@pytest.mark.parametrize("how", ["stopped", "timed out"])
def test_a_function_that_finishes_when_it_is_told_to_end_has_finished(app: App, how: str) -> None:
    begun = threading.Event()
    options: Any = {"timeout": timedelta(seconds=0.2)} if how == "timed out" else {}

    @app.task(**options)
    async def tidy() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "tidied up"
        return "slept"

    worker = Beside(app, WorkerOptions(grace_us=50_000))
    handle = tidy.enqueue()
    assert begun.wait(20)
    if how == "stopped":
        worker.worker.stop()
        worker.join()
    assert handle.result(timeout=SOON) == "tidied up"
    worker.worker.stop_now()
    worker.join()


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
        go_on.wait(20)

    monkeypatch.setattr(threading.Thread, "start", failing)
    with beside(app, concurrency=4):
        first = task.enqueue(1)
        while not runs:
            pass
        failures[0] = 1
        second = task.enqueue(2)
        go_on.set()
        for handle in (first, second):
            handle.result(timeout=SOON)
    assert runs == [1, 2]


def test_a_plain_wrapper_around_an_async_function_is_run(app: App) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    @app.task
    @functools.wraps(double)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return double(*args, **kwargs)

    handle: Any = wrapper.enqueue(21)
    work_off(app)
    assert handle.result() == 42


@pytest.mark.parametrize("kind", [Ack, Dequeue, PutRecord, Heartbeat])
def test_whatever_a_store_raises_is_no_answer(kind: type) -> None:
    class Odd(MemoryStore):
        failures = 1

        async def commit(self, *args: Any, **options: Any) -> list[Any]:
            if self.failures and any(isinstance(one, kind) for one in args[2]):
                self.failures -= 1
                raise ConnectionResetError("reset by peer")
            return await super().commit(*args, **options)

    app = App(Odd())
    runs: list[int] = []

    @app.task
    async def task() -> int:
        runs.append(1)
        await asyncio.sleep(0.2)
        return 1

    with beside(app, lease_us=300_000):
        assert task.enqueue().result(timeout=SOON) == 1
    assert len(runs) == 1


def test_a_delayed_job_is_not_forgotten_over_one_that_is_due(app: App) -> None:
    go_on, begun = threading.Event(), threading.Event()

    @app.task
    def waits() -> None:
        begun.set()
        go_on.wait(20)

    @app.task
    def later() -> None: ...

    with beside(app):
        handle = later.using(delay=SECOND).enqueue()
        waits.enqueue()
        assert begun.wait(20)
        handle.result(timeout=SOON)
        go_on.set()


@pytest.mark.parametrize("queue", ["a", "b"])
def test_nor_is_one_of_another_queue(app: App, queue: str) -> None:
    @app.task
    def later() -> None: ...

    with beside(app, queues=("a", "b")):
        later.using(delay=SECOND, queue=queue).enqueue().result(timeout=SOON)


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
    work_off(with_middleware)
    assert {handle.job().status for handle in handles} == {JobStatus.COMPLETED}
    assert sorted(runs) == ["coroutine", "plain"]


def test_a_finished_job_leaves_nothing_behind(app: App) -> None:
    @app.task(timeout=timedelta(hours=1))
    async def task() -> None: ...

    with beside(app):
        for handle in [task.enqueue() for _ in range(100)]:
            handle.result(timeout=SOON)
        alive, looks = 100, 50
        while alive >= 50 and looks:  # the last of them are on their way out
            gc.collect()
            alive = sum(isinstance(one, Attempt) for one in gc.get_objects())
            looks -= 1
            time.sleep(0.05)
        assert alive < 50, "those of other tests may be among them"


def test_an_error_that_cannot_be_told_is_an_error_all_the_same(app: App) -> None:
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
    work_off(app)
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
    work_off(app)
    for handle in handles:
        handle.result(timeout=SOON)
    assert log.read_text().split() == [str(os.getpid())] * 5
    app.close()


def test_an_app_that_is_closed_meanwhile_lets_its_worker_end(tmp_path: Path) -> None:
    app = App(f"{tmp_path}/ledger/")
    begun = threading.Event()

    @app.task
    def task() -> None:
        begun.set()

    worker = Beside(app, WorkerOptions())
    task.enqueue()
    assert begun.wait(20)
    app.close()
    worker.worker.stop()
    assert worker.join() is Ended.STOPPED


def test_one_that_is_told_to_stop_without_its_storage_ends() -> None:
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
        await asyncio.sleep(60)

    worker = Beside(app, WorkerOptions(grace_us=100_000))
    task.enqueue()
    assert begun.wait(20)
    store.is_away = True
    worker.worker.stop()
    assert worker.join(30) is Ended.STOPPED


def test_a_lease_that_no_heartbeat_can_keep_is_refused(app: App) -> None:
    @app.task
    def task() -> None: ...

    with pytest.raises(InvalidError, match="at least 1 s"):
        app.work(lease=timedelta(milliseconds=5))
    with pytest.raises(InvalidError, match="seen by no other process"):
        app.work(count=2)


BLOCKED = """
import asyncio, time
from casque import App

app = App("jobs.db")

@app.task
async def blocks():
    print("blocked", flush=True)
    time.sleep(60)

@app.task
async def waits():
    await asyncio.sleep(60)
"""


def test_a_blocked_event_loop_holds_up_no_orderly_end(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(BLOCKED)
    app = App(tmp_path / "jobs.db")
    jobs = app.queue.enqueue_many([NewJob("waits", b"{}"), NewJob("blocks", b"{}")])
    command = [sys.executable, "-m", "casque.worker", "tasks:app", "--grace", "1"]
    worker = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "blocked\n"
    worker.terminate()
    try:
        assert worker.wait(40) == 0
    finally:
        worker.kill()
        worker.stdout.close()
    for job in jobs:
        found = app.queue.get(job.id)
        assert found is not None
        assert (found.status, found.attempts) == (JobStatus.QUEUED, 0)
    app.close()


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


def test_tasks_of_other_modules_than_the_apps_are_known_to_every_process(tmp_path: Path) -> None:
    for name, text in SCATTERED.items():
        (tmp_path / f"{name}.py").write_text(text)
    said = subprocess.run(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    app = App(tmp_path / "jobs.db")
    assert [app.handle(one).result(SOON) for one in said.stdout.split()] == ["sent", 1]
    app.close()


def test_a_worker_is_refused_where_its_deck_cannot_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(tmp_path / "queue.json")

    @app.task
    def task() -> None: ...

    def no_loop(coroutine: Coroutine[Any, Any, None]) -> None:
        coroutine.close()
        raise OSError("too many open files")

    monkeypatch.setattr("casque.worker.deck.asyncio.run", no_loop)
    with pytest.raises(OSError, match="too many open files"):
        Worker(app).run()
    app.close()


def test_a_thread_that_ends_as_it_times_out_frees_its_slot_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, goes_on = threading.Event(), Report.goes_on

    def late(report: Report, attempt: Attempt, why: str) -> None:
        release.set()
        while not attempt.is_over:
            pass
        goes_on(report, attempt, why)

    monkeypatch.setattr(Report, "goes_on", late)
    lock, now, most = threading.Lock(), [0], [0]

    @app.task(timeout=timedelta(milliseconds=50), max_attempts=1)
    def stuck() -> None:
        release.wait(20)

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


def test_an_asyncio_task_that_a_job_left_behind_cannot_spoil_the_end(app: App) -> None:
    left: list[asyncio.Task[None]] = []

    async def stays() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise SystemExit(3) from None

    @app.task
    async def leaves() -> None:
        left.append(asyncio.ensure_future(stays()))
        await asyncio.sleep(0)

    handle = leaves.enqueue()
    assert work_off(app) is Ended.IDLE
    assert handle.job().status is JobStatus.COMPLETED
