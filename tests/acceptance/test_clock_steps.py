"""The wall clock steps past the lease while jobs run: each runs once, and none is taken for lost.

In real processes, by libfaketime: their monotonic clocks do not step.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from casque import JobStatus
from tests.acceptance.fleet import STORES, chore, until
from tests.acceptance.operating import Operator
from tests.stepping import SteppingClock, SteppingFleet

LEASE = 60
"""Seconds. No test waits for its end."""
PAST = 300
HELD = ("wait_at_the_gate", "wait_plainly_at_the_gate", "wait_apart_at_the_gate")
"""An async task, a plain one in a thread, and one in a subprocess."""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    workers: list[subprocess.Popen[bytes]] = []
    yield workers
    for worker in workers:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


@pytest.mark.parametrize(("store", "count"), [*((store, 1) for store in STORES), (STORES[0], 2)])
def test_a_job_runs_once_even_if_the_clock_steps_past_its_lease(
    count: int, store: str, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    with SteppingFleet(tmp_path, store) as fleet:
        so_far = 0
        for number in range(count):
            # One worker at a time: each then holds all its jobs, and has room for more.
            held = [chore(name, f"{name}-{number}", attempts=1) for name in HELD[:2]]
            held += [chore(name, f"{name}-{number}-again") for name in HELD[:2]]
            fleet.queue.enqueue_many(held)
            settings = ("--lease", str(LEASE), "--concurrency", "5")
            started.append(fleet.start_stepping(*settings))
            so_far += len(held)
            until("they run", lambda: len(fleet.times_run()) == so_far)  # noqa: B023 - at once
        fleet.queue.enqueue_many([chore("note", "before")])
        until("it is done", lambda: fleet.job("before").status is JobStatus.COMPLETED)
        for done in (1, 21):
            fleet.clock.step(PAST)
            fleet.queue.enqueue_many([chore("note", f"{done}-{number}") for number in range(20)])
            fleet.until_completed(done + 20)
        fleet.open_gate()
        fleet.until_completed(41 + so_far)
        assert set(fleet.times_run().values()) == {1}
        assert {job.attempts for job in fleet.jobs().values()} == {1}
        for worker in started:
            worker.terminate()
            assert worker.wait(60) == 0


def test_a_job_in_a_subprocess_runs_once_even_if_the_clock_steps(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    with SteppingFleet(tmp_path, "jobs.db") as fleet:
        fleet.queue.enqueue_many([chore(HELD[2], "apart", attempts=1), chore(HELD[2], "again")])
        started.append(fleet.start_stepping("--lease", str(LEASE), "--concurrency", "5"))
        held = {"apart", "again"}
        until("they run", lambda: fleet.queue.stats().processing == len(held))
        fleet.clock.step(PAST)
        fleet.queue.enqueue_many([chore("note", "after")])
        until("it is done", lambda: fleet.job("after").status is JobStatus.COMPLETED)
        fleet.open_gate()
        fleet.until_completed(3)
        assert {job.attempts for job in fleet.jobs().values()} == {1}


def test_a_command_runs_once_even_if_the_clock_steps_past_its_lease(tmp_path: Path) -> None:
    clock = SteppingClock(tmp_path)
    with Operator(tmp_path, "jobs.db") as operator:
        operator.environment |= clock.environment
        line = f"echo x >> {tmp_path}/runs; until test -e {tmp_path}/gate; do sleep 0.1; done"
        for id, attempts in (("last", "1"), ("first", "3")):
            how = ("--command", line, "--id", id, "--max-retries", attempts)
            assert operator.queuectl("enqueue", *how).code == 0
        worker = operator.begin(
            "worker", "start", "--foreground", "--concurrency", "3", "--lease", f"{LEASE}s"
        )
        runs = tmp_path / "runs"
        until("both run", lambda: runs.exists() and runs.read_text() == "x\n" * 2)
        clock.step(PAST)
        assert operator.queuectl("enqueue", "--command", "true", "--id", "after").code == 0
        until("it is done", lambda: operator.fleet.job("after").status is JobStatus.COMPLETED)
        operator.fleet.open_gate()
        operator.fleet.until_completed(3)
        assert runs.read_text() == "x\n" * 2
        assert {job.attempts for job in operator.fleet.jobs().values()} == {1}
        worker.terminate()
        worker.communicate(timeout=60)
