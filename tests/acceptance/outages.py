"""Outages: a storage that fails under busy workers, and what must be true afterwards."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.acceptance.fleet import PATIENCE, Fleet, assert_each_done_once, chore, until
from tests.servers.client import BucketServer
from tests.servers.openers import BUCKET

WORKERS = 3
AT_ONCE = 2
"""Jobs that a worker runs at a time."""
IN_HAND = WORKERS * AT_ONCE
"""Jobs that run when the storage fails, and end before it is back."""
JOBS = IN_HAND + 40
LEASE = "60"
GONE, BACK = "the storage failed", "the storage answers again"
"""What a worker logs about it, once each."""
FAULTS = ("fails", "hangs up", "is dead")
"""How a bucket fails."""


def outlive(
    fleet: Fleet,
    begin: Callable[[], object],
    end: Callable[[], object],
    seconds: float,
    patience: float | None,
) -> None:
    """Take the storage away from busy workers for this long, and until all have noticed."""
    ids = [f"job-{number}" for number in range(JOBS)]
    fleet.queue.enqueue_many([chore("wait_at_the_gate", id) for id in ids[:IN_HAND]])
    fleet.queue.enqueue_many([chore("note", id, seconds=0.02) for id in ids[IN_HAND:]])
    settings = ("--concurrency", str(AT_ONCE), "--lease", LEASE)
    workers = [fleet.start(*settings) for _ in range(WORKERS)]
    until("all slots are busy", lambda: len(fleet.times_run()) == IN_HAND)
    assert len(fleet.pids()) == WORKERS
    begin()
    over = time.monotonic() + seconds
    try:
        if patience is not None:
            (fleet.folder / "impatient").touch()
        fleet.open_gate()
        until(
            "all have noticed",
            lambda: min(times_said(fleet, GONE)) and time.monotonic() >= over,
            within=seconds + 60,
        )
        if patience is not None:
            (fleet.folder / "impatient").unlink()
            until("all are patient again", lambda: len(fleet.changes_of_patience()) == 2 * WORKERS)
            time.sleep(patience)  # requests with the short deadline fail before the storage is back
        assert fleet.times_run().total() == IN_HAND, "there is work left"
    finally:
        end()
    until("all continue", lambda: min(times_said(fleet, BACK)))
    fleet.until_completed(JOBS)
    assert_each_done_once(fleet, ids)
    assert set(fleet.times_run().values()) == {1}, "a lease that outlasts it keeps the job"
    assert (times_said(fleet, GONE), times_said(fleet, BACK)) == ([1] * WORKERS,) * 2
    assert [worker.poll() for worker in workers] == [None] * WORKERS, "none was restarted"
    for worker in workers:
        worker.terminate()
    assert [worker.wait(PATIENCE) for worker in workers] == [0] * WORKERS


def times_said(fleet: Fleet, words: str) -> list[int]:
    """How often each of the workers has logged this warning."""
    warned = [said for said in fleet.said() if said.level == "WARNING" and words in said.message]
    return [sum(said.pid == worker.pid for said in warned) for worker in fleet.workers]


def outlive_a_locked_file(folder: Path, seconds: float, patience: float | None = None) -> None:
    with (
        Fleet(folder, "jobs.db", **impatience(patience)) as fleet,
        closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as other,
    ):
        fleet.queue.stats()  # creates the queue before the other connection locks the file
        outlive(
            fleet,
            lambda: other.execute("BEGIN EXCLUSIVE"),
            lambda: other.execute("ROLLBACK"),
            seconds,
            patience,
        )


def outlive_a_bucket(
    fault: str, folder: Path, seconds: float, patience: float | None = None
) -> None:
    with bucket_server(folder / "bucket") as server:
        store = f"s3://{BUCKET}/jobs?endpoint={server.url}&region=us-east-1"
        begin, end = {
            "fails": (lambda: server.fail(503), server.clear),
            "hangs up": (server.drop_requests, server.clear),
            "is dead": (server.kill, server.restart),
        }[fault]
        with Fleet(folder, store, **impatience(patience)) as fleet:
            outlive(fleet, begin, end, seconds, patience)


def impatience(seconds: float | None) -> dict[str, str]:
    return {} if seconds is None else {"CHORES_PATIENCE_US": str(int(seconds * 1_000_000))}


@contextmanager
def bucket_server(folder: Path) -> Iterator[BucketServer]:
    """A separate server, since it is killed; its objects are on disk."""
    folder.mkdir()
    server = BucketServer(folder)
    server.make_bucket(BUCKET)
    try:
        yield server
    finally:
        server.stop()
