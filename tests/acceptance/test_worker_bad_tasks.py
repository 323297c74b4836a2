"""Tasks that misbehave: one clear outcome each, and the worker runs the next job."""

from __future__ import annotations

import os
import re
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from casque import JobStatus, NewJob
from tests.acceptance.fleet import DAY, PATIENCE, Fleet, chore, until
from tests.forkserver import Forked

COMPLETED, DEAD, QUEUED = JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.QUEUED
FAILED = QUEUED
"""An ordinary failure, which is retried: for these tasks in an hour."""

BOTH_WAYS = {
    "return_no_json": (COMPLETED, ""),
    "return_too_much": (COMPLETED, ""),
    "return_a_mess": (COMPLETED, ""),
    "exit": (FAILED, "SystemExit"),
    "interrupt": (FAILED, "KeyboardInterrupt"),
    "be_trouble": (FAILED, "TroubleError.*no Exception"),
    "be_unspeakable": (FAILED, "UnspeakableError"),
    "be_cancelled": (FAILED, "CancelledError"),
    "stop_iterating": (FAILED, "StopIteration"),
}
"""The outcome of a job and its error, for an async task and for a plain one."""

OUTCOMES = {
    **BOTH_WAYS,
    **{f"{name}_plainly": outcome for name, outcome in BOTH_WAYS.items()},
    "fork": (COMPLETED, ""),
    "fork_plainly": (COMPLETED, ""),
    "fork_and_raise": (COMPLETED, ""),
    "leak_a_thread": (COMPLETED, ""),
    "leak_a_coroutine": (COMPLETED, ""),
    "vanish_apart": (FAILED, "process"),
    "exit_apart": (FAILED, "SystemExit"),
    "outstay": (FAILED, "timed out"),
}

SOON = timedelta(milliseconds=200)

PAYLOADS = {
    "undeclared": (b'{"number": 1, "colour": "red"}', QUEUED, "colour"),
    "missing": (b"{}", QUEUED, "number"),
    "of-another-type": (b'{"number": "one"}', QUEUED, "number"),
    "too-many": (b'{"*": [1, "two", 3]}', QUEUED, "too many"),
    "nothing": (b"", QUEUED, "number"),
    "not-an-object": (b"[1]", DEAD, ""),
    "not-json": (b"\xff{", DEAD, ""),
}
"""Invalid payloads for the task `declare(number: int, word: str = "")`, the status of their jobs,
and a word of the error. A job that might fit another version of the task waits for it."""


def test_each_bad_task_has_one_clear_outcome_and_the_worker_does_the_next_job(
    tmp_path: Path,
) -> None:
    with Fleet(tmp_path, "jobs.db") as fleet:
        jobs = [chore(name, name, attempts=3) for name in OUTCOMES if name != "outstay"]
        jobs += [NewJob("outstay", b"{}", id="outstay", timeout=SOON)]
        jobs += [
            NewJob("declare", payload, id=id, max_attempts=3, retain=DAY)
            for id, (payload, _, _) in PAYLOADS.items()
        ]
        jobs += [chore("nobody_knows_me", "unknown", attempts=3)]
        fleet.queue.enqueue_many(jobs)
        # One at a time: each has ended, with all its effects, before the next starts.
        worker = fleet.start("--concurrency", "1")
        until("all others were tried", lambda: len(tried(fleet)) == len(jobs) - 1)
        fleet.queue.enqueue_many([chore("note", "next"), chore("note_plainly", "next-plain")])
        until("it does the next", lambda: fleet.job("next-plain").status is COMPLETED)
        assert fleet.job("next").status is COMPLETED
        found = fleet.jobs()
        for name, (status, pattern) in OUTCOMES.items():
            assert (name, found[name].status, found[name].attempts) == (name, status, 1)
            assert re.search(pattern, found[name].error or ""), (name, found[name].error)
        for id, (_, status, named) in PAYLOADS.items():
            attempts = 1 if status is DEAD else 0
            assert (id, found[id].status, found[id].attempts) == (id, status, attempts)
            error = found[id].error
            assert error, id
            assert named in error
        assert (found["unknown"].status, found["unknown"].attempts) == (QUEUED, 0)
        for name in ("fork", "fork_plainly", "fork_and_raise"):
            assert found[name].result == str(worker.pid).encode(), "the parent's, not the child's"
        assert max(fleet.times_run().values()) == 1
        assert worker.poll() is None
        # It does not wait for the leaked thread, or for anything else that was left behind.
        worker.terminate()
        assert worker.wait(PATIENCE) == 0
        assert fleet.registry() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_task_that_ignores_sigterm_does_not_keep_its_worker_from_stopping(
    number: signal.Signals, tmp_path: Path
) -> None:
    with Fleet(tmp_path, "jobs.db") as fleet:
        fleet.queue.enqueue_many([chore("ignore_signals", "job", attempts=3)])
        worker = fleet.start("--grace", "0.1")
        until("it runs", lambda: fleet.times_run() == {"job": 1})
        # Sent repeatedly: for up to a second the signal has no effect.
        until("it releases the job", lambda: is_released(fleet, worker, number))
        assert worker.wait(PATIENCE) == 0
        assert (fleet.job("job").status, fleet.job("job").attempts) == (QUEUED, 0)
        assert fleet.registry() == []


def is_released(fleet: Fleet, worker: Forked, number: signal.Signals) -> bool:
    """True if the worker has released the job; if not, send it the signal."""
    is_held = fleet.job("job").status is JobStatus.IN_PROGRESS
    if is_held:
        os.kill(worker.pid, number)
    return not is_held


def tried(fleet: Fleet) -> list[str]:
    """The jobs that were run, or refused as invalid, and that no worker holds any more."""
    return [
        job.id
        for job in fleet.jobs().values()
        if (job.attempts or job.error) and job.status is not JobStatus.IN_PROGRESS
    ]


def test_a_task_that_ends_its_process_runs_out_of_attempts_and_the_process_is_replaced(
    tmp_path: Path,
) -> None:
    with Fleet(tmp_path, "jobs.db") as fleet:
        fleet.queue.enqueue_many([chore("vanish", "vanish", attempts=2)])
        supervisor = fleet.start("--count", "2", "--lease", "3", "--concurrency", "4")
        until("it is dead", lambda: fleet.job("vanish").status is DEAD)
        vanished = fleet.job("vanish")
        assert vanished.attempts == 2
        assert vanished.error, "it names the worker that was lost"
        assert fleet.times_run()["vanish"] == 2
        died = fleet.pids()
        # More than one process has room for, and none ends until both run some. A process that
        # starts late, after early deaths or on a busy machine, still finds some.
        fleet.queue.enqueue_many([chore("wait_at_the_gate", f"next-{n}") for n in range(40)])
        until("both work", lambda: len(fleet.pids() - died) == 2)
        fleet.open_gate()
        fleet.until_completed(40)
        assert supervisor.poll() is None
        supervisor.terminate()
        assert supervisor.wait(PATIENCE) == 0
