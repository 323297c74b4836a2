"""Workers whose wall clock steps forward and back at random moments, with kills between.

`make torture SECONDS=600` runs it for that long; in CI it takes a few seconds.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from casque import NewJob
from tests.acceptance.fleet import ALL_ATTEMPTS, Run, assert_each_done_once, until
from tests.stepping import SteppingFleet

SECONDS = float(os.environ.get("CASQUE_TORTURE_SECONDS", "3"))
LEASE = 10.0
FARTHEST_BACK = 20
"""Seconds. After a step back, processes started later wait so long for jobs claimed before it."""
MOST_JOBS = 3_000
FOR_EVER = timedelta(days=10_000)
SLOW = "no heartbeat succeeded for a whole lease"
"""Part of a worker's log line when it could not renew in time: the machine was too busy."""


class Life(NamedTuple):
    """When a worker was started and when it had died, by the monotonic clock."""

    began: float
    ended: float


class Torture:
    """Three workers, and the times of the steps and kills they went through."""

    def __init__(self, fleet: SteppingFleet, chance: random.Random) -> None:
        self._fleet = fleet
        self._chance = chance
        self.workers: list[subprocess.Popen[bytes]] = []
        self.lives: dict[int, Life] = {}
        self.steps: list[float] = []
        self.ids: list[str] = []
        for _ in range(3):
            self.start()

    def start(self) -> None:
        began = time.monotonic()
        worker = self._fleet.start_stepping("--lease", str(LEASE), "--concurrency", "4")
        self.workers.append(worker)
        self.lives[worker.pid] = Life(began, float("inf"))

    def kill(self) -> None:
        victim = self.workers.pop(self._chance.randrange(len(self.workers)))
        victim.kill()
        victim.wait()
        self.lives[victim.pid] = Life(self.lives[victim.pid].began, time.monotonic())

    def step(self) -> None:
        span = self._chance.choice([2, 15, 300, 86_400, -2, -FARTHEST_BACK])
        self.steps.append(time.monotonic())
        self._fleet.clock.step(span)

    def enqueue(self, count: int) -> None:
        jobs = [
            NewJob(
                self._chance.choice(["note", "note_plainly"]),
                msgspec.json.encode({"seconds": self._chance.choice([0.0, 0.1, 1.5])}),
                id=f"job-{len(self.ids) + number}",
                max_attempts=ALL_ATTEMPTS,
                retain=FOR_EVER,
            )
            for number in range(count)
        ]
        self.ids.extend(job.id for job in self._fleet.queue.enqueue_many(jobs))

    def doubles(self) -> tuple[list[tuple[Run, Run]], int]:
        """The runs that began while another run of the same job went on, and the count of allowed
        ones.

        Such a run is allowed if its worker was started after a step, before the other worker had
        renewed its lease, or if the other worker logged that it was too slow to renew.
        """
        ends = {(run.job, run.attempt): run.steady for run in self._fleet.runs("end")}
        slow = {(one.pid, one.job) for one in self._fleet.said() if SLOW in one.message}
        ready_at = {one.pid: one.steady for one in self._fleet.said() if "works on " in one.message}
        starts = sorted(self._fleet.runs("start"), key=lambda run: (run.job, run.attempt))
        doubled: list[tuple[Run, Run]] = []
        allowed = 0
        for first, second in pairwise(starts):
            if first.job != second.job:
                continue
            ended = min(
                ends.get((first.job, first.attempt), float("inf")), self.lives[first.pid].ended
            )
            if second.steady >= ended:
                continue
            if (first.pid, first.job) in slow or self._cannot_know(second, ready_at[second.pid]):
                allowed += 1
            else:
                doubled.append((first, second))
        return doubled, allowed

    def _cannot_know(self, run: Run, ready_at: float) -> bool:
        """Whether it was claimed soon after a step that came before its worker was ready."""
        return any(step <= run.steady < step + LEASE and step < ready_at for step in self.steps)


def test_clocks_that_step_at_random_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    seed = time.time_ns()
    chance = random.Random(seed)
    with SteppingFleet(tmp_path, "jobs.db") as fleet:
        torture = Torture(fleet, chance)
        try:
            torture.enqueue(60)
            kills, end = 0, time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(chance.uniform(0.1, 2.0))
                if chance.random() < 0.2:
                    torture.kill()
                    torture.start()
                    kills += 1
                else:
                    torture.step()
                if fleet.queue.stats().pending < 20 and len(torture.ids) < MOST_JOBS:
                    torture.enqueue(40)
            fleet.until_completed(len(torture.ids), within=180)
            assert_each_done_once(fleet, torture.ids)
            doubled, allowed = torture.doubles()
            assert not doubled, f"seed {seed}: {doubled[:3]}, steps {torture.steps}"
        finally:
            for worker in torture.workers:
                worker.terminate()
            for worker in torture.workers:
                worker.wait(60)
        until("the entries of the dead are gone", lambda: not fleet.registry(), LEASE * 20)
        print(
            f"seed {seed}: {len(torture.steps)} steps, {kills} kills, {len(torture.ids)} jobs, "
            f"{allowed} run twice at once by a worker that could not know of the step"
        )
