"""A ledger with a million jobs, and one with a million commits behind it.

It measures how long opening takes, in a folder and over a bucket that takes 50 ms to answer, the
memory of a queued job, commits while a snapshot of a million jobs is written, and the objects that
are left after a million jobs. `--jobs 100000` is a quick run, without limits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bucket import PAYLOAD, DistantBucket

from casque import BrokerQueue, NewJob, Queue
from casque.buckets.folder import FolderBucket
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Listed
from casque.stores.ledger.ledger_bucket import Upkeep
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US, drive

AT_ONCE = 1_000
FOLDER_SECONDS = 15.0
BUCKET_SECONDS = 30.0
JOB_BYTES = 1_024
P99_RATIO = 3.0
OBJECTS = 50
COMMITS_PER_CYCLE = 3
OFTEN = Upkeep(snapshot_entries=200)
SHORT = Upkeep(deletion_age_us=2 * SECOND_US, proof_age_us=SECOND_US // 2)

OPEN = """
import json, resource, sys, time
from pathlib import Path
from casque import Queue

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

with Queue(sys.argv[1] + "-empty/") as q:
    q.enqueue("warm up")
before, begun = resident(), time.perf_counter()
with Queue(sys.argv[1] + "/") as q:
    total = q.stats().total
    counted, begun = time.perf_counter() - begun, time.perf_counter()
    q.queues()  # reads the jobs
    seconds = time.perf_counter() - begun
    print(json.dumps([total, seconds, resident() - before, counted]))
"""


def fill(q: Queue, jobs: int) -> None:
    for begin in range(0, jobs, AT_ONCE):
        count = min(AT_ONCE, jobs - begin)
        q.enqueue_many([NewJob("work", random.randbytes(len(PAYLOAD))) for _ in range(count)])


def in_folder(path: Path) -> tuple[int, float, int, float]:
    """Open a ledger in a folder, in a new process.

    Returns its jobs, the seconds and the bytes that it takes to read them, and the seconds that it
    takes to count them without reading them.
    """
    command = [sys.executable, "-c", OPEN, str(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    total, seconds, size, counted = json.loads(told)
    return total, seconds, size, counted


async def over_bucket(bucket: MemoryBucket) -> tuple[int, float]:
    """Open a ledger in a bucket 50 ms away. Returns its jobs and the seconds."""
    async with BrokerQueue(LedgerStore(DistantBucket(bucket))) as q:
        begun = time.perf_counter()
        await q.queues()  # reads the jobs
        took = time.perf_counter() - begun
        return (await q.stats()).total, took


def say(what: str, *, kept: bool) -> bool:
    print(f"{what}: {'kept' if kept else 'MISSED'}", flush=True)
    return kept


def many_jobs(jobs: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "queue"
        with Queue(f"{path}/") as q:
            fill(q, jobs)
        total, seconds, size, counted = in_folder(path)
        assert total == jobs
        here = say(
            f"opening {jobs:,} jobs in a folder: {seconds:.1f} s, at most {FOLDER_SECONDS:g}; "
            f"{size / jobs:.0f} bytes of memory a job, at most {JOB_BYTES}; `stats` without them "
            f"{counted:.2f} s",
            kept=seconds <= FOLDER_SECONDS and size <= JOB_BYTES * jobs,
        )
    bucket = MemoryBucket()
    store = LedgerStore(bucket, upkeep=OFTEN)
    with Queue(store) as q:
        fill(q, jobs)
        drive(store.close())
    total, seconds = asyncio.run(over_bucket(bucket))
    assert total == jobs
    there = say(
        f"opening {jobs:,} jobs over 50 ms: {seconds:.1f} s, at most {BUCKET_SECONDS:g}",
        kept=seconds <= BUCKET_SECONDS,
    )
    return here and there and asyncio.run(commits_beside_a_snapshot(bucket, jobs))


async def commits_beside_a_snapshot(bucket: MemoryBucket, jobs: int) -> bool:
    """Compare the commits while a snapshot of all jobs is written with those without."""
    store = LedgerStore(DistantBucket(bucket))
    background = store.housekeeping.background
    alone: list[float] = []
    beside: list[float] = []
    async with BrokerQueue(store) as q:
        await q.queues()  # reads the jobs
        while len(alone) < OFTEN.snapshot_entries + 100 or background.is_busy:
            begun, was_busy = time.perf_counter(), background.is_busy
            await q.enqueue("work", PAYLOAD)
            took = time.perf_counter() - begun
            (beside if was_busy and background.is_busy else alone).append(took)
    slow, slower = (statistics.quantiles(one, n=100)[98] for one in (alone, beside))
    return say(
        f"p99 of {len(beside)} commits while a snapshot of {jobs:,} jobs is written: "
        f"{1e3 * slower:.0f} ms, of {len(alone)} without {1e3 * slow:.0f} ms: "
        f"{slower / slow:.2f}x, at most {P99_RATIO:g}x",
        kept=slower <= P99_RATIO * slow,
    )


def many_commits(commits: int) -> bool:
    """Commit one by one, and open what is left."""
    bucket = MemoryBucket()
    store = LedgerStore(bucket, upkeep=SHORT)
    begun = time.perf_counter()
    with Queue(store) as q:
        for _ in range(0, commits, COMMITS_PER_CYCLE):
            q.enqueue("work", PAYLOAD)
            for job in q.dequeue("work"):
                q.ack(job)
        took = time.perf_counter() - begun
        drive(store.close())
    total, seconds = asyncio.run(over_bucket(bucket))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "queue"
        for key, body in contents(bucket):
            (path / key).parent.mkdir(parents=True, exist_ok=True)
            (path / key).write_bytes(body)
        _, in_here, _, _ = in_folder(path)
    return say(
        f"opening after {commits:,} commits (in {took:.0f} s): {in_here:.1f} s in a folder, at "
        f"most {FOLDER_SECONDS:g}; {seconds:.1f} s over 50 ms, at most {BUCKET_SECONDS:g}; "
        f"{len(everything(bucket)):,} objects",
        kept=in_here <= FOLDER_SECONDS and seconds <= BUCKET_SECONDS and not total,
    )


def contents(bucket: MemoryBucket) -> list[tuple[str, bytes]]:
    found = ((one.key, drive(bucket.get(one.key))) for one in everything(bucket))
    return [(key, one.body) for key, one in found if one is not None]


def everything(bucket: MemoryBucket) -> list[Listed]:
    listed: list[Listed] = []
    while page := drive(bucket.list(after=listed[-1].key if listed else "")):
        listed += page
    return listed


def end_to_end(jobs: int, batch: int = 100) -> bool:
    """Send jobs through a ledger in a folder, and count what is left."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "queue"
        store = LedgerStore(FolderBucket(path), upkeep=SHORT)
        begun, acked = time.perf_counter(), set[str]()
        most = 0
        with Queue(store) as q:
            for begin in range(0, jobs, batch):
                q.enqueue_many([NewJob("work", PAYLOAD) for _ in range(min(batch, jobs - begin))])
                taken = q.dequeue("work", batch_size=batch)
                q.ack_many(taken)
                acked.update(job.id for job in taken)
                if begin % 50_000 == 0:
                    most = max(most, objects(path))
            took, end = time.perf_counter() - begun, time.perf_counter() + 60
            while objects(path) > OBJECTS and time.perf_counter() < end:
                assert q.dequeue("work") == []
                time.sleep(0.05)
            left = objects(path)
            drive(store.close())
        return say(
            f"{jobs:,} jobs end to end in a folder, {batch} at once, in {took:.0f} s: "
            f"{len(acked):,} acked, {left} objects left, at most {OBJECTS}; {most:,} at the most",
            kept=left <= OBJECTS and len(acked) == jobs,
        )


def objects(path: Path) -> int:
    return sum(one.is_file() for one in path.rglob("*"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs, and commits")
    parser.add_argument("--only", choices=["jobs", "commits", "end"], help="one part")
    asked = parser.parse_args()
    parts = {"jobs": many_jobs, "commits": many_commits, "end": end_to_end}
    kept = [part(asked.jobs) for name, part in parts.items() if asked.only in (None, name)]
    return 0 if all(kept) or asked.jobs < 1_000_000 else 1


if __name__ == "__main__":
    sys.exit(main())
