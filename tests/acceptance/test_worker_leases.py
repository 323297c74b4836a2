"""A lease lasts while its worker runs, whatever the task does, but not if the worker is stopped."""

from __future__ import annotations

import signal
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from casque import Job, JobStatus
from tests.acceptance.fleet import (
    PATIENCE,
    STORES,
    Fleet,
    Said,
    assert_each_done_once,
    chore,
    until,
)
from tests.forkserver import Forked

LEASE = 6.0
"""A worker that renews it does not lose it on a busy machine."""
SHORT_TURN = 0.000_5
"""Seconds; a tenth of what Python gives a thread by itself."""
NOW = timedelta(0)
TRIES = 20
"""How often a stop in the middle of a write is undone."""


@pytest.mark.parametrize("store", STORES)
def test_a_task_that_takes_two_leases_runs_once_and_so_does_one_that_blocks_the_event_loop(
    store: str, tmp_path: Path
) -> None:
    jobs = [
        chore("note", "async", seconds=2.2 * LEASE),
        chore("note_plainly", "plain", seconds=2.2 * LEASE),
        chore("block_the_loop", "blocking", seconds=1.5 * LEASE),
    ]
    with Fleet(tmp_path, store) as fleet:
        fleet.queue.enqueue_many(jobs)
        fleet.start("--lease", str(LEASE))
        until("all run", lambda: len(fleet.times_run()) == len(jobs))
        rival = fleet.start("--lease", str(LEASE))  # takes whatever becomes due
        fleet.queue.enqueue_many([chore("note", "for-the-rival")])
        fleet.until_completed(len(jobs) + 1)
        assert_each_done_once(fleet, ["async", "plain", "blocking", "for-the-rival"])
        assert set(fleet.times_run().values()) == {1}
        assert {job.attempts for job in fleet.jobs().values()} == {1}
        assert rival.poll() is None


@pytest.mark.parametrize("short", [0, 100], ids=["at the start", "after short ones"])
def test_plain_tasks_that_compute_do_not_prevent_the_renewal_of_leases(
    short: int, tmp_path: Path
) -> None:
    """Threads take short turns meanwhile: the one that renews is one of 33."""
    jobs = [chore("calculate_at_the_gate", f"job{n}") for n in range(32)]
    with Fleet(tmp_path, "jobs.db", CHORES_BEATS_PER_LEASE="60") as fleet:
        fleet.queue.enqueue_many([chore("note_plainly", f"short{n}") for n in range(short)])
        fleet.start("--lease", "60", "--concurrency", "32")
        fleet.until_completed(short)
        fleet.queue.enqueue_many(jobs)
        until("all calculate", lambda: len(fleet.times_run()) == short + len(jobs))
        held = fleet.jobs()
        until("all are renewed", lambda: are_renewed(fleet, held))
        fleet.open_gate()
        fleet.until_completed(short + len(jobs))
        assert set(fleet.times_run().values()) == {1}
        assert {job.attempts for job in fleet.jobs().values()} == {1}
        turns = fleet.turns()
        assert len(turns) == len(jobs)
        assert max(turns) < SHORT_TURN


def are_renewed(fleet: Fleet, before: dict[str, Job]) -> bool:
    """True if the leases of all running jobs were renewed."""
    return not any(
        job.status is JobStatus.IN_PROGRESS and job.heartbeat_at == before[id].heartbeat_at
        for id, job in fleet.jobs().items()
    )


def refusals(fleet: Fleet, pid: int, job: str) -> list[Said]:
    """What a worker logged about a job that it lost."""
    said = fleet.said(pid)
    warned = [one for one in said if (one.level, one.logger) == ("WARNING", "casque.worker")]
    return [one for one in warned if one.job == job and job in one.message]


def is_renewed(fleet: Fleet, before: Job) -> bool:
    return fleet.job(before.id).heartbeat_at != before.heartbeat_at


def has_stopped(pid: int) -> bool:
    """True if each of its threads has stopped."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return {task.read_text().rpartition(")")[2].split()[0] for task in tasks} == {"T"}


def stop_between_writes(fleet: Fleet, worker: Forked, job: str) -> None:
    """Stop it, but not while it holds the lock of the store: that would block all others, too."""

    def write() -> None:
        fleet.queue.pause("elsewhere")
        fleet.queue.resume("elsewhere")

    for _ in range(TRIES):
        worker.send_signal(signal.SIGSTOP)
        until("it has stopped", lambda: has_stopped(worker.pid))
        writing = threading.Thread(target=write)
        writing.start()
        writing.join(LEASE / 4)  # less than what is left of a lease that is renewed by thirds
        if not writing.is_alive():
            return
        worker.send_signal(signal.SIGCONT)
        writing.join()
        until("it has a whole lease again", partial(is_renewed, fleet, fleet.job(job)))
    pytest.fail(f"stopped {TRIES} times, and each time nobody else could write")


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("jobs.db", "wait_at_the_gate"),
        ("jobs.db", "wait_plainly_at_the_gate"),
        ("queue.json", "wait_plainly_at_the_gate"),
        ("ledger/", "wait_at_the_gate"),
    ],
)
def test_a_stopped_worker_loses_its_job_to_another_and_is_refused_when_it_wakes(
    store: str, kind: str, tmp_path: Path
) -> None:
    with Fleet(tmp_path, store) as fleet:
        fleet.queue.enqueue_many([chore(kind, "job")])
        stopped = fleet.start("--lease", str(LEASE))
        until("it runs", lambda: fleet.pids() == {stopped.pid})
        stop_between_writes(fleet, stopped, "job")
        other = fleet.start("--lease", str(LEASE))
        until("another has it", lambda: fleet.pids() == {stopped.pid, other.pid})
        fleet.open_gate()
        fleet.until_completed(1)
        record = fleet.job("job")
        assert record.result == str(other.pid).encode()
        other.terminate()
        assert other.wait(PATIENCE) == 0
        stopped.send_signal(signal.SIGCONT)
        until("it logs the refusal", lambda: refusals(fleet, stopped.pid, "job"))
        fleet.queue.enqueue_many([chore("note", "next")])
        fleet.until_completed(2)
        assert fleet.job("job") == record, "nothing was written by the one that lost it"
        assert fleet.runs("start")[-1].pid == stopped.pid, "it runs the next"
        assert len(refusals(fleet, stopped.pid, "job")) == 1, "logged once"
        stopped.terminate()
        assert stopped.wait(PATIENCE) == 0


def test_the_ack_of_a_requeued_job_is_refused_and_logged(tmp_path: Path) -> None:
    """No heartbeat comes before the job ends: the ack discovers the loss."""
    with Fleet(tmp_path, "jobs.db") as fleet:
        fleet.queue.enqueue_many([chore("wait_at_the_gate", "job")])
        slow = fleet.start("--lease", "600", "--concurrency", "1")  # so it cannot claim it again
        until("it runs", lambda: fleet.pids() == {slow.pid})
        assert fleet.queue.requeue_stale(NOW) == 1
        [ours] = fleet.queue.dequeue(id="job")
        fleet.open_gate()
        until("it logs the refusal", lambda: refusals(fleet, slow.pid, "job"))
        assert fleet.job("job").status is JobStatus.IN_PROGRESS
        fleet.queue.ack(ours, result=b'"ours"')
        assert fleet.job("job").result == b'"ours"'
        assert slow.poll() is None
