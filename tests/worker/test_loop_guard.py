"""The loop guard: programs that a job starts know their job, and loops of jobs end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from casque import App, InvalidError, JobStatus, Queue, current_job
from casque.queues.lineage import VARIABLES
from casque.worker.loading import load_app
from casque.worker.shell.job import exit_code_of
from casque.worker.shell.task import add_shell
from tests.worker.apps import AT_ONCE, run_until_idle
from tests.worker.shells import command, configure, job_of, run, shell_app
from tests.worker.test_processes import imported

QUEUECTL = f"{sys.executable} -m casque.cli"
NAMES = ("CASQUE_JOB_ID", "CASQUE_ATTEMPT", "CASQUE_DEPTH", "CASQUE_STORE")

TASKS = """
import asyncio, os, subprocess
from casque import App, current_job

app = App("jobs.db", max_depth=3)
NAMES = "CASQUE_JOB_ID", "CASQUE_ATTEMPT", "CASQUE_DEPTH", "CASQUE_STORE"

@app.task
def in_a_thread() -> None:
    subprocess.run(["sh", "edit.sh", "thread"], env=current_job().environ(), check=True)

@app.task
async def on_the_loop() -> None:
    env = current_job().environ()
    edited = await asyncio.create_subprocess_exec("sh", "edit.sh", "loop", env=env)
    assert await edited.wait() == 0

@app.task(run_in="process")
def in_a_process() -> None:
    subprocess.run(["sh", "edit.sh", "process"], check=True)

@app.task
def without_env() -> None:
    subprocess.run(["sh", "edit.sh", "bare"], check=True)

@app.task(run_in="process")
def seen() -> dict:
    own = {name: os.environ.get(name) for name in (*NAMES, "CASQUE_REFUSAL")}
    given = current_job().environ()
    assert own == {name: given.get(name) for name in own}
    return own

@app.task(run_in="process")
def deeper_in_a_process() -> None:
    deeper_in_a_process.enqueue()
"""
EDIT = "echo edited >> file.md; sh hook.sh $1\n"
"""The program that a job starts. It triggers the hook."""
HOOK = f"{QUEUECTL} enqueue --skip-inside-job --id from-$1 -c 'sh edit.sh again' >> said-$1\n"


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "edit.sh").write_text(EDIT)
    (tmp_path / "hook.sh").write_text(HOOK)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CASQUE_STORE", f"{tmp_path}/jobs.db")  # as the hook's author set it
    with imported("guarded", TASKS, tmp_path, monkeypatch) as module:
        yield module


def said(folder: Path, name: str) -> str:
    return (folder / f"said-{name}").read_text()


# -- the hook ------------------------------------------------------------------------------


def test_a_hook_that_a_job_triggers_enqueues_nothing(tasks: ModuleType, tmp_path: Path) -> None:
    app: App = tasks.app
    add_shell(app)
    before = dict(os.environ)
    ran = [task.enqueue() for task in (tasks.in_a_thread, tasks.on_the_loop, tasks.in_a_process)]
    run(app, command("sh edit.sh shell", cwd=str(tmp_path)))
    assert [handle.result() for handle in ran] == [None] * 3
    assert job_of(app).status is JobStatus.COMPLETED, job_of(app).output
    [raw] = _dequeued(app.queue, "raw")
    with app.queue.running(raw):
        program = ["sh", "edit.sh", "consumer"]
        subprocess.run(program, env=current_job().environ(), check=True)
    for name in ("thread", "loop", "process", "shell", "consumer"):
        assert said(tmp_path, name) == "Inside a job: nothing enqueued.\n", name
        assert app.queue.get(f"from-{name}") is None
    assert (tmp_path / "file.md").read_text().count("edited") == 5
    assert dict(os.environ) == before  # other jobs share it


def test_outside_a_job_and_without_env_the_hook_enqueues(tasks: ModuleType, tmp_path: Path) -> None:
    handle = tasks.without_env.enqueue()
    run_until_idle(tasks.app)
    assert handle.result() is None
    assert said(tmp_path, "bare").startswith("Job from-bare enqueued")
    assert job_of(tasks.app, "from-bare").depth == 0


def _dequeued(queue: Queue, entrypoint: str) -> list[Any]:
    queue.enqueue(entrypoint)
    return queue.dequeue(entrypoint)


# -- the variables -------------------------------------------------------------------------


def test_a_subprocess_has_the_variables_of_each_job_that_it_runs(
    tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASQUE_REFUSAL", "/of/an/outer/job")
    handles = [tasks.seen.using(id=f"seen-{n}").enqueue() for n in range(2)]
    run_until_idle(tasks.app, concurrency=1)
    store = f"{tmp_path}/jobs.db"
    for n, handle in enumerate(handles):
        expected = dict(zip(NAMES, (f"seen-{n}", "1", "0", store), strict=True))
        assert handle.result() == expected | {"CASQUE_REFUSAL": None}


@pytest.mark.parametrize("place", ["memory://", "jobs.db", "queue.json", "ledger/"])
def test_environ_names_the_store_unless_it_is_in_memory(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CASQUE_STORE", "another.db")
    monkeypatch.setenv("CASQUE_CHAIN", '["of another job"]')
    monkeypatch.setenv("OF_THE_WORKER", "there")
    with App(place) as app:

        @app.task
        def look() -> dict[str, str]:
            return current_job().environ()

        handle = look.enqueue()
        run_until_idle(app)
        seen = handle.result()
    expected = {"CASQUE_JOB_ID": handle.id, "CASQUE_ATTEMPT": "1", "CASQUE_DEPTH": "0"}
    if place != "memory://":
        expected["CASQUE_STORE"] = f"{tmp_path}/{place}"
    assert {name: seen[name] for name in seen if name in VARIABLES} == expected
    assert seen["OF_THE_WORKER"] == "there"


# -- max_depth of an app -------------------------------------------------------------------


def test_a_task_that_runs_into_the_guard_is_dead_at_once(tmp_path: Path) -> None:
    with App(tmp_path / "jobs.db", max_depth=2) as app:

        @app.task(backoff=AT_ONCE)
        def loop(n: int) -> None:
            loop.using(id=f"loop-{n + 1}").enqueue(n + 1)

        loop.using(id="loop-0").enqueue(0)
        run_until_idle(app)
        last = job_of(app, "loop-2")
        assert app.queue.get("loop-3") is None
    assert (last.status, last.attempts, last.depth) == (JobStatus.DEAD, 1, 2)
    assert "max_depth is 2: loop -> loop -> loop -> loop." in str(last.error)


def test_a_task_in_a_subprocess_is_held_to_the_depth_of_its_app(tasks: ModuleType) -> None:
    tasks.deeper_in_a_process.enqueue()
    run_until_idle(tasks.app, concurrency=1)
    jobs = tasks.app.queue.read_state().jobs
    [dead] = [job for job in jobs if job.status is JobStatus.DEAD]
    assert (dead.attempts, dead.depth, len(jobs)) == (1, 3, 4)
    assert "max_depth is 3" in str(dead.error)


def test_another_store_keeps_the_depth_of_the_app(tasks: ModuleType, tmp_path: Path) -> None:
    with load_app(f"{tasks.__name__}:app", store=f"{tmp_path}/other.db") as app:
        assert app.app_store.max_depth == 3
        assert app.queue._queue._max_depth == app.async_queue._max_depth == 3


@pytest.mark.parametrize("depth", [-1, 1.5, "3", None])
def test_a_depth_that_is_no_whole_number_is_refused(depth: Any) -> None:
    with pytest.raises(InvalidError, match="max_depth"):
        App("memory://", max_depth=depth)


def test_an_immediate_app_has_its_own_depth() -> None:
    app = App("memory://", immediate=True, max_depth=1)

    @app.task
    def down(n: int) -> int:
        return 0 if n == 0 else down.enqueue(n - 1).result()

    assert down.enqueue(1).result() == 0
    with pytest.raises(InvalidError, match="max_depth is 1") as refused:
        down.enqueue(2)
    assert refused.value.is_too_deep


# -- a shell job that runs into the guard --------------------------------------------------


@pytest.fixture
def looping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """An app for commands, with a script that enqueues itself and hides the refusal."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    enqueue = f"{QUEUECTL} enqueue --id step-$((CASQUE_DEPTH + 1)) -c 'sh {tmp_path}/loop.sh'"
    (tmp_path / "loop.sh").write_text(f'sh -c "{enqueue}" > /dev/null 2>&1 || exit 7\n')
    with shell_app(tmp_path / "jobs.db") as app:
        configure(app.queue, max_depth="2", max_retries="3", backoff_base="0")
        yield app


def test_a_shell_job_that_runs_into_the_guard_is_dead_at_once_with_the_chain(
    looping: App, tmp_path: Path
) -> None:
    run(looping, command(f"sh {tmp_path}/loop.sh", "step-0", attempts=3))
    first, second, last = (job_of(looping, f"step-{n}") for n in range(3))
    assert first.status is second.status is JobStatus.COMPLETED, first.output
    assert (last.status, last.attempts, last.max_attempts) == (JobStatus.DEAD, 1, 3)
    assert exit_code_of(last) == 7
    assert "max_depth is 2: job step-0 -> job step-1 -> job step-2 -> shell." in str(last.error)
    assert looping.queue.get("step-3") is None
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_shell_job_that_accepts_the_refusal_is_completed(looping: App, tmp_path: Path) -> None:
    configure(looping.queue, max_depth="0")
    run(looping, command(f"sh {tmp_path}/loop.sh || true", "step-0"))
    assert job_of(looping, "step-0").status is JobStatus.COMPLETED
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_shell_job_that_fails_for_another_reason_is_tried_again(looping: App) -> None:
    configure(looping.queue, max_depth="0")
    run(looping, command("exit 7", attempts=2))
    assert (job_of(looping).status, job_of(looping).attempts) == (JobStatus.DEAD, 2)
