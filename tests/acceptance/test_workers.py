"""Workers that are killed, and workers that are asked to stop: no job is lost or done twice."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from casque import JobStatus
from casque.system.clock import SECOND_US
from casque.worker.options import DEFAULT_GRACE_US
from tests.acceptance.fleet import (
    PATIENCE,
    STORES,
    Fleet,
    assert_each_done_once,
    chore,
    until,
)

JOBS = 90
EVERY = 10
"""After how many more started runs the next worker is killed."""
GRACE = 8


def enqueue(fleet: Fleet, count: int) -> list[str]:
    """Half of the jobs are async, half plain, and long enough for a kill in the middle."""
    jobs = [
        chore(("note", "note_plainly")[number % 2], f"job-{number}", seconds=number % 5 / 10)
        for number in range(count)
    ]
    return [job.id for job in fleet.queue.enqueue_many(jobs)]


def begun_or_done(fleet: Fleet, begun: int) -> bool:
    return len(fleet.runs("start")) >= begun or fleet.queue.stats().completed == JOBS


@pytest.mark.parametrize("store", STORES)
def test_killing_workers_loses_no_job_and_doubles_none(store: str, tmp_path: Path) -> None:
    settings = ("--lease", "2", "--concurrency", "4")
    with Fleet(tmp_path, store) as fleet:
        ids = enqueue(fleet, JOBS)
        alive = {worker.pid: worker for worker in (fleet.start(*settings) for _ in range(3))}
        kills = 0
        while fleet.queue.stats().completed < JOBS:
            more = len(fleet.runs("start")) + EVERY
            until("more are run, or all done", partial(begun_or_done, fleet, more))
            victim = alive.pop(fleet.runs("start")[-1].pid, None)  # it has just started a job
            if victim is not None:
                victim.kill()
                victim.wait()
                kills += 1
                again = fleet.start(*settings)
                alive[again.pid] = again
        assert kills >= 3
        assert_each_done_once(fleet, ids)
        assert all(worker.poll() is None for worker in alive.values())
        until("one of them is ready", fleet.registry)
        for worker in alive.values():
            worker.terminate()
        for worker in alive.values():
            worker.wait(PATIENCE)
        until("the entries of the dead are gone", lambda: not fleet.registry())


def test_a_supervisor_replaces_its_killed_processes(tmp_path: Path) -> None:
    with Fleet(tmp_path, "jobs.db") as fleet:
        # No job ends before the kills are over, so there are always some for the next process.
        kinds = ("wait_at_the_gate", "wait_plainly_at_the_gate")
        jobs = [chore(kinds[number % 2], f"job-{number}") for number in range(40)]
        ids = [job.id for job in fleet.queue.enqueue_many(jobs)]
        supervisor = fleet.start("--count", "2", "--lease", "2", "--concurrency", "4")
        killed: set[int] = set()
        while len(killed) < 3:
            until("runs begin in a process that was not killed", lambda: fleet.pids() - killed)
            victim = (fleet.pids() - killed).pop()
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        fleet.open_gate()
        fleet.until_completed(len(ids))
        assert_each_done_once(fleet, ids)
        assert supervisor.poll() is None
        supervisor.terminate()
        assert supervisor.wait(PATIENCE) == 0
        until("the entries of the dead are gone", lambda: not fleet.registry())


def all_run(fleet: Fleet) -> bool:
    """True if all slots are busy and every job in them has started."""
    held = [job for job in fleet.jobs().values() if job.status is JobStatus.IN_PROGRESS]
    recorded = [job.id for job in held if job.entrypoint != "wait_apart_at_the_gate"]
    return len(held) == 10 and fleet.times_run().keys() >= set(recorded)


@pytest.mark.parametrize(("store", "count"), [*zip(STORES, (2, 1, 1), strict=True)])
def test_sigterm_releases_jobs_that_do_not_end_in_time_uncounted(
    store: str, count: int, tmp_path: Path
) -> None:
    kinds = ("wait_at_the_gate", "wait_plainly_at_the_gate", "wait_apart_at_the_gate")
    settings = ("--count", str(count), "--concurrency", "5", "--grace", str(GRACE))
    with Fleet(tmp_path, store) as fleet:
        endless = [chore(kinds[n % 3], f"endless-{n}", attempts=1) for n in range(12)]
        brief = [chore("wait_for_the_end", f"brief-{n}", attempts=1) for n in range(4)]
        fleet.queue.enqueue_many(brief + endless)
        processes = [fleet.start(*settings) for _ in range(2 // count)]
        until("all ten slots are busy", lambda: all_run(fleet))
        asked = time.monotonic()
        for process in processes:
            process.terminate()
        fleet.until_stopping(2)
        (tmp_path / "stopping").touch()
        assert [process.wait(PATIENCE) for process in processes] == [0] * len(processes)
        took_us = (time.monotonic() - asked) * SECOND_US
        assert took_us < DEFAULT_GRACE_US, "the grace of the options, not the default"
        assert fleet.registry() == []
        for id, job in fleet.jobs().items():
            if id.startswith("brief"):
                assert (job.status, job.attempts) == (JobStatus.COMPLETED, 1)
            else:
                assert (job.status, job.attempts, job.error) == (JobStatus.QUEUED, 0, None)
        assert fleet.queue.stats().pending == len(endless), "due at once"
        fleet.open_gate()
        assert fleet.start("--until-idle").wait(PATIENCE) == 0
        done = fleet.jobs().values()
        assert {(job.status, job.attempts) for job in done} == {(JobStatus.COMPLETED, 1)}
        assert len(done) == len(brief + endless)
