"""Outages: a storage that goes away under busy workers, and what must have come of it after."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.acceptance.fleet import Fleet, assert_each_done_once, chore, until
from tests.servers.client import BucketServer
from tests.servers.openers import BUCKET

JOBS = 200
WORKERS = 4
LEASE = "60"
GONE, BACK = "the storage is in trouble", "the storage answers again"
"""What a worker says of it, once each."""
FAULTS = ("fails", "hangs up", "is dead")
"""What a bucket does when it is away."""


def outlive(
    fleet: Fleet, begin: Callable[[], object], end: Callable[[], object], seconds: float
) -> None:
    """Have four busy workers lose their storage for so long, and until all have noticed."""
    jobs = [chore("note", f"job-{number}", seconds=0.05) for number in range(JOBS)]
    fleet.queue.enqueue_many(jobs)
    workers = [fleet.start("--concurrency", "2", "--lease", LEASE) for _ in range(WORKERS)]
    until("all are at it", lambda: len(fleet.pids()) == WORKERS)
    begin()
    over = time.monotonic() + seconds
    try:
        until(
            "all have noticed",
            lambda: min(times_said(fleet, GONE)) and time.monotonic() >= over,
            within=seconds + 60,
        )
        done_before = fleet.times_run().total()
    finally:
        end()
    until("all go on", lambda: min(times_said(fleet, BACK)))
    fleet.until_completed(JOBS)
    assert done_before < JOBS, "there was work left to go on with"
    assert_each_done_once(fleet, [f"job-{number}" for number in range(JOBS)])
    assert set(fleet.times_run().values()) == {1}, "a lease that outlasts it keeps the job"
    assert (times_said(fleet, GONE), times_said(fleet, BACK)) == ([1] * WORKERS,) * 2
    assert [worker.poll() for worker in workers] == [None] * WORKERS, "none was started anew"
    for worker in workers:
        worker.terminate()
    assert [worker.wait(30) for worker in workers] == [0] * WORKERS


def times_said(fleet: Fleet, words: str) -> list[int]:
    """How often each of the workers has warned of this."""
    warned = [said for said in fleet.said() if said.level == "WARNING" and words in said.message]
    return [sum(said.pid == worker.pid for said in warned) for worker in fleet.workers]


def outlive_a_locked_file(folder: Path, seconds: float, **environment: str) -> None:
    with (
        Fleet(folder, "jobs.db", **environment) as fleet,
        closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as other,
    ):
        fleet.queue.stats()  # the file is ours before another opens a transaction in it
        outlive(
            fleet,
            lambda: other.execute("BEGIN EXCLUSIVE"),
            lambda: other.execute("ROLLBACK"),
            seconds,
        )


def outlive_a_bucket(fault: str, folder: Path, seconds: float, **environment: str) -> None:
    with bucket_server(folder / "bucket") as server:
        store = f"s3://{BUCKET}/jobs?endpoint={server.url}&region=us-east-1"
        begin, end = {
            "fails": (lambda: server.fail(503), server.clear),
            "hangs up": (server.drop_requests, server.clear),
            "is dead": (server.kill, server.restart),
        }[fault]
        with Fleet(folder, store, **environment) as fleet:
            outlive(fleet, begin, end, seconds)


@contextmanager
def bucket_server(folder: Path) -> Iterator[BucketServer]:
    """One for this alone, since it is killed; what it was given is on disk."""
    folder.mkdir()
    server = BucketServer(folder)
    server.make_bucket(BUCKET)
    try:
        yield server
    finally:
        server.stop()
