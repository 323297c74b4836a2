"""Tasks that run in subprocesses."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from casque import App, CasqueError, InvalidError, JobStatus
from casque.worker.worker import Ended
from tests.worker.apps import SOON, beside, hasten, run_until_idle, wait_for
from tests.worker.shells import is_written, number_in, out_of_time_when

TASKS = """
import os, signal, subprocess, sys, time
from datetime import timedelta
from casque import App, Backoff, Discard, Retry, Snooze, current_job

class Notes:
    def before(self, job):
        print("before", job.entrypoint, os.getpid(), flush=True)

app = App("jobs.db", middleware=[Notes()])
AT_ONCE = Backoff(base=timedelta(0))

class Odd(Discard):
    def __init__(self, code):
        self.reason = code

class Never(Snooze):
    @property
    def delay(self):
        return "never"

    @delay.setter
    def delay(self, value):
        pass

@app.task(run_in="process")
def where(text: str) -> list:
    return [os.getpid(), text]

@app.task(run_in="process")
def prints(text: str) -> None:
    print("printed", text)
    sys.stderr = open("errors", "w")
    print("complained", text, file=sys.stderr)

@app.task(run_in="process")
def environment() -> list:
    return [os.environ.get("PYTHONPATH"), os.environ.get("OF_THE_WORKER")]

@app.task(run_in="process")
def headers() -> dict:
    return current_job().headers

@app.task(run_in="process")
def tells() -> None:
    current_job().progress(0.5, "half")
    time.sleep(100)

@app.task(run_in="process", timeout=timedelta(seconds=2), max_attempts=1)
def too_long() -> None:
    child = subprocess.Popen(["sleep", "100"])
    print(child.pid, file=open("child", "w"), flush=True)
    while True:
        pass

@app.task(run_in="process", backoff=AT_ONCE, max_attempts=2)
def dies(how: str) -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), int(how))

@app.task(run_in="process", max_attempts=2, give_up_on=(KeyError,))
def says(what: str):
    if what == "retry":
        raise Retry(timedelta(hours=1), reason="later")
    if what == "snooze":
        raise Snooze(timedelta(hours=1))
    if what == "discard":
        raise Discard("not worth it")
    if what == "give up":
        raise KeyError("given up on")
    if what == "discard oddly":
        raise Odd(410)
    if what == "snooze oddly":
        raise Never(timedelta(0))
    if what == "discard in no letters":
        raise Discard("caf\\udce9")
    if what == "exit":
        sys.exit(3)
    if what == "strange":
        return {object()}
    raise ValueError("plainly")
"""


@contextmanager
def imported(name: str, text: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    name = f"{name}_{os.getpid()}"
    (folder / f"{name}.py").write_text(text)
    patch.chdir(folder)
    patch.syspath_prepend(str(folder))
    module = importlib.import_module(name)
    with module.app:
        yield module
    del sys.modules[name]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with imported("tasks", TASKS, tmp_path, monkeypatch) as module:
        yield module


def test_a_subprocess_runs_one_job_after_another(tasks: ModuleType) -> None:
    handles = [tasks.where.enqueue(str(number)) for number in range(4)]
    run_until_idle(tasks.app, concurrency=1)
    pids = {handle.result()[0] for handle in handles}
    assert len(pids) == 1
    assert os.getpid() not in pids
    assert [handle.result()[1] for handle in handles] == ["0", "1", "2", "3"]
    [pid] = pids
    wait_for("it is gone", lambda: not _is_alive(pid))


def test_middleware_runs_in_the_subprocess(
    tasks: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    handle = tasks.where.enqueue("x")
    run_until_idle(tasks.app)
    assert f"before where {handle.result()[0]}" in capfd.readouterr().out


def test_a_task_in_a_subprocess_has_the_headers_of_its_job(tasks: ModuleType) -> None:
    handle = tasks.headers.using(headers={"trace": "1", "ü": ""}).enqueue()
    run_until_idle(tasks.app)
    assert handle.result() == {"trace": "1", "ü": ""}


def test_output_of_a_task_in_a_subprocess_is_flushed(
    tasks: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks.prints.enqueue("x")
    run_until_idle(tasks.app)
    assert "printed x\n" in capfd.readouterr().out
    assert (tmp_path / "errors").read_text() == "complained x\n"


@pytest.mark.parametrize("python_path", [None, "/nowhere"])
def test_a_subprocess_has_the_environment_of_the_worker(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch, python_path: str | None
) -> None:
    monkeypatch.setenv("OF_THE_WORKER", "yes")
    if python_path is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", python_path)
    handle = tasks.environment.enqueue()
    run_until_idle(tasks.app)
    assert handle.result() == [python_path, "yes"]


def test_each_exception_has_its_outcome(tasks: ModuleType) -> None:
    expected = {
        "retry": (JobStatus.QUEUED, 1, "Retry: later"),
        "snooze": (JobStatus.QUEUED, 0, None),
        "discard": (JobStatus.CANCELLED, 1, "not worth it"),
        "discard oddly": (JobStatus.CANCELLED, 1, "410"),
        "discard in no letters": (JobStatus.CANCELLED, 1, "caf?"),
        "snooze oddly": (
            JobStatus.QUEUED,
            1,
            "InvalidError: `delay` must be a timedelta, not str.",
        ),
        "give up": (JobStatus.DEAD, 1, "KeyError: 'given up on'"),
        "exit": (JobStatus.QUEUED, 1, "SystemExit: 3"),
        "error": (JobStatus.QUEUED, 1, "ValueError: plainly"),
    }
    handles = {what: tasks.says.enqueue(what) for what in expected}
    strange = tasks.says.enqueue("strange")
    run_until_idle(tasks.app, concurrency=1)
    jobs = {what: handle.job() for what, handle in handles.items()}
    assert {what: (job.status, job.attempts, job.error) for what, job in jobs.items()} == expected
    failure = jobs["error"].history[-1].failure
    assert "in says" in failure.traceback
    assert "casque/worker" not in failure.traceback, "only the task's own frames"
    assert strange.job().status is JobStatus.COMPLETED, "its result cannot be stored"
    with pytest.raises(
        CasqueError, match="its result was not stored: says: the result is not JSON"
    ):
        strange.result()


def test_a_process_that_dies_is_a_failed_attempt(tasks: ModuleType) -> None:
    said = {
        "exit": "the process that ran the task ended with exit code 7",
        str(int(signal.SIGSEGV)): "the process that ran the task was killed by SIGSEGV",
        "40": "the process that ran the task was killed by signal 40",  # one without a name
    }
    handles = {how: tasks.dies.enqueue(how) for how in said}
    after = tasks.where.enqueue("next")
    run_until_idle(tasks.app, concurrency=1)
    for how, handle in handles.items():
        job = handle.job()
        assert (job.status, job.attempts) == (JobStatus.DEAD, 2)
        assert said[how] in job.error
    assert after.result()[1] == "next"


def test_an_idle_subprocess_that_dies_costs_no_job_an_attempt(tasks: ModuleType) -> None:
    with beside(tasks.app):
        handles = [tasks.where.enqueue("x") for _ in range(2)]
        pids = {handle.result(timeout=SOON)[0] for handle in handles}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        after = tasks.where.using(max_attempts=1).enqueue("after")
        assert after.result(timeout=SOON)[1] == "after"


def test_a_subprocess_that_times_out_is_killed_with_its_children(
    tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_of_time_when(lambda: is_written(tmp_path / "child"), monkeypatch)
    handle = tasks.too_long.enqueue()
    run_until_idle(tasks.app)
    assert handle.job().error == "TimeoutError: timed out after 2 s"
    pid = number_in(tmp_path / "child")
    wait_for("it is gone", lambda: not _is_alive(pid))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_a_subprocess_reports_progress_and_is_killed_uncounted_on_stop(tasks: ModuleType) -> None:
    with beside(tasks.app, grace_us=100_000) as worker:
        handle = tasks.tells.enqueue()
        wait_for("it tells", lambda: handle.job().progress is not None)
        assert (handle.job().progress, handle.job().note) == (0.5, "half")
        worker.worker.stop()
        assert worker.join() is Ended.STOPPED
    job = handle.job()
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)


def test_the_subprocess_of_a_cancelled_job_is_killed(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(monkeypatch)
    with beside(tasks.app) as worker:
        handle = tasks.tells.enqueue()
        wait_for("it tells", lambda: handle.job().progress is not None)
        handle.cancel()
        after = tasks.where.enqueue("next")
        assert after.result(timeout=SOON)[1] == "next"
        worker.worker.stop()
        assert worker.join() is Ended.STOPPED


def test_an_app_that_other_processes_cannot_find_is_refused(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db")
    with pytest.raises(InvalidError, match="process"):

        @app.task(run_in="process")
        def inner() -> None: ...


SLOW = """
import os, time
from datetime import timedelta
from casque import App, current_job

app = App("jobs.db")
time.sleep(float(os.environ.get("IMPORT_SECONDS", "0")))

@app.task(run_in="process", timeout=timedelta(seconds=2), max_attempts=1)
def late() -> float:
    return current_job().deadline.timestamp() - time.time()

@app.task(run_in="process", timeout=timedelta(seconds=0.2), max_attempts=1)
def never() -> None:
    time.sleep(100)
"""


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with imported("slow", SLOW, tmp_path, monkeypatch) as module:
        yield module


def test_starting_a_subprocess_does_not_count_against_the_timeout(
    slow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPORT_SECONDS", "2.1")
    late, never = slow.late.enqueue(), slow.never.enqueue()
    run_until_idle(slow.app)
    assert late.result() > 0
    assert never.job().error == "TimeoutError: timed out after 0.2 s"


def test_waiting_for_a_subprocess_to_start_has_a_limit(
    slow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPORT_SECONDS", "600")
    monkeypatch.setattr("casque.worker.running._START_SECONDS", 0.1)
    handle = slow.never.enqueue()
    run_until_idle(slow.app)
    error = "TimeoutError: timed out: its process did not start within 0.2 s"
    assert handle.job().error == error
