"""Shell jobs: the outcome of a command, what it sees, and how its output is stored."""

from __future__ import annotations

import logging
import os
import sys
from datetime import timedelta
from itertools import count
from pathlib import Path

import msgspec
import pytest

from casque import App, InvalidError, JobStatus, NewJob, Queue
from casque.checks import OUTPUT_BYTES
from casque.record import ABSENT, CONFIG
from casque.rules.operations import PutRecord
from casque.stores.sqlite.store import SqliteStore
from casque.testing.faults import STORE_FAULTS, Fault, FaultyStore
from casque.worker.loading import load_app
from casque.worker.shell import command as commands
from casque.worker.shell import settings
from casque.worker.shell.job import SHELL, ShellCall, exit_code_of, exit_failure, succeeded
from casque.worker.shell.task import CANNOT_START, add_shell
from tests.worker.apps import beside, run_until_idle, wait_for
from tests.worker.shells import (
    LONG_US,
    STORES,
    command,
    configure,
    job_of,
    on_each_store,
    on_sqlite,
    out_of_time_when,
    run,
    shell_app,
)

app = pytest.fixture(on_sqlite)
anywhere = pytest.fixture(params=STORES)(on_each_store)


# -- its outcome -------------------------------------------------------------------


def test_a_command_that_succeeds_is_completed_with_its_line_and_its_output(anywhere: App) -> None:
    run(anywhere, command("echo said; echo complained >&2"))
    job = job_of(anywhere)
    assert job.status is JobStatus.COMPLETED
    assert job.result == msgspec.json.encode(succeeded(ShellCall("echo said; echo complained >&2")))
    assert job.output == b"said\ncomplained\n"
    assert exit_code_of(job) == 0


@pytest.mark.parametrize(
    ("line", "code"), [("exit 1", 1), ("no_such_command_here", 127), ("kill -9 $$", -9)]
)
def test_a_command_that_fails_is_retried_and_then_dead_with_its_exit_code(
    app: App, line: str, code: int
) -> None:
    configure(app.queue, backoff_base="0")
    run(app, command(f"echo tried; {line}", attempts=2))
    job = job_of(app)
    assert (job.status, job.attempts) == (JobStatus.DEAD, 2)
    assert [one.failure for one in job.history] == [exit_failure(code)] * 2
    assert exit_code_of(job) == (code if code > 0 else 128 - code)
    assert job.output is not None
    assert job.output.startswith(b"tried\n")


def test_a_failure_is_stored_with_its_output_on_every_store(anywhere: App) -> None:
    run(anywhere, command("echo why; exit 3", attempts=5))
    job = job_of(anywhere)
    assert (job.status, job.output) == (JobStatus.QUEUED, b"why\n")
    assert [one.failure for one in job.history] == [exit_failure(3)]


def waits_us(app: App, id: str = "job") -> int:
    job = job_of(app, id)
    assert job.status is JobStatus.QUEUED
    return job.run_us - job.updated_us


def test_the_backoff_is_that_of_the_settings_when_a_command_fails(
    anywhere: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_FRESH_US", 0)
    configure(anywhere.queue, backoff_base="7")
    with beside(anywhere):
        anywhere.queue.enqueue_many([command("exit 1", "first", attempts=5)])
        wait_for("it failed", lambda: job_of(anywhere, "first").history)
        assert waits_us(anywhere, "first") == 7_000_000
        os.mkfifo(tmp_path / "gate")
        hold = command(f"cat {tmp_path}/gate; exit 1", "second", attempts=5)
        anywhere.queue.enqueue_many([hold])
        with (tmp_path / "gate").open("w"):  # this waits until the command reads
            configure(anywhere.queue, backoff_base="9", backoff_max="8s")
        wait_for("it failed", lambda: job_of(anywhere, "second").history)
        assert waits_us(anywhere, "second") == 8_000_000


def test_a_command_that_timed_out_has_the_same_backoff(app: App) -> None:
    configure(app.queue, backoff_base="5")
    run(app, command("sleep 60", attempts=5, timeout=timedelta(milliseconds=300)))
    assert waits_us(app) == 5_000_000
    assert "timed out" in str(job_of(app).error)


@pytest.mark.parametrize(
    ("job", "reason", "status"),
    [
        (command("true", cwd="/no/such/folder", attempts=2), "No such file", JobStatus.QUEUED),
        (command("true", cwd="/dev/null", attempts=2), "Not a directory", JobStatus.QUEUED),
        (command("echo \0", attempts=2), "null byte", JobStatus.DEAD),
        (command("true", env={"A": "\0"}, attempts=2), "null byte", JobStatus.DEAD),
        (command("true", env={"A=B": "c"}, attempts=2), "environment", JobStatus.DEAD),
        (command(f": {'x' * 300_000}", attempts=2), "put it into a file", JobStatus.DEAD),
    ],
)
def test_a_command_that_cannot_start_says_why_and_the_worker_lives(
    app: App, job: NewJob, reason: str, status: JobStatus
) -> None:
    run(app, job, command("true", "after"))
    failed = job_of(app)
    assert failed.status is status
    [attempt] = failed.history
    assert attempt.failure is not None
    assert (attempt.failure.kind, attempt.failure.traceback) == (CANNOT_START, "")
    assert reason in attempt.failure.text
    assert job_of(app, "after").status is JobStatus.COMPLETED


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"cmd": "true"}', b'{"command": 5}', b"\xff"])
def test_a_payload_without_a_command_is_dead_at_once_with_the_remedy(
    app: App, payload: bytes
) -> None:
    run(app, NewJob(SHELL, payload, id="job"))
    job = job_of(app)
    assert (job.status, job.attempts) == (JobStatus.DEAD, 1)
    assert 'such as {"command": "…"}' in str(job.error)


# -- what it sees ------------------------------------------------------------------


def test_a_command_sees_which_job_it_is_and_has_no_input(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_WORKER", "there")
    names = "$CASQUE_JOB_ID $CASQUE_ATTEMPT $CASQUE_DEPTH $CASQUE_STORE $OF_THE_WORKER $OWN"
    own = {"OWN": "mine", "CASQUE_JOB_ID": "forged"}
    run(app, command(f"echo {names}; pwd; cat; echo end", env=own, cwd="/"))
    assert job_of(app).output == f"job 1 0 {tmp_path}/jobs.db there mine\n/\nend\n".encode()


def test_a_command_sees_its_whole_environment_and_nothing_of_the_gate(app: App) -> None:
    run(app, command("echo $go $line; env | grep ^_casque", env={"go": "there", "line": "too"}))
    assert job_of(app).output == b"there too\n"


def test_a_command_on_a_store_in_memory_gets_no_store_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CASQUE_STORE", "another.db")
    with shell_app("memory://") as app:
        run(app, command("echo [$CASQUE_STORE]"))
        assert job_of(app).output == b"[]\n"


def test_jobs_that_a_command_enqueues_are_one_level_deeper(app: App) -> None:
    enqueue = (
        "import os, casque; casque.Queue(os.environ['CASQUE_STORE']).enqueue('x', b'', id='below')"
    )
    run(app, command(f'{sys.executable} -c "{enqueue}"', cwd="/"))
    assert job_of(app).status is JobStatus.COMPLETED, job_of(app).output
    assert job_of(app, "below").depth == 1


def test_a_command_inherits_no_descriptors_but_its_own_three(app: App) -> None:
    run(app, command("true", "before"), command("ls /proc/self/fd | sort -n | tr '\\n' ' '"))
    assert job_of(app).output == b"0 1 2 3 "  # 3 belongs to `ls` itself


# -- its output --------------------------------------------------------------------


def test_the_end_of_long_output_is_kept(anywhere: App) -> None:
    run(anywhere, command("seq 1 100000"))
    whole = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    assert job_of(anywhere).output == whole[-OUTPUT_BYTES:]


def test_output_may_be_any_bytes(app: App) -> None:
    run(app, command("printf '\\000\\377\\033[31m'"))
    assert job_of(app).output == b"\x00\xff\x1b[31m"


def test_output_is_stored_while_a_command_runs(
    anywhere: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_REPORT_SECONDS", 0.1)
    anywhere.queue.enqueue_many([command(f"echo so far; cat {tmp_path}/gate; echo end")])
    os.mkfifo(tmp_path / "gate")
    with beside(anywhere, lease_us=LONG_US):
        wait_for("it is stored", lambda: job_of(anywhere).output == b"so far\n")
        assert job_of(anywhere).status is JobStatus.IN_PROGRESS
        (tmp_path / "gate").write_text("")
        wait_for("it is done", lambda: job_of(anywhere).status is JobStatus.COMPLETED)
    assert job_of(anywhere).output == b"so far\nend\n"


def test_another_attempt_starts_without_output(app: App, tmp_path: Path) -> None:
    configure(app.queue, backoff_base="0")
    once = f"test -f {tmp_path}/once || {{ touch {tmp_path}/once; echo first; exit 1; }}"
    run(app, command(once, attempts=2))
    job = job_of(app)
    assert (job.status, job.attempts, job.output) == (JobStatus.COMPLETED, 2, None)


def test_the_end_of_endless_output_is_kept(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_of_time_when((tmp_path / "much").exists, monkeypatch)
    flood = f"yes | head -c 1000000; touch {tmp_path}/much; exec yes"
    run(app, command(flood, timeout=timedelta(seconds=1)), command("echo dry", "other"))
    assert job_of(app).output == b"y\n" * (OUTPUT_BYTES // 2)
    assert job_of(app, "other").output == b"dry\n"


# -- when the storage fails --------------------------------------------------------


@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_one_lost_request_or_reply_anywhere_costs_neither_a_job_nor_its_output(
    tmp_path: Path, fault: Fault
) -> None:
    for nth in count(1):
        path = tmp_path / f"{nth}.db"
        store = FaultyStore(SqliteStore(path), fault, nth)
        with Queue(path) as q:
            good, bad = command("echo good", "good"), command("echo bad; exit 1", "bad")
            q.enqueue_many([good, bad])
        app = App(store)
        add_shell(app)
        run_until_idle(app, concurrency=1)
        with Queue(path) as q:
            for id, status in (("good", JobStatus.COMPLETED), ("bad", JobStatus.DEAD)):
                job = q.get(id)
                assert job is not None
                found = (job.status, job.output)
                assert found == (status, f"{id}\n".encode()), f"{fault.name} of commit {nth}"
        if not store.fired:
            return


def test_invalid_settings_are_ignored_and_logged_once(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_FRESH_US", 0)
    put = PutRecord(CONFIG, "backoff_base", b'"two"', ABSENT)
    app.queue._run(app.queue._queue._session.submit(put))
    with caplog.at_level(logging.WARNING, "casque.worker"):
        run(app, command("exit 1", attempts=5), command("true", "other"))
    assert waits_us(app) == 2_000_000
    assert len([one for one in caplog.messages if "are invalid and were ignored" in one]) == 1
    assert job_of(app, "other").status is JobStatus.COMPLETED


# -- the app -----------------------------------------------------------------------


def test_a_users_own_task_named_shell_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with App(tmp_path / "jobs.db") as app:

        @app.task
        def shell(command: str) -> str:
            return command.upper()

        with caplog.at_level(logging.WARNING, "casque.worker"):
            add_shell(app)
        [said] = caplog.messages
        assert "its own task 'shell'" in said
        assert "rename the task" in said
        run(app, command("true"))
        assert job_of(app).result == b'"TRUE"'


def test_an_app_may_have_only_a_store(tmp_path: Path) -> None:
    with load_app(None, store=f"{tmp_path}/jobs.db") as app:
        assert not app.tasks
        add_shell(app)
        run(app, command("true"))
        assert job_of(app).status is JobStatus.COMPLETED
    with pytest.raises(InvalidError, match="name the store"):
        load_app(None)


def test_shell_jobs_can_be_enqueued_by_name(app: App) -> None:
    handle = app.enqueue(SHELL, {"command": "echo $A", "env": {"A": "b"}})
    run_until_idle(app)
    assert handle.result(timeout=timedelta(0)).command == "echo $A"
    with pytest.raises(InvalidError, match="command"):
        app.enqueue(SHELL, {"cmd": "true"})
