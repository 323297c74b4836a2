"""Shell jobs of real worker processes: no command outlives its worker, and no job is lost."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from casque import JobStatus
from casque.worker.shell.job import exit_code_of
from tests.acceptance.fleet import PATIENCE, until
from tests.acceptance.operating import Operator
from tests.worker.shells import session_of

FIRST_IS_LONG = (
    "echo $$ >> {0}/leaders; test $CASQUE_ATTEMPT != 1 || "
    "{{ sh -c 'trap \"\" TERM; echo $$ >> {0}/members; sleep 300' | cat; }}"
)
"""Its first attempt does not end, and has a pipeline whose processes ignore SIGTERM."""
LEASE = "4s"
"""Short enough to wait for its end, and long enough to be renewed in time on a busy machine."""


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Operator]:
    with Operator(tmp_path, "jobs.db") as made:
        yield made


def enqueue(operator: Operator, line: str, id: str = "job") -> None:
    ran = operator.queuectl("enqueue", "--command", line, "--id", id)
    assert ran.code == 0, ran


def numbers(operator: Operator, name: str) -> list[int]:
    path = operator.folder / name
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def first_group(operator: Operator) -> int:
    """The process group of the first attempt, once all its processes run."""
    until("it runs", lambda: numbers(operator, "members"))
    [leader] = numbers(operator, "leaders")
    assert os.getpgid(numbers(operator, "members")[0]) == leader
    return leader


def living(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, _, of, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(of) == group and state not in "ZX":
                found.append(int(entry.name))
    return found


def test_killing_a_worker_ends_its_command_which_another_worker_runs(
    on_sqlite: Operator,
) -> None:
    enqueue(on_sqlite, FIRST_IS_LONG.format(on_sqlite.folder))
    _, workers = on_sqlite.started("--count", "2", "--lease", LEASE)
    group = first_group(on_sqlite)
    assert len(living(group)) >= 3
    claimed = on_sqlite.fleet.job("job")
    [holder] = [pid for pid in workers if f":{pid}:" in str(claimed.worker)]
    os.kill(holder, signal.SIGKILL)
    until("all of it is ended", lambda: not living(group))
    until("it ran again", lambda: on_sqlite.fleet.job("job").status is JobStatus.COMPLETED)
    job = on_sqlite.fleet.job("job")
    assert job.attempts == 2
    assert [f":{holder}:" in str(one.worker) for one in job.history] == [True, False]
    assert on_sqlite.queuectl("worker", "stop").code == 0


def test_killing_a_worker_ends_processes_in_a_new_group(on_sqlite: Operator) -> None:
    """As `timeout` does: its processes are in the session, but not in the group."""
    line = "timeout 300 sh -c 'echo $$ >> {0}/members; exec sleep 300'; echo over"
    enqueue(on_sqlite, f"echo $$ >> {{0}}/leaders; {line}".format(on_sqlite.folder))
    _, [worker] = on_sqlite.started()
    until("it runs", lambda: numbers(on_sqlite, "members"))
    [leader], [member] = numbers(on_sqlite, "leaders"), numbers(on_sqlite, "members")
    assert (os.getsid(member), os.getpgid(member) == leader) == (leader, False)
    os.kill(worker, signal.SIGKILL)
    until("all of it is ended", lambda: not session_of(leader))


def test_killing_the_supervisor_ends_commands_within_the_grace(on_sqlite: Operator) -> None:
    enqueue(on_sqlite, FIRST_IS_LONG.format(on_sqlite.folder))
    supervisor, workers = on_sqlite.started("--count", "2", "--grace", "1s")
    group = first_group(on_sqlite)
    os.kill(supervisor, signal.SIGKILL)
    until("all of it is ended", lambda: not living(group))
    until("the workers have ended", lambda: not set(workers) & set(on_sqlite.processes()))
    job = on_sqlite.fleet.job("job")
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)


def test_killing_the_supervisor_and_all_workers_leaves_no_command(on_sqlite: Operator) -> None:
    enqueue(on_sqlite, FIRST_IS_LONG.format(on_sqlite.folder))
    supervisor, workers = on_sqlite.started("--count", "2")
    group = first_group(on_sqlite)
    for pid in (supervisor, *workers):
        os.kill(pid, signal.SIGKILL)
    until("all of it is ended", lambda: not living(group))


def test_a_worker_that_is_killed_while_it_starts_commands_leaves_none(
    on_sqlite: Operator,
) -> None:
    """At any moment: some commands are behind their gates, some have just started, some end."""
    on_sqlite.queuectl("config", "set", "lease", "1s")
    on_sqlite.queuectl("config", "set", "max_retries", "1000")
    mark = f"casque-mark-{os.getpid()}"
    lines = [f'{{"id": "job-{n}", "command": "sh -c \\"sleep 300\\" {mark}"}}' for n in range(20)]
    (on_sqlite.folder / "jobs.jsonl").write_text("\n".join(lines))
    enqueued = on_sqlite.queuectl("enqueue", "-", before=_fed_by(on_sqlite.folder / "jobs.jsonl"))
    assert enqueued.code == 0, enqueued
    supervisor, _ = on_sqlite.started("--count", "1", "--concurrency", "20")
    for _ in range(3):
        until("commands are started", lambda: _marked(mark))
        [worker] = on_sqlite.pids()[-1:]
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        until("none outlives it", lambda: not _orphans(mark))
    os.kill(supervisor, signal.SIGKILL)
    until("nothing is left of any", lambda: not _marked(mark))


def _fed_by(path: Path) -> tuple[str, ...]:
    return ("sh", "-c", f'exec "$@" < {path}', "sh")


def _marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def _orphans(mark: str) -> list[int]:
    """Commands whose worker is dead: they have another parent now."""
    found = []
    for pid in _marked(mark):
        with suppress(OSError):
            state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            of = Path(f"/proc/{parent}/cmdline").read_bytes()
            if state not in "ZX" and b"casque" not in of and mark.encode() not in of:
                found.append(pid)
    return found


def test_the_foreground_shows_workers_and_their_jobs(on_sqlite: Operator) -> None:
    on_sqlite.queuectl("config", "set", "max_retries", "1")
    for id, line in (("good", "echo fine"), ("bad", "exit 1"), ("wrong", "no_such_command")):
        enqueue(on_sqlite, line, id)
    running = on_sqlite.begin("worker", "start", "--foreground", "--count", "1")
    assert running.stdout is not None
    out = "".join(running.stdout.readline() for _ in range(10))
    running.send_signal(signal.SIGINT)
    out += running.communicate(timeout=PATIENCE)[0]
    found = re.search(r"^\[Manager\] Started worker PID: (\d+)$", out, re.MULTILINE)
    assert found is not None, out
    who = f"[Worker {found[1]}]"
    lines = out.splitlines()
    assert lines[0] == "[Manager] Starting 1 worker(s) in foreground mode..."
    assert lines[2] == f"{who} Opening the store {on_sqlite.fleet.store}."
    assert lines[3] == f"{who} Started and registered."
    assert set(lines[4:10]) == {
        f"{who} Processing job good: echo fine",
        f"{who} Processing job bad: exit 1",
        f"{who} Processing job wrong: no_such_command",
        f"{who} Job good completed successfully.",
        f"{who} Job bad failed (exit code 1).",
        f"{who} Job wrong failed (exit code 127).",
    }
    assert sorted(lines[10:]) == sorted(
        [
            "[Manager] Shutdown signal received. Terminating 1 workers...",
            f"{who} Shutdown signal received. Exiting...",
            f"{who} Stopped and unregistered.",
            "[Manager] All workers shut down. Exiting.",
        ]
    )
    assert exit_code_of(on_sqlite.fleet.job("wrong")) == 127


IN_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def test_a_terminal_that_stops_background_writers_stops_no_worker(
    on_sqlite: Operator,
) -> None:
    enqueue(on_sqlite, "true")
    shell = 'stty tostop && exec "$@"'
    ran = on_sqlite.queuectl(
        *("worker", "start", "--foreground", "--until-idle"),
        before=(sys.executable, "-c", IN_A_TERMINAL, "sh", "-c", shell, "sh"),
    )
    assert ran.code == 0, ran
    assert on_sqlite.fleet.job("job").status is JobStatus.COMPLETED


def test_a_shortage_of_descriptors_costs_no_job_an_attempt(on_sqlite: Operator) -> None:
    lines = [f'{{"id": "job-{n}", "command": "sleep 1", "max_attempts": 1}}' for n in range(40)]
    (on_sqlite.folder / "jobs.jsonl").write_text("\n".join(lines))
    enqueued = on_sqlite.queuectl("enqueue", "-", before=_fed_by(on_sqlite.folder / "jobs.jsonl"))
    assert enqueued.code == 0, enqueued
    ran = on_sqlite.queuectl(
        *("worker", "start", "--foreground", "--until-idle", "--concurrency", "40"),
        before=("sh", "-c", 'ulimit -n 60 && exec "$@"', "sh"),
    )
    assert ran.code == 0, ran
    assert ran.out.count("cannot be started and are delayed") == 1, ran.out
    found = [on_sqlite.fleet.job(f"job-{n}") for n in range(40)]
    assert {one.status for one in found} <= {JobStatus.QUEUED, JobStatus.COMPLETED}
    assert all(one.attempts == 0 for one in found if one.status is JobStatus.QUEUED)


def test_a_service_manager_that_signals_all_processes_costs_no_attempt(
    on_sqlite: Operator,
) -> None:
    """As systemd does by default; the command may get the signal first."""
    ran = on_sqlite.queuectl(
        *("enqueue", "--id", "job", "--max-attempts", "1"),
        *("--command", f"echo $$ >> {on_sqlite.folder}/leaders; exec sleep 300"),
    )
    assert ran.code == 0, ran
    supervisor, workers = on_sqlite.started()
    until("it runs", lambda: numbers(on_sqlite, "leaders"))
    for pid in (*numbers(on_sqlite, "leaders"), *workers, supervisor):
        os.kill(pid, signal.SIGTERM)
    until("all have ended", lambda: not {supervisor, *workers} & set(on_sqlite.processes()))
    job = on_sqlite.fleet.job("job")
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)


def test_a_command_that_sigterm_ends_has_failed_unless_its_worker_stops(
    on_sqlite: Operator,
) -> None:
    enqueue(on_sqlite, "kill -TERM $$")
    on_sqlite.queuectl("worker", "start", "--foreground", "--until-idle")
    assert exit_code_of(on_sqlite.fleet.job("job")) == 143


def test_a_log_that_nobody_reads_blocks_no_job(on_sqlite: Operator) -> None:
    line = f"true {'y' * 200}"
    lines = [f'{{"id": "job-{n}", "command": "{line}"}}' for n in range(60)]
    (on_sqlite.folder / "jobs.jsonl").write_text("\n".join(lines))
    with on_sqlite.begin("worker", "start", "--foreground", "--concurrency", "8") as supervisor:
        assert supervisor.stdout is not None
        fcntl.fcntl(supervisor.stdout, fcntl.F_SETPIPE_SZ, 4_096)  # full after a dozen jobs
        fed = _fed_by(on_sqlite.folder / "jobs.jsonl")
        assert on_sqlite.queuectl("enqueue", "-", before=fed).code == 0
        last = on_sqlite.fleet.job
        until("all are done", lambda: last("job-59").status is JobStatus.COMPLETED)
        assert on_sqlite.queuectl("worker", "stop").code == 0
        assert supervisor.wait(PATIENCE) == 0


def test_the_command_of_a_frozen_worker_ends_when_its_lease_is_over(on_sqlite: Operator) -> None:
    enqueue(on_sqlite, FIRST_IS_LONG.format(on_sqlite.folder))
    _, workers = on_sqlite.started("--count", "2", "--lease", LEASE)
    group = first_group(on_sqlite)
    claimed = on_sqlite.fleet.job("job")
    [holder] = [pid for pid in workers if f":{pid}:" in str(claimed.worker)]
    os.kill(holder, signal.SIGSTOP)
    try:
        until("all of it is ended", lambda: not living(group))
        done = JobStatus.COMPLETED
        until("it ran elsewhere", lambda: on_sqlite.fleet.job("job").status is done)
    finally:
        os.kill(holder, signal.SIGCONT)
    assert on_sqlite.fleet.job("job").attempts == 2


def test_a_command_outlives_the_leases_of_a_worker_that_renews_them(on_sqlite: Operator) -> None:
    enqueue(on_sqlite, "sleep 13")
    ran = on_sqlite.queuectl("worker", "start", "--foreground", "--until-idle", "--lease", "6s")
    assert ran.code == 0, ran
    job = on_sqlite.fleet.job("job")
    assert (job.status, job.attempts) == (JobStatus.COMPLETED, 1)
