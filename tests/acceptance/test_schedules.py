"""Schedules in real worker processes: one job per tick, and what a deploy changes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from casque import Queue
from casque.record import SCHEDULE
from casque.system.clock import drive
from casque.tasks.schedules import readable

PATIENCE = 100.0
QUEUECTL = (sys.executable, "-m", "casque.cli")
SECOND = timedelta(seconds=1)

BEATING = """
from datetime import timedelta
from casque import App, current_job

app = App("{store}")

@app.every(timedelta(seconds=1), catch_up=timedelta(hours=1))
def beat() -> None:
    with open("ran", "a") as file:
        file.write(current_job().headers["casque-tick"] + "\\n")
"""

DEPLOYED = """
from casque import App

app = App("jobs.db")

@app.task
def report() -> None: ...

app.cron("{line}", name="{name}")(report)
"""


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    # -B: bytecode of the deploy before, of the same size and second, would be taken for this one.
    command = [sys.executable, "-B", "-m", "casque.worker", "tasks:app", *options]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)


@contextmanager
def workers(folder: Path, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    running = [start(folder) for _ in range(count)]
    try:
        yield running
    finally:
        for one in running:
            one.terminate()
        for one in running:
            one.wait(PATIENCE)


def ran(folder: Path) -> list[datetime]:
    file = folder / "ran"
    lines = file.read_text().splitlines() if file.exists() else []
    return sorted(map(datetime.fromisoformat, lines))


@pytest.mark.parametrize("store", ["jobs.db", "ledger/"])
def test_five_processes_add_one_job_per_tick_though_one_is_killed(
    store: str, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(BEATING.format(store=store))
    end = time.monotonic() + PATIENCE
    with workers(tmp_path, 5) as running:
        while len(ran(tmp_path)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        running[0].kill()
        while len(ran(tmp_path)) < 5 and time.monotonic() < end:
            time.sleep(0.05)
    ticks = ran(tmp_path)
    # The killed process may have held a job, which then waits for the end of its lease.
    expected = [ticks[0] + n * SECOND for n in range((ticks[-1] - ticks[0]) // SECOND + 1)]
    assert len(ticks) >= 5
    assert len(set(ticks)) == len(ticks)
    assert len(set(expected) - set(ticks)) <= 1
    with Queue(f"{tmp_path}/{store}") as queue:
        left = queue.stats()
    assert left.total - left.completed <= 1


def deploy(folder: Path, line: str, name: str) -> dict[str, tuple[str, bool]]:
    """Run a worker of the new code once. Returns the line of each schedule, and if it fires."""
    (folder / "tasks.py").write_text(DEPLOYED.format(line=line, name=name))
    assert start(folder, "--until-idle").wait(PATIENCE) == 0
    with Queue(f"{folder}/jobs.db") as queue:
        stored = readable(drive(queue.store.records(SCHEDULE)))
        assert queue.stats().total == 0
    return {name: (one.line, one.is_active) for name, (_, one) in stored.items()}


def test_a_schedule_is_changed_renamed_and_removed_by_deploys(tmp_path: Path) -> None:
    assert deploy(tmp_path, "@yearly", "a") == {"a": ("@yearly", True)}
    assert deploy(tmp_path, "0 0 1 2 *", "a") == {"a": ("0 0 1 2 *", True)}
    renamed = {"a": ("0 0 1 2 *", False), "b": ("@yearly", True)}
    assert deploy(tmp_path, "@yearly", "b") == renamed
    back = {"a": ("@yearly", True), "b": ("@yearly", False)}
    assert deploy(tmp_path, "@yearly", "a") == back


def test_a_running_worker_takes_up_an_operators_schedule_at_once(tmp_path: Path) -> None:
    def queuectl(*arguments: str) -> str:
        command = [*QUEUECTL, "--store", "jobs.db", *arguments]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return ran.stdout

    def until_ticks(count: int) -> None:
        end = time.monotonic() + PATIENCE
        while len(ran(tmp_path)) < count:
            assert time.monotonic() < end
            time.sleep(0.05)

    note = "queuectl_now=$(date -u +%Y-%m-%dT%H:%M:%S+00:00); echo $queuectl_now >> ran"
    command = [*QUEUECTL, "--store", "jobs.db", "worker", "start", "--foreground"]
    worker = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        queuectl("enqueue", "--id", "first", "--command", note)
        until_ticks(1)
        queuectl("schedule", "add", "beat", "--every", "1s", "--command", note)
        until_ticks(4)
        assert "completed" in queuectl("schedule", "list")
        queuectl("schedule", "remove", "beat")
    finally:
        worker.terminate()
        worker.wait(PATIENCE)
    assert queuectl("schedule", "list") == "No schedules.\n"
