"""queuectl: the time to enqueue one job, to enqueue many, and to read a queue of a million.

Start-up is compared with the cost of a command that loads typer, and with bare
Python, one after another in every round. The others are times on this machine,
with limits that leave room for a slower one.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from report import Report, introduce

import casque
from casque import NewJob, Queue

QUEUECTL = str(Path(sys.executable).with_name("queuectl"))
TYPER = [sys.executable, "-c", "import typer, msgspec, sqlite3"]
BARE = [sys.executable, "-c", "import sqlite3"]
AT_MOST_OF_TYPER = 1.3
PIPED_SECONDS, LOOK_SECONDS = 10.0, 1.0
BATCH = 10_000
SHARES = {"dead": 1_000, "completed": 1_000, "scheduled": 100_000}
"""How many of the million are in a state other than pending."""


def took(command: list[str], **options: object) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    return time.perf_counter() - start


def start_up(report: Report, folder: Path, rounds: int) -> None:
    store = str(folder / "started.db")
    ours = [QUEUECTL, "--store", store, "enqueue", "--command", "true"]
    compileall.compile_dir(Path(casque.__file__).parent, quiet=1)  # as pip does when it installs
    took(ours)  # creates the file, which exists in normal use
    times: dict[str, list[float]] = {"typer": [], "bare": [], "ours": []}
    commands = {"typer": TYPER, "bare": BARE, "ours": ours}
    for number in range(rounds):
        names = list(commands)
        for name in names[number % 3 :] + names[: number % 3]:
            times[name].append(took(commands[name]))
    print(f"\nqueuectl enqueue, start to end: {statistics.median(times['ours']) * 1e3:.0f} ms")
    for name, title, limit in (
        ("typer", 'against python -c "import typer, msgspec, sqlite3"', 1 / AT_MOST_OF_TYPER),
        (
            "bare",
            'against python -c "import sqlite3"',
            None,
        ),  # importing msgspec alone takes 2.5 times this
    ):
        ratios = [their / our for their, our in zip(times[name], times["ours"], strict=True)]
        report.ratios(title, ratios, limit)


def piped(report: Report, folder: Path, jobs: int) -> None:
    lines = "".join(json.dumps({"id": f"j{n}", "command": f"echo {n}"}) + "\n" for n in range(jobs))
    command = [QUEUECTL, "--store", str(folder / "piped.db"), "enqueue", "-"]
    seconds = took(command, input=lines, text=True, stderr=subprocess.DEVNULL)
    with Queue(folder / "piped.db") as queue:
        assert queue.stats().pending == jobs
    print(f"\n{jobs:,} jobs from standard input: {jobs / seconds:,.0f} per second")
    report.amount("all of them", seconds, "s", PIPED_SECONDS, places=1)


def fill(path: Path, jobs: int) -> None:
    """Fill a queue with this many jobs, a few of them finished, and some scheduled."""
    with Queue(path) as queue:
        for first in range(0, jobs, BATCH):
            later = timedelta(days=1) if first < SHARES["scheduled"] else None
            queue.enqueue_many(
                NewJob("shell", b'{"command":"true"}', id=f"j{n}", delay=later, max_attempts=1)
                for n in range(first, min(first + BATCH, jobs))
            )
        for job in queue.dequeue(batch_size=SHARES["dead"]):
            queue.fail(job, error="no use")
        queue.enqueue_many(
            [
                NewJob("done", id=f"d{n}", retain=timedelta(days=1))
                for n in range(SHARES["completed"])
            ]
        )
        queue.ack_many(queue.dequeue("done", batch_size=SHARES["completed"]))


def looks(report: Report, folder: Path, jobs: int) -> None:
    path = folder / "deep.db"
    fill(path, jobs)
    print(f"\nat {jobs:,} jobs, start to end")
    for words in (
        "status",
        "list",
        *(f"list --state {state}" for state in ("pending", "scheduled", "dead", "completed")),
        "list --state failed",
        "dlq list",
        "queues",
    ):
        command = [QUEUECTL, "--store", str(path), *words.split()]
        report.amount(words, min(took(command) for _ in range(3)), "s", LOOK_SECONDS, places=2)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21, help="rounds of the start-up comparison")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs, 5 rounds")
    chosen = parser.parse_args()
    share = 10 if chosen.quick else 1
    rounds = 5 if chosen.quick else chosen.rounds
    os.environ.pop("CASQUE_STORE", None)
    introduce(rounds)
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        start_up(report, Path(folder), rounds)
        piped(report, Path(folder), 100_000 // share)
        looks(report, Path(folder), 1_000_000 // share)
    return report.close()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
