"""The throughput of a worker, end to end, compared with huey's consumer, in one run.

Each contender is one worker process with its default settings, on a SQLite
file that is synced at every commit, started as users start it: `python -m
casque.worker tasks:app` and `huey_consumer tasks.huey`. All jobs are enqueued
before it starts, and only count themselves. A round is one run of each, in a new
folder. The result is the median of the rounds' ratios. Then it measures how long a
worker takes to start, and how much memory it needs.
Peer: pip install '.[bench]'.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from report import Report, introduce

STARTS = 10
START_LIMIT = 0.5
WAITING = 10_000
SAMPLE = 500
"""How many jobs the worker does before its memory is read, where doing all takes too long."""
MEMORY_LIMIT = 150
PATIENCE = 60

COUNTED = """
import os, sys, time
from itertools import count
LAST = int(os.environ["BENCH_JOBS"])
numbers = count(1)  # safe among threads, and costs next to nothing

def done():
    number = next(numbers)
    if number == 1 or number == LAST:
        print("bench", number, time.time(), flush=True)
"""
"""The task of every contender, so that the comparison excludes it."""

CASQUE = (
    COUNTED
    + """
from casque import App
app = App(os.environ["BENCH_STORE"])

@app.task
async def on_the_loop():
    done()

@app.task
def in_a_thread():
    done()
"""
)

HUEY = (
    COUNTED
    + """
from huey import SqliteHuey
huey = SqliteHuey(filename=os.environ["BENCH_STORE"], fsync="BENCH_FILL" not in os.environ)

@huey.task()
def work():
    done()
"""
)

FILL_CASQUE = """
import sys, tasks
task = tasks.app.tasks[sys.argv[1]]
left = int(sys.argv[2])
while left:
    some = min(left, 10_000)
    tasks.app.enqueue_many([task.job() for _ in range(some)])
    left -= some
tasks.app.close()
"""

FILL_HUEY = """
import sys, tasks
for _ in range(int(sys.argv[2])):
    tasks.work()
"""


class Contender(NamedTuple):
    """A worker that processes a file of jobs in its own process."""

    name: str
    tasks: str
    fill: str
    task: str
    command: tuple[str, ...]


WORKER = ("-m", "casque.worker", "tasks:app")
ASYNC = Contender("casque, async", CASQUE, FILL_CASQUE, "on_the_loop", WORKER)
PLAIN = Contender("casque, plain", CASQUE, FILL_CASQUE, "in_a_thread", WORKER)
PEER = Contender("huey", HUEY, FILL_HUEY, "work", ("-m", "huey.bin.huey_consumer", "tasks.huey"))


class Started:
    """A worker process, and the lines in which its first and last job print when they ran."""

    def __init__(self, process: subprocess.Popen[str], began: float, log: Path) -> None:
        self.process = process
        self.began = began
        self._log = log

    def next_line(self) -> float:
        """Return when the next job that prints its time ran, in seconds since the start."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("bench "):
                return float(line.split()[2]) - self.began
        raise AssertionError(f"the worker ended early:\n{self._log.read_text()[-2_000:]}")

    def peak_mib(self) -> float:
        """Return its peak memory so far."""
        status = Path(f"/proc/{self.process.pid}/status")
        if status.exists():
            [line] = [one for one in status.read_text().splitlines() if one.startswith("VmHWM")]
            return int(line.split()[1]) / 1024
        self.stop()
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024 / 1024  # macOS

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)


@contextmanager
def started(
    contender: Contender, jobs: int, store: str = "jobs.db", last: int | None = None
) -> Iterator[Started]:
    """Start a worker on this many jobs; the first job and the last, or the named one, print."""
    with tempfile.TemporaryDirectory(prefix="casque-bench-") as name:
        folder = Path(name)
        (folder / "tasks.py").write_text(contender.tasks)
        environment = os.environ | {
            "BENCH_STORE": f"{folder}/{store}",
            "BENCH_JOBS": str(last or jobs),
        }
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", contender.fill, contender.task, str(jobs)],
            cwd=folder,
            env=environment | {"BENCH_FILL": "1"},
            check=True,
        )
        log = folder / "worker.log"
        with log.open("w") as errors:
            began = time.time()
            process = subprocess.Popen(
                [sys.executable, *contender.command],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            yield Started(process, began, log)
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


# -- what is measured --------------------------------------------------------------


class Round(NamedTuple):
    """Return jobs per second: from the first job to the last, and from the process start."""

    working: float
    with_start: float


def work_off(contender: Contender, jobs: int) -> Round:
    with started(contender, jobs) as worker:
        first, last = worker.next_line(), worker.next_line()
    return Round((jobs - 1) / (last - first), jobs / last)


def bare_python() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - begun


def first_job() -> float:
    """Return the seconds from the start of a worker to its first job."""
    with started(ASYNC, 1) as worker:
        return worker.next_line()


def memory(store: str, jobs: int, done: int) -> float:
    """Return the peak memory, in MiB, of a worker with this many jobs that does some of them."""
    with started(ASYNC, jobs, store, last=done) as worker:
        worker.next_line()
        worker.next_line()
        return worker.peak_mib()


# -- and how it is told ------------------------------------------------------------


def throughput(report: Report, rounds: int, jobs: int, contenders: list[Contender]) -> None:
    limits = {ASYNC: 5.0, PLAIN: 3.0}
    found: dict[Contender, list[Round]] = {contender: [] for contender in contenders}
    for number in range(rounds):
        # The first one alternates too: periodic noise must not favour one of them.
        turn = number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            found[contender].append(work_off(contender, jobs))
    for place, what in enumerate(
        ("from the first job to the last", "including the start of the worker")
    ):
        print(f"\n{jobs:,} no-op jobs, {what}, in jobs per second")
        rates = {
            contender: [measured[place] for measured in found[contender]]
            for contender in contenders
        }
        for contender, ours in rates.items():
            print(f"  {contender.name:<48} {statistics.median(ours):,.0f}")
        for contender in (ASYNC, PLAIN) if PEER in rates else ():
            pairs = zip(rates[contender], rates[PEER], strict=True)
            report.ratios(
                f"{contender.name}, against huey",
                [ours / theirs for ours, theirs in pairs],
                limits[contender] if place == 0 else None,
            )


def start_up(report: Report, times: int) -> None:
    bare, ours = [], []
    for _ in range(times):
        bare.append(bare_python())
        ours.append(first_job())
    print(f"\nfrom the start of the process to its first job ({times} times)")
    base = statistics.median(bare)
    print(f"  {'bare Python, start to end':<48} {base:.3f} s")
    report.amount(
        "a worker, above that", statistics.median(ours) - base, "s", START_LIMIT, places=3
    )


def sizes(report: Report, jobs: int) -> None:
    print(f"\npeak memory of a worker with {jobs:,} jobs waiting")
    for store, what, done in (
        ("jobs.db", "SQLite, having done all of them", jobs),
        ("ledger/", f"a ledger in a folder, after {SAMPLE} jobs", SAMPLE),
        ("queue.json", f"the document, after {SAMPLE} jobs", SAMPLE),
    ):
        peak = memory(store, jobs, min(done, jobs))
        report.amount(what, peak, "MiB", MEMORY_LIMIT, places=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of the comparison")
    parser.add_argument("--jobs", type=int, default=5_000, help="jobs of one contender's round")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 1,000 jobs: a minute")
    chosen = parser.parse_args()
    rounds, jobs, starts, waiting = chosen.rounds, chosen.jobs, STARTS, WAITING
    if chosen.quick:
        rounds, jobs, starts, waiting = 3, 1_000, 3, 2_000
    contenders = [ASYNC, PLAIN, PEER]
    if importlib.util.find_spec("huey") is None:
        print("huey is not installed, so it is skipped: pip install '.[bench]'")
        contenders.remove(PEER)
    introduce(rounds)
    report = Report()
    throughput(report, rounds, jobs, contenders)
    start_up(report, starts)
    sizes(report, waiting)
    return report.close()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
