"""Workers that are started, listed and stopped from a shell: real processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from casque import JobStatus
from casque.cli.store import Access
from casque.record import SUPERVISOR
from casque.worker.registry import process_identity
from tests.acceptance.fleet import PATIENCE, STORES, chore, until
from tests.acceptance.operating import QUEUECTL, Operator
from tests.notes import without_notes

APP = ("--app", "chores:app")
ELSEWHERE = ("unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh")
"""Runs a command on a host with another name."""
SIGNAL_AT_FORK = """
import os, signal, subprocess

number = os.environ.pop("SIGNAL_AT_FORK", None)

class Popen(subprocess.Popen):
    def _execute_child(self, *args):
        super()._execute_child(*args)
        signal.raise_signal(int(number))

if number is not None:
    subprocess.Popen = Popen
"""
"""Interrupts this process just after it has created a process, before `Popen` returns."""


@pytest.fixture(params=STORES)
def operator(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Operator]:
    with Operator(tmp_path, request.param) as made:
        yield made


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Operator]:
    with Operator(tmp_path, "jobs.db") as made:
        yield made


def has_a_host_of_its_own() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*ELSEWHERE, "true"], capture_output=True, check=False)
    return tried.returncode == 0


def is_said(operator: Operator, what: str, *command: str) -> bool:
    ran = operator.queuectl(*command)
    assert ran.code == 0
    return what in ran.err


def read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


# -- listing -----------------------------------------------------------------------


def test_worker_list_shows_running_jobs_and_stopping_workers_at_once(on_sqlite: Operator) -> None:
    _, [pid] = on_sqlite.started()
    command = "until test -e end; do sleep 0.1; done; touch done"
    on_sqlite.queuectl("enqueue", "--id", "long", "-c", command)
    until("the job is named", lambda: [one["running"] for one in on_sqlite.listed()] == [["long"]])
    told = on_sqlite.queuectl("worker", "stop", "--no-wait")
    assert (told.code, told.out) == (0, f"Stopping 1 worker(s): {pid}.\n")
    until("it is stopping", lambda: [one["state"] for one in on_sqlite.listed()] == ["stopping"])
    (on_sqlite.folder / "end").touch()
    assert on_sqlite.queuectl("worker", "stop").code == 0
    job = on_sqlite.fleet.queue.get("long")
    assert job is not None
    assert job.status is JobStatus.COMPLETED
    assert (on_sqlite.folder / "done").exists()


def test_workers_that_cannot_write_for_long_can_still_be_stopped(
    on_sqlite: Operator,
) -> None:
    supervisor, _ = on_sqlite.started("--lease", "1s", "--count", "2")
    with closing(sqlite3.connect(on_sqlite.fleet.store, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        until("their entries have expired", lambda: on_sqlite.listed() == [])
        told = f"supervisor {supervisor} on this host has not renewed"
        for command in (("worker", "list"), ("status",)):
            until("it is told", partial(is_said, on_sqlite, told, *command))
        stop = on_sqlite.begin("worker", "stop")
        until("only the command is left", lambda: on_sqlite.processes() == [stop.pid])
    out, _ = stop.communicate(timeout=PATIENCE)
    assert (stop.returncode, out) == (
        0,
        f"Stopped 1 supervisor(s) without workers: {supervisor}.\n",
    )


# -- starting ----------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_interrupting_worker_start_leaves_no_process(
    on_sqlite: Operator, number: signal.Signals
) -> None:
    start = on_sqlite.begin("worker", "start", "--count", "3")
    until("the supervisor is there", lambda: len(on_sqlite.processes()) > 1)
    start.send_signal(number)
    out, _ = start.communicate(timeout=PATIENCE)
    assert (start.returncode, without_notes(out)) == (130, "queuectl: interrupted.\n")
    until("all of them have ended", lambda: on_sqlite.processes() == [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_interrupting_worker_start_as_it_creates_a_process_leaves_none(
    on_sqlite: Operator, number: signal.Signals
) -> None:
    (early := on_sqlite.folder / "early").mkdir()
    (early / "sitecustomize.py").write_text(SIGNAL_AT_FORK)
    environment = {"PYTHONPATH": str(early), "SIGNAL_AT_FORK": str(int(number))}
    ran = on_sqlite.queuectl("worker", "start", "--count", "3", **environment)
    assert (ran.code, without_notes(ran.err)) == (130, "queuectl: interrupted.\n")
    until("all of them have ended", lambda: on_sqlite.processes() == [])


def test_workers_run_when_start_returns_and_have_ended_when_stop_returns(
    operator: Operator,
) -> None:
    assert operator.queuectl("worker", "check").code == 1
    ran = operator.queuectl("worker", "start", "--count", "2", *APP)
    assert ran.code == 0, ran
    told = re.fullmatch(
        r"Started 2 worker\(s\): PIDs (\d+), (\d+)\. Log: (.*)\nStore: .*\n", ran.out
    )
    assert told is not None, ran
    assert operator.pids() == sorted([int(told[1]), int(told[2])])
    log = Path(told[3])
    assert log.is_relative_to(operator.folder / "state")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    check = operator.queuectl("worker", "check")
    assert check.code == 0, check
    operator.fleet.queue.enqueue_many([chore("note", f"job{n}") for n in range(10)])
    operator.fleet.until_completed(10)

    stopped = operator.queuectl("worker", "stop")
    assert stopped.code == 0
    assert re.fullmatch(r"Stopped 2 worker\(s\): \d+, \d+\.\n", stopped.out), stopped
    assert operator.processes() == []
    assert operator.listed() == []
    again = operator.queuectl("worker", "stop")
    assert (again.code, again.out) == (0, "No workers are running.\n")
    assert operator.queuectl("worker", "check").code == 1


def test_background_workers_outlive_their_terminal(on_sqlite: Operator) -> None:
    supervisor, workers = on_sqlite.started(*APP)
    assert os.getsid(supervisor) == supervisor, "its own session, which no terminal hangs up"
    assert os.getsid(workers[0]) == supervisor
    for descriptor in (0, 1, 2):
        target = Path(f"/proc/{supervisor}/fd/{descriptor}").readlink()
        assert str(target) == "/dev/null" or target.name == f"worker-{supervisor}.log"


def test_the_address_of_the_store_is_on_no_command_line(on_sqlite: Operator) -> None:
    address = on_sqlite.fleet.store
    ran = on_sqlite.queuectl("worker", "start", "--store", address, *APP, CASQUE_STORE="")
    assert ran.code == 0, ran
    for pid in on_sqlite.processes():
        assert address.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_without_a_store_workers_use_the_apps_own(on_sqlite: Operator) -> None:
    ran = on_sqlite.queuectl("worker", "start", *APP, CASQUE_STORE="")
    assert ran.code == 0, ran
    assert len(on_sqlite.pids()) == 1


def test_the_supervisor_gets_its_plan_and_does_not_load_the_app(on_sqlite: Operator) -> None:
    loads = on_sqlite.folder / "loads"
    (on_sqlite.folder / "noted.py").write_text(
        "import os\nfrom chores import app\nopen('loads', 'a').write(f'{os.getpid()}\\n')\n"
    )
    arguments = ("--json", "--app", "noted:app", "--grace", "7s", "--queue", "mail")
    ran = on_sqlite.queuectl("worker", "start", *arguments, CASQUE_STORE="")
    assert ran.code == 0, ran
    told = json.loads(ran.out)
    pids = [int(line) for line in loads.read_text().split()]
    assert len(pids) == 2, "loaded by the command, which needs its store, and by the worker"
    assert told["workers"] == pids[1:]
    assert told["manager"] not in pids
    [worker] = on_sqlite.listed()
    assert (worker["queues"], worker["manager"]) == (["mail"], told["manager"])


def test_a_given_log_file_is_appended_to(on_sqlite: Operator) -> None:
    log = on_sqlite.folder / "logs" / "own.log"
    for times in (1, 2):
        on_sqlite.started(*APP, "--log-file", "logs/own.log", "--log-format", "text")
        assert on_sqlite.queuectl("worker", "stop").code == 0
        assert log.read_text().count("all worker processes have ended") == times


def test_an_app_that_does_not_load_is_an_error_and_leaves_nothing(on_sqlite: Operator) -> None:
    (on_sqlite.folder / "broken.py").write_text("raise RuntimeError('no such luck')\n")
    for environment in ({}, {"CASQUE_STORE": ""}):
        ran = on_sqlite.queuectl("worker", "start", "--app", "broken:app", **environment)
        assert ran.code == 2, ran
        assert "no such luck" in ran.err
        assert on_sqlite.processes() == []


def test_a_module_in_the_folder_does_not_replace_one_of_pythons_own(on_sqlite: Operator) -> None:
    for name in ("queue", "signal", "typing"):
        (on_sqlite.folder / f"{name}.py").write_text("raise RuntimeError('taken')\n")
    queuectl = Path(sys.executable).with_name("queuectl")
    ran = subprocess.run(
        [queuectl, "worker", "start", "--until-idle"],
        cwd=on_sqlite.folder,
        env=on_sqlite.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran


def test_ctrl_c_during_worker_start_stops_the_workers(on_sqlite: Operator) -> None:
    (on_sqlite.folder / "slow.py").write_text("import time\ntime.sleep(1_000)\n")
    slow = ("--app", "slow:app", "--store", on_sqlite.fleet.store)  # so that only workers load it
    command = on_sqlite.begin("worker", "start", *slow)
    until("the worker loads its app", lambda: len(on_sqlite.processes()) >= 3)
    command.send_signal(signal.SIGINT)
    output, _ = command.communicate(timeout=PATIENCE)
    assert command.returncode == 130, output
    until("nothing is left", lambda: on_sqlite.processes() == [])


def test_the_foreground_ends_by_a_signal_with_code_0(on_sqlite: Operator) -> None:
    command = on_sqlite.begin("worker", "start", "--foreground", "--count", "2", *APP)
    until("both are registered", lambda: len(on_sqlite.pids()) == 2)
    command.send_signal(signal.SIGTERM)
    output, _ = command.communicate(timeout=PATIENCE)
    assert command.returncode == 0, output
    assert on_sqlite.processes() == []
    assert on_sqlite.listed() == []


def test_worker_start_does_not_wait_for_workers_that_found_no_job(on_sqlite: Operator) -> None:
    on_sqlite.fleet.queue.enqueue_many([chore("wait_at_the_gate", "held")])
    ran = on_sqlite.queuectl("worker", "start", "--count", "3", "--until-idle", *APP)
    assert ran.code == 0, ran
    assert "Started" in ran.out
    assert on_sqlite.fleet.job("held").status is JobStatus.IN_PROGRESS
    on_sqlite.fleet.open_gate()
    until("they are done, and end", lambda: on_sqlite.processes() == [])


def test_worker_start_does_not_wait_for_workers_that_were_replaced(on_sqlite: Operator) -> None:
    on_sqlite.fleet.queue.enqueue_many([chore("note", f"job{n}") for n in range(500)])
    ran = on_sqlite.queuectl("worker", "start", "--count", "2", "--max-jobs", "1", *APP)
    assert ran.code == 0, ran
    stopped = on_sqlite.queuectl("worker", "stop")
    assert stopped.code == 0, stopped
    assert on_sqlite.processes() == []


# -- stopping ----------------------------------------------------------------------


def test_a_worker_stopped_by_its_pid_is_not_replaced(on_sqlite: Operator) -> None:
    _, workers = on_sqlite.started("--count", "3", *APP)
    ran = on_sqlite.queuectl("worker", "stop", str(workers[0]))
    assert (ran.code, ran.out) == (0, f"Stopped 1 worker(s): {workers[0]}.\n"), ran
    # An unwanted replacement would be there by the time that the next one is.
    os.kill(workers[1], signal.SIGKILL)
    until("it is replaced", lambda: len(set(on_sqlite.pids()) - set(workers)) == 1)
    alive = [one["pid"] for one in on_sqlite.listed() if one["state"] == "working"]
    assert len(alive) == 2
    assert workers[2] in alive
    assert workers[0] not in on_sqlite.pids()
    for pid in alive:
        assert on_sqlite.queuectl("worker", "stop", str(pid)).code == 0
    until("their supervisor has nobody left and ends", lambda: on_sqlite.processes() == [])


def test_a_supervisor_is_stopped_by_its_pid_and_others_are_not(on_sqlite: Operator) -> None:
    first, its = on_sqlite.started("--count", "2", *APP)
    _, others = on_sqlite.started(*APP)
    ran = on_sqlite.queuectl("worker", "stop", str(first))
    assert ran.code == 0
    assert re.fullmatch(r"Stopped 2 worker\(s\): \d+, \d+\.\n", ran.out), ran
    assert on_sqlite.pids() == others
    assert not set(on_sqlite.processes()) & {first, *its}


def test_an_unknown_pid_stops_nobody_and_the_error_lists_the_workers(on_sqlite: Operator) -> None:
    supervisor, [worker] = on_sqlite.started(*APP)
    ran = on_sqlite.queuectl("worker", "stop", str(worker), str(os.getpid()))
    assert ran.code == 3
    assert f"{worker} (supervisors: {supervisor})" in ran.err
    assert on_sqlite.pids() == [worker]


@pytest.mark.skipif(not has_a_host_of_its_own(), reason="no unshare --uts here")
def test_workers_on_another_host_are_stopped_through_the_store(operator: Operator) -> None:
    operator.started("--count", "2", "--lease", "6s", *APP, before=ELSEWHERE)
    [here] = operator.started(*APP)[1]
    assert {one["host"] for one in operator.listed()} >= {"elsewhere"}
    ran = operator.queuectl("worker", "stop")
    assert (ran.code, ran.out) == (0, f"Stopped 1 worker(s): {here}.\n"), ran
    assert len(operator.pids()) == 2
    none = operator.queuectl("worker", "stop")
    assert none.code == 0
    assert "No workers are running.\n" in none.out
    assert "--all" in none.out
    assert operator.queuectl("worker", "check").code == 1

    ran = operator.queuectl("worker", "stop", "--all")
    assert ran.code == 0, ran
    assert re.fullmatch(r"Stopped 2 worker\(s\): \d+ on elsewhere, \d+ on elsewhere\.\n", ran.out)
    assert operator.listed() == []
    until("their supervisor has nobody left and ends", lambda: operator.processes() == [])


@contextmanager
def hung(operator: Operator, *arguments: str, before: tuple[str, ...] = ()) -> Iterator[int]:
    """A supervisor whose worker is never registered."""
    (operator.folder / "slow.py").write_text(
        "import time\nopen('loading', 'w').close()\ntime.sleep(1_000)\n"
    )
    slow = ("--app", "slow:app", "--store", operator.fleet.store)  # so that only workers load it
    command = operator.begin("worker", "start", "--foreground", *slow, *arguments, before=before)
    try:
        until("its worker loads the app", (operator.folder / "loading").exists)
        yield command.pid
    finally:
        command.kill()
        command.wait()
        assert command.stdout is not None
        command.stdout.close()  # its worker may still hold the other end


def test_a_supervisor_that_has_no_worker_is_stopped(on_sqlite: Operator) -> None:
    with hung(on_sqlite) as supervisor:
        assert on_sqlite.listed() == []
        ran = on_sqlite.queuectl("worker", "stop")
        assert (ran.code, ran.out) == (
            0,
            f"Stopped 1 supervisor(s) without workers: {supervisor}.\n",
        ), ran
        assert on_sqlite.processes() == []
        again = on_sqlite.queuectl("worker", "stop")
        assert (again.code, again.out) == (0, "No workers are running.\n")


def test_a_supervisor_that_has_no_worker_is_stopped_by_its_pid(on_sqlite: Operator) -> None:
    with hung(on_sqlite) as supervisor:
        _, others = on_sqlite.started(*APP)
        assert on_sqlite.queuectl("worker", "stop", str(supervisor)).code == 0
        assert on_sqlite.pids() == others
        assert process_identity.has_ended(supervisor, None)


@pytest.mark.skipif(not has_a_host_of_its_own(), reason="no unshare --uts here")
def test_a_supervisor_without_workers_on_another_host_is_stopped(on_sqlite: Operator) -> None:
    with hung(on_sqlite, "--lease", "6s", before=ELSEWHERE) as supervisor:
        assert on_sqlite.queuectl("worker", "stop").code == 0
        assert not process_identity.has_ended(supervisor, None)
        ran = on_sqlite.queuectl("worker", "stop", "--all")
        told = f"Stopped 1 supervisor(s) without workers: {supervisor} on elsewhere.\n"
        assert (ran.code, ran.out) == (0, told), ran
        until("it ends", lambda: on_sqlite.processes() == [])


def test_the_entry_of_a_killed_supervisor_is_removed(on_sqlite: Operator) -> None:
    with hung(on_sqlite) as supervisor:
        os.kill(supervisor, signal.SIGKILL)
        until("it is gone", lambda: process_identity.has_ended(supervisor, None))
        with Access(on_sqlite.fleet.store) as access:
            assert len(access.records(SUPERVISOR)) == 1
            ran = on_sqlite.queuectl("worker", "stop")
            assert (ran.code, ran.out) == (0, "No workers are running.\n")
            assert access.records(SUPERVISOR) == []


def test_a_copy_of_a_store_does_not_reach_the_workers_of_the_original(operator: Operator) -> None:
    supervisor, [pid] = operator.started()
    original = Path(operator.fleet.store)
    (copies := operator.folder / "copies").mkdir()
    copy = copies / original.name
    if original.suffix == ".db":
        assert operator.queuectl("backup", str(copy)).code == 0
    else:
        subprocess.run(["cp", "-r", original, copy], check=True)
    for command in (["stop"], ["stop", "--all"], ["list"]):
        ran = operator.queuectl("worker", *command, "--store", str(copy))
        assert (ran.code, ran.out) == (0, "No workers are running.\n"), ran
        for one in (supervisor, pid):
            assert re.search(rf"process {one} works on \S*{original}, ", ran.err), ran
    ran = operator.queuectl("worker", "stop", str(pid), "--store", str(copy))
    assert (ran.code, ran.out) == (3, "")
    assert "Workers: 0" in operator.queuectl("status", "--store", str(copy)).out
    assert sorted(operator.processes()) == sorted([supervisor, pid])
    ran = operator.queuectl("worker", "stop")
    assert (ran.code, ran.out, ran.err) == (0, f"Stopped 1 worker(s): {pid}.\n", "")


def test_a_job_may_stop_the_worker_that_runs_it(on_sqlite: Operator) -> None:
    command = f"{shlex.join(QUEUECTL)} worker stop && touch after"
    assert on_sqlite.queuectl("enqueue", "--id", "last", "--command", command).code == 0
    on_sqlite.started()
    until("it has ended", lambda: on_sqlite.processes() == [])
    job = on_sqlite.fleet.job("last")
    assert (job.status, job.attempts) == (JobStatus.COMPLETED, 1)
    assert (on_sqlite.folder / "after").exists()


PROGRAM = """
import threading, sys
from datetime import timedelta
from chores import app

worker = threading.Thread(target=app.work, kwargs={"lease": timedelta(seconds=2), "count": COUNT})
worker.start()
worker.join()
print("the program goes on", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("count", [1, 2])
def test_a_program_outlives_the_stop_of_its_worker_thread(on_sqlite: Operator, count: int) -> None:
    (on_sqlite.folder / "program.py").write_text(PROGRAM.replace("COUNT", str(count)))
    program = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=on_sqlite.folder,
        env=on_sqlite.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        until("its workers are registered", lambda: len(on_sqlite.pids()) == count)
        ran = on_sqlite.queuectl("worker", "stop")
        assert ran.code == 0, ran
        assert program.stdout is not None
        assert program.stdout.readline() == "the program goes on\n"
        assert program.poll() is None
        program.communicate(timeout=PATIENCE)
        assert program.returncode == 0
    finally:
        program.kill()
        program.wait()


@pytest.mark.parametrize("how", ["here", "pid", "all"])
def test_worker_stop_waits_for_a_running_job(on_sqlite: Operator, how: str) -> None:
    on_sqlite.fleet.queue.enqueue_many([chore("wait_at_the_gate", "held")])
    _, [worker] = on_sqlite.started("--concurrency", "1", *APP)
    until("it runs", lambda: on_sqlite.fleet.runs("start"))
    on_sqlite.fleet.queue.enqueue_many([chore("note", "later")])
    arguments = {"here": [], "pid": [str(worker)], "all": ["--all"]}[how]
    stop = on_sqlite.begin("worker", "stop", *arguments)
    said, stopping = on_sqlite.fleet.said, "stopping; 1 running jobs"
    until("it stops", lambda: any(stopping in one.message for one in said()))
    on_sqlite.listed()  # takes as long as a `stop` that does not wait
    assert stop.poll() is None, "it waits for the job"
    on_sqlite.fleet.open_gate()
    output, _ = stop.communicate(timeout=PATIENCE)
    assert (stop.returncode, output) == (0, f"Stopped 1 worker(s): {worker}.\n")
    assert on_sqlite.fleet.job("held").status is JobStatus.COMPLETED
    assert on_sqlite.fleet.times_run() == {"held": 1}
    until("their supervisor has nobody left and ends", lambda: on_sqlite.processes() == [])


def test_a_job_that_outlasts_the_grace_is_released_and_not_counted(
    on_sqlite: Operator,
) -> None:
    on_sqlite.fleet.queue.enqueue_many([chore("wait_at_the_gate", "held")])
    on_sqlite.started("--grace", "1s", *APP)
    until("it runs", lambda: on_sqlite.fleet.runs("start"))
    ran = on_sqlite.queuectl("worker", "stop")
    assert ran.code == 0, ran
    job = on_sqlite.fleet.job("held")
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)
    assert on_sqlite.processes() == []


def test_a_command_that_outlasts_the_grace_is_ended_and_released(on_sqlite: Operator) -> None:
    on_sqlite.queuectl("enqueue", "--id", "slow", "--command", "echo $$ > pid; sleep 60; true")
    on_sqlite.started("--grace", "1s")
    until("it runs", lambda: read(on_sqlite.folder / "pid"))
    ran = on_sqlite.queuectl("worker", "stop")
    assert ran.code == 0, ran
    job = on_sqlite.fleet.job("slow")
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)
    pid = int(read(on_sqlite.folder / "pid"))
    until("the command has ended", lambda: process_identity.has_ended(pid, None))


def test_worker_stop_reports_workers_that_take_too_long(on_sqlite: Operator) -> None:
    on_sqlite.fleet.queue.enqueue_many([chore("wait_at_the_gate", "held")])
    _, [worker] = on_sqlite.started(*APP)
    until("it runs", lambda: on_sqlite.fleet.runs("start"))
    ran = on_sqlite.queuectl("worker", "stop", "--timeout", "0s")
    assert (ran.code, ran.out) == (1, "")
    assert f"1 worker(s) may still be running: {worker}." in ran.err
    on_sqlite.fleet.open_gate()
    until("it has ended", lambda: on_sqlite.processes() == [])


def test_a_supervisor_suspended_by_its_terminal_can_be_stopped(
    on_sqlite: Operator,
) -> None:
    supervisor, _ = on_sqlite.started(*APP)
    os.kill(supervisor, signal.SIGSTOP)
    ran = on_sqlite.queuectl("worker", "stop")
    assert ran.code == 0, ran
    assert on_sqlite.processes() == []


# -- dying -------------------------------------------------------------------------


def test_workers_whose_supervisor_is_killed_end_by_themselves(on_sqlite: Operator) -> None:
    supervisor, _ = on_sqlite.started("--count", "2", *APP)
    os.kill(supervisor, signal.SIGKILL)
    until("they have ended", lambda: on_sqlite.processes() == [])
    assert on_sqlite.listed() == []


def test_a_killed_worker_is_shown_as_gone_and_removed(on_sqlite: Operator) -> None:
    supervisor, [worker] = on_sqlite.started(*APP)
    os.kill(supervisor, signal.SIGSTOP)  # so that the worker is not replaced
    os.kill(worker, signal.SIGKILL)
    until("it is gone", lambda: [one["state"] for one in on_sqlite.listed()] == ["gone"])
    check = on_sqlite.queuectl("worker", "check")
    assert check.code == 1
    assert "have died" in check.err
    os.kill(supervisor, signal.SIGKILL)
    until("its supervisor is gone", lambda: process_identity.has_ended(supervisor, None))
    ran = on_sqlite.queuectl("worker", "stop")
    assert (ran.code, ran.out) == (0, f"Removed 1 worker(s) that had died: {worker}.\n"), ran
    assert on_sqlite.listed() == []


def test_a_worker_is_replaced_even_if_its_folder_was_removed(
    on_sqlite: Operator,
) -> None:
    (on_sqlite.folder / "left").mkdir()
    supervisor, [worker] = on_sqlite.started(before=("env", "-C", "left"))
    (on_sqlite.folder / "left").rmdir()
    try:
        os.kill(worker, signal.SIGKILL)
        until(
            "another is there",
            lambda: any(one["state"] == "working" for one in on_sqlite.listed()),
        )
        assert on_sqlite.queuectl("worker", "stop").code == 0
    finally:
        if not process_identity.has_ended(supervisor, None):
            os.kill(supervisor, signal.SIGKILL)
