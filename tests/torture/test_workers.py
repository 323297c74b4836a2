"""Workers killed at random moments, and workers whose storage is unavailable for half a minute.

`make torture SECONDS=600` runs the first test for that long. In CI it takes a few
seconds, and the others are skipped.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.acceptance.fleet import STORES, Fleet, assert_each_done_once, chore, until
from tests.acceptance.outages import FAULTS, outlive_a_bucket, outlive_a_locked_file

SECONDS = float(os.environ.get("CASQUE_TORTURE_SECONDS", "3"))
AWAY = 30.0
MOST_JOBS = 3_000
"""Jobs are kept after they end, for the checks, and a document writes all of them each time."""

long_enough = pytest.mark.skipif(SECONDS < AWAY, reason="takes a minute: make torture SECONDS=60")


@pytest.mark.parametrize("store", STORES)
def test_workers_killed_at_random_lose_nothing_and_double_nothing(
    store: str, tmp_path: Path
) -> None:
    seed = time.time_ns()
    chance = random.Random(seed)
    settings = ("--lease", "2", "--concurrency", "4")
    ids: list[str] = []
    with Fleet(tmp_path, store) as fleet:

        def enqueue(count: int) -> None:
            jobs = [
                chore(
                    chance.choice(["note", "note_plainly", "block_the_loop"]),
                    f"job-{len(ids) + number}",
                    seconds=chance.expovariate(50),
                )
                for number in range(count)
            ]
            ids.extend(job.id for job in fleet.queue.enqueue_many(jobs))

        enqueue(100)
        workers = [fleet.start(*settings) for _ in range(3)]
        kills, end = 0, time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.1, 1.0))
            victim = chance.randrange(len(workers))
            workers[victim].kill()
            workers[victim].wait()
            kills += 1
            workers[victim] = fleet.start(*settings)
            if fleet.queue.stats().completed > len(ids) - 50 and len(ids) < MOST_JOBS:
                enqueue(100)
        fleet.until_completed(len(ids), within=120)
        assert_each_done_once(fleet, ids)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(60)
        until("the entries of the dead are gone", lambda: not fleet.registry())
        print(f"{store}: seed {seed}, {kills} kills, {len(ids)} jobs")


@long_enough
def test_workers_wait_for_a_file_that_is_locked_for_half_a_minute(tmp_path: Path) -> None:
    outlive_a_locked_file(tmp_path, AWAY)


@long_enough
@pytest.mark.parametrize("fault", FAULTS)
def test_workers_wait_for_a_bucket_that_is_unavailable_for_half_a_minute(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    outlive_a_bucket(fault, tmp_path, AWAY)
