"""Worker processes that die, and a supervisor that dies: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from casque import JobStatus, Queue
from casque.system.clock import SECOND_US
from casque.worker.options import DEFAULT_GRACE_US
from tests.supervisor.programs import TASKS, Bench, is_there

USUAL_GRACE = DEFAULT_GRACE_US / SECOND_US
SUPERVISE = """
import sys
from casque.worker.logging.setup import LogOptions, set_up
from casque.worker.options import WorkerOptions
from casque.worker.supervision.supervisor import RestartPolicy, Supervisor
log = LogOptions(format="json")
set_up(log)
minute = 60_000_000
pace = RestartPolicy(
    steady_us=minute, first_us=50_000, longest_us=200_000, beyond_grace_us=minute
)
options = WorkerOptions(grace_us=100_000)
sys.exit(0 if Supervisor("tasks:app", options, 1, log=log, restart=pace).run() else 1)
"""


def test_a_child_that_is_killed_is_replaced(bench: Bench) -> None:
    program = bench.worker("--count", "2")
    first, second = program.started(2)
    os.kill(first, signal.SIGKILL)
    program.says(f"worker process {first} was killed by SIGKILL and is replaced")
    *_, third = program.started(3)
    assert len({first, second, third}) == 3
    os.kill(second, signal.SIGKILL)
    program.started(4)
    bench.enqueue("quick")
    program.says("quick in")
    program.send(signal.SIGTERM)
    assert program.ends() == 0


def test_children_whose_supervisor_is_killed_finish_their_jobs_and_end(bench: Bench) -> None:
    bench.enqueue("hold", "hold")
    program = bench.worker("--count", "2", "--concurrency", "1")
    children = program.says_pids(r"holds in (\d+)", 2)
    [later] = bench.enqueue("hold")
    program.send(signal.SIGKILL)
    program.says("the supervisor is gone", 2)
    bench.write("go", "")
    program.falls_silent()
    assert not any(is_there(pid) for pid in children)
    assert program.output.count("held in") == 2
    assert bench.left() == [(later, JobStatus.QUEUED, 0)]


@pytest.mark.parametrize(
    ("number", "count"),
    [
        (signal.SIGTERM, "1"),
        (signal.SIGTERM, "2"),
        (signal.SIGINT, "2"),
        (signal.SIGHUP, "1"),
        (signal.SIGQUIT, "2"),
    ],
)
def test_a_worker_asked_to_stop_finishes_its_job_and_claims_no_other(
    number: signal.Signals, count: str, bench: Bench
) -> None:
    bench.enqueue("hold")
    program = bench.worker("--count", count, "--concurrency", "1")
    program.says(r"holds in (\d+)")
    program.send(number)
    program.says("stopping; 1 running jobs")
    if count == "2":
        program.says(f"{number.name}: stopping")
        # The idle process, or one that was just starting.
        program.says("worker process .* (ended with exit code 0|was killed by SIGTERM)$")
    [later] = bench.enqueue("quick")
    bench.write("go", "")
    assert program.ends() == 0
    assert "held in" in program.output
    assert bench.left() == [(later, JobStatus.QUEUED, 0)]


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_job_longer_than_the_grace_is_released_without_a_counted_attempt(
    count: str, bench: Bench
) -> None:
    [held] = bench.enqueue("hold")
    program = bench.worker("--count", count, "--grace", "300ms")
    program.says(r"holds in (\d+)")
    program.send(signal.SIGTERM)
    assert program.ends(USUAL_GRACE) == 0, "after the grace of its options"
    assert bench.left() == [(held, JobStatus.QUEUED, 0)]


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_second_interrupt_does_not_wait_for_the_grace(count: str, bench: Bench) -> None:
    [held] = bench.enqueue("hold")
    program = bench.worker("--count", count, "--grace", "10m")
    program.says(r"holds in (\d+)")
    program.send(signal.SIGINT)
    program.says("stopping; 1 running jobs")
    program.send(signal.SIGINT)
    assert program.ends() == 0
    assert bench.left() == [(held, JobStatus.QUEUED, 0)]


def test_ctrl_c_of_the_terminal_reaches_only_the_supervisor(bench: Bench) -> None:
    program = bench.worker("--count", "2")
    children = program.started(2)
    assert [os.getpgid(pid) for pid in children] == children
    program.send(signal.SIGTERM)
    assert program.ends() == 0


def test_a_child_that_does_not_stop_is_killed_and_the_exit_code_says_so(bench: Bench) -> None:
    bench.enqueue("defy")
    strict = SUPERVISE.replace("beyond_grace_us=60_000_000", "beyond_grace_us=500_000")
    program = bench.python("-c", strict)
    [child] = program.says_pids(r"defies (\d+)")
    program.send(signal.SIGTERM)
    assert program.ends() == 1
    assert f"worker process {child} did not stop in time: killed" in program.output
    assert not is_there(child)


def is_stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


def test_a_child_stopped_by_sigstop_still_obeys_sigterm(bench: Bench) -> None:
    bench.enqueue("freeze")
    program = bench.python("-c", SUPERVISE)
    [pid] = program.says_pids(r"freezes (\d+)")
    deadline = time.monotonic() + 60
    while not is_stopped(pid):  # it prints its line before it stops
        assert time.monotonic() < deadline
        time.sleep(0.01)
    program.send(signal.SIGTERM)
    assert program.ends() == 0


def test_children_that_keep_dying_restart_with_growing_delays_logged_once(
    bench: Bench,
) -> None:
    bench.write("tasks.py", "import os\nos._exit(3)")
    program = bench.python("-c", SUPERVISE)
    program.says(r"worker process \d+ started", 7)
    program.send(signal.SIGTERM)
    assert program.ends() == 0
    lines = [json.loads(line) for line in program.output.splitlines()]
    assert sum("delay between restarts grows" in one["message"] for one in lines) == 1
    turns = [one for one in lines if one["message"].endswith(("started", "is replaced"))]
    gaps = [
        (datetime.fromisoformat(after["time"]) - datetime.fromisoformat(before["time"]))
        for before, after in pairwise(turns)
        if "exit code 3" in before["message"]
    ]
    waited = [gap.total_seconds() for gap in gaps][:6]
    for took, least in zip(waited, [0, 0.05, 0.1, 0.2, 0.2, 0.2], strict=True):
        assert took >= least - 0.005, waited


def test_an_app_that_none_of_the_first_children_can_load_is_an_error(bench: Bench) -> None:
    bench.write("tasks.py", "import nothing_of_that_name")
    program = bench.worker("--count", "3")
    assert program.ends() == 2
    last = program.output[program.output.index("error: the module 'tasks' cannot be imported") :]
    assert "No module named 'nothing_of_that_name'" in last
    assert 'tasks.py", line 1' in last


def test_a_store_in_memory_is_refused_for_several_processes(bench: Bench) -> None:
    bench.write("tasks.py", TASKS.replace("sqlite:///jobs.db", "memory://"))
    program = bench.worker("--count", "2")
    assert program.ends() == 2
    assert "jobs of a store in memory: use count=1" in program.output


def test_an_app_that_breaks_later_is_retried_until_it_loads(bench: Bench) -> None:
    bench.enqueue("hold")
    program = bench.worker("--count", "2", "--max-jobs", "1")
    program.says("holds in")
    bench.write("tasks.py", "broken")
    bench.write("go", "")
    program.says("NameError: name 'broken' is not defined")
    bench.write("tasks.py", TASKS)
    program.started(4)
    bench.enqueue("quick", "quick")
    program.says("quick in", 2)
    program.send(signal.SIGTERM)
    assert program.ends() == 0


def test_a_child_that_reached_max_jobs_is_replaced_at_once(bench: Bench) -> None:
    bench.enqueue("quick", "quick", "quick")
    program = bench.worker("--max-jobs", "1", "--concurrency", "1")
    pids = program.says_pids(r"quick in (\d+)", 3)
    assert len(set(pids)) == 3
    assert "delay between restarts grows" not in program.output
    program.send(signal.SIGTERM)
    assert program.ends() == 0
    assert f"worker process {pids[0]} reached its limit and is replaced" in program.output


@pytest.mark.parametrize("count", ["1", "3"])
def test_workers_that_run_until_idle_end_and_are_not_replaced(count: str, bench: Bench) -> None:
    bench.enqueue(*["quick"] * 20)
    program = bench.worker("--count", count, "--until-idle")
    assert program.ends() == 0
    assert program.output.count("quick in") == 20
    if count == "3":
        assert len(program.started(3)) == 3
    assert bench.left() == []


def test_a_child_that_somebody_else_stopped_is_replaced(bench: Bench) -> None:
    bench.enqueue("quick")
    program = bench.worker("--count", "2")
    [child, *_] = program.says_pids(r"quick in (\d+)")
    os.kill(child, signal.SIGTERM)
    program.says(f"worker process {child} was asked to stop and is replaced")
    program.started(3)
    program.send(signal.SIGTERM)
    assert program.ends() == 0


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_thread_that_a_task_left_behind_does_not_delay_the_end(count: str, bench: Bench) -> None:
    bench.enqueue("leak")
    program = bench.worker("--count", count)
    program.says(r"leaked in")
    program.send(signal.SIGTERM)
    assert program.ends() == 0
    program.says(r"left something running .*threads: leaked")


def switches(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches")]
    return int(line.split()[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counted by Linux")
def test_a_supervisor_with_nothing_to_do_sleeps(bench: Bench) -> None:
    bench.enqueue("quick", "quick")
    program = bench.worker("--count", "2", "--concurrency", "1")
    program.says("quick in", 2)
    before = switches(program.pid)
    threading.Event().wait(0.5)  # not a wait for something: the time over which to count
    assert switches(program.pid) - before <= 1
    program.send(signal.SIGTERM)
    assert program.ends() == 0


IMPATIENT = """
from casque.worker.supervision import registration, supervisor
assert (supervisor._REGISTERING_US, registration._LAST_SECONDS) == (3_000_000, 5.0)
supervisor._REGISTERING_US, registration._LAST_SECONDS = 300_000, 0.5
"""
"""How long a supervisor waits for a storage that does not answer, at its start and at its end."""


def test_a_supervisor_whose_entry_cannot_be_stored_still_works(bench: Bench) -> None:
    apart = bench.folder / "apart.db"
    with Queue(f"{apart}") as queue:
        queue.enqueue("anything", b"")
    supervise = IMPATIENT + SUPERVISE.replace(
        "log=log, pace", 'registered_in="apart.db", log=log, pace'
    )
    with closing(sqlite3.connect(apart, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        bench.enqueue("quick")
        program = bench.python("-c", supervise)
        program.says("quick in")
        program.send(signal.SIGTERM)
        assert program.ends() == 0
        connection.execute("ROLLBACK")


CLOSES = """
import os
from casque import App

app = App("jobs.db")

@app.task
async def closes():
    os.closerange(3, 64)
"""


def test_a_worker_whose_event_loop_a_task_has_broken_exits(bench: Bench) -> None:
    bench.write("closing.py", CLOSES)
    bench.enqueue("closes")
    program = bench.worker(app="closing:app")
    assert program.ends() == 1
    assert program.output.count("has broken the event loop") == 1, program.output
    assert program.output.count("interrupted the event loop") < 5


def test_a_child_whose_event_loop_a_task_has_broken_is_replaced(bench: Bench) -> None:
    bench.write("closing.py", CLOSES)
    bench.enqueue("closes")
    program = bench.worker("--count", "2", app="closing:app")
    program.says(r"has broken the event loop")
    program.says(r"worker process \d+ ended with exit code 1")
    program.started(3)
    program.send(signal.SIGTERM)
    assert program.ends() == 0


def test_a_program_whose_event_loop_a_task_has_broken_gets_the_error(bench: Bench) -> None:
    bench.write("closing.py", CLOSES)
    bench.write("program.py", "import closing\nclosing.app.work()\n")
    bench.enqueue("closes")
    program = bench.python("program.py")
    assert program.ends() == 1
    assert "A task has broken the event loop of its worker" in program.output
