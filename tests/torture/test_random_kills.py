"""Workers killed at random moments, again and again: nothing is lost, nothing is acked twice.

`make torture SECONDS=600` runs it for that long; in CI it takes a few seconds.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from casque import NewJob, Queue

SECONDS = float(os.environ.get("CASQUE_TORTURE_SECONDS", "3"))

WORKER = """
import sys
from datetime import timedelta
from casque import CasqueError, HeartbeatManager, NewJob, Queue
with Queue(sys.argv[1], lease=timedelta(seconds=1)) as q:
    while True:
        for job in q.dequeue(batch_size=2, wait=timedelta(milliseconds=200)):
            try:
                with HeartbeatManager(q, job):
                    follow = job.payload == b"first"
                q.ack(job, enqueue=[NewJob("e", b"second", id=job.id + "+")] if follow else [])
            except CasqueError as error:
                print("lost", job.id, type(error).__name__, flush=True)
            else:
                print("acked", job.id, flush=True)
"""


def start(path: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen([sys.executable, "-c", WORKER, path], stdout=output)


@pytest.mark.parametrize(
    ("name", "longest"), [("queue.json", 0.6), ("jobs.db", 0.2), ("queue/", 0.2)]
)
def test_random_kills_lose_nothing_and_double_nothing(
    name: str, longest: float, tmp_path: Path
) -> None:
    chance = random.Random(time.time_ns())
    path = f"{tmp_path}/{name}"
    logs: list[Path] = []
    with Queue(path) as q:
        asked = [job.id for job in q.enqueue_many([NewJob("e", b"first")] * 20)]

        def launch() -> subprocess.Popen[bytes]:
            logs.append(tmp_path / f"worker-{len(logs)}.log")
            return start(path, logs[-1])

        workers = [launch() for _ in range(3)]
        kills, end = 0, time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.02, longest))
            victim = chance.randrange(len(workers))
            workers[victim].kill()
            workers[victim].wait()
            kills += 1
            workers[victim] = launch()
            if q.stats().total < 10:
                asked += [job.id for job in q.enqueue_many([NewJob("e", b"first")] * 20)]
                asked += [q.enqueue("e", b"first").id for _ in range(5)]
        finish = time.monotonic() + 60
        while q.stats().total and time.monotonic() < finish:
            time.sleep(0.1)
        left = q.read_state().jobs
        for worker in workers:
            worker.kill()
            worker.wait()
        assert not left, f"stuck after {kills} kills: {left}"
    lines = Counter(line for log in logs for line in log.read_text().splitlines())
    acked = {line.split()[1] for line in lines if line.startswith("acked")}
    assert all(times == 1 for line, times in lines.items() if line.startswith("acked"))
    assert acked <= set(asked) | {f"{job}+" for job in asked}
    # A worker may die after its ack was stored but before it logged it: one job per kill at most.
    assert len(acked) >= 2 * len(asked) - 2 * kills
    print(f"{name}: {kills} kills, {len(asked)} jobs enqueued, {len(acked)} acks logged")
    assert kills >= SECONDS / 2
