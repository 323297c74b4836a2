"""The log of a SQLite queue is removed at random while processes use it; some are killed.

`make torture SECONDS=600` runs it for that long; in CI it takes a few seconds.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from casque import Queue

SECONDS = float(os.environ.get("CASQUE_TORTURE_SECONDS", "3"))
WORKERS = 3
PATIENCE = 120
TAIL = 1_000_000
PARTS = [("-wal", "-shm"), ("-wal",), ("-shm",)]

# One line per answer: the verb, the job, the time of the call, the time of the answer.
WORKER = """
import random, sys, time
from datetime import timedelta
from casque import CorruptError, LeaseLostError, NewJob, Queue

path, name = sys.argv[1:]
now = time.monotonic_ns
made = 0

def say(verb, job, asked):
    print(verb, job, asked, now(), flush=True)

def step(q):
    global made
    asked = now()
    if random.random() < 0.6:
        jobs = [NewJob("e", id=f"{name}-{made + n}") for n in range(random.choice([1, 1, 1, 50]))]
        made += len(jobs)
        for job in jobs:
            say("enqueue", job.id, asked)
        q.enqueue_many(jobs) if len(jobs) > 1 else q.enqueue("e", id=jobs[0].id)
        for job in jobs:
            say("enqueued", job.id, asked)
        return
    for job in q.dequeue(batch_size=random.choice([1, 10])):
        asked = now()
        say("ack", job.id, asked)
        try:
            q.ack(job)
        except LeaseLostError:
            continue
        say("acked", job.id, asked)

while True:
    with Queue(path, lease=timedelta(seconds=2)) as q:
        try:
            q.stats()
            say("opened", "-", now())
            while True:
                step(q)
        except CorruptError as error:
            assert error.is_replaced, error
            say("refused", "-", now())
"""


class Line(NamedTuple):
    verb: str
    job: str
    asked: int
    answered: int


class Removal(NamedTuple):
    """Writes acknowledged in between may be lost, if no process survived to save them."""

    since: int
    until: int


class Fleet:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self._folder = folder
        self._logs: list[Path] = []
        self.workers = [self._launch() for _ in range(WORKERS)]

    def _launch(self) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._folder / f"worker-{len(self._logs)}.log"
        self._logs.append(log)
        command = [sys.executable, "-c", WORKER, str(self.path), f"w{len(self._logs)}"]
        with log.open("wb") as output:
            return subprocess.Popen(command, stdout=output), log

    def kill(self, number: int) -> None:
        worker, _ = self.workers[number]
        assert worker.poll() is None, "the worker ended by itself"
        worker.kill()
        worker.wait()

    def suspend(self, numbers: list[int]) -> None:
        """Suspend workers. If that is all of them, none is saving the log: if one that does so is
        killed, only another one can complete the file.
        """
        while True:
            self._send(numbers, signal.SIGSTOP)
            if len(numbers) < WORKERS or not is_being_saved(self.path):
                return
            self._send(numbers, signal.SIGCONT)
            time.sleep(0.01)

    def _send(self, numbers: list[int], what: signal.Signals) -> None:
        for one in numbers:
            self.workers[one][0].send_signal(what)

    def replace(self, number: int) -> None:
        self.workers[number] = self._launch()

    def until_all_have_opened(self, since: int) -> None:
        give_up = time.monotonic() + PATIENCE
        for worker, log in self.workers:
            while last_opened(log) < since:
                assert worker.poll() is None, "the worker ended by itself"
                assert time.monotonic() < give_up, f"a worker did not reopen within {PATIENCE} s"
                time.sleep(0.02)

    def lines(self) -> Iterator[Line]:
        for log in self._logs:
            yield from lines_of(log)


def lines_of(log: Path) -> Iterator[Line]:
    whole, _, _ = log.read_text().rpartition("\n")
    for line in whole.splitlines():
        verb, job, asked, answered = line.split()
        yield Line(verb, job, int(asked), int(answered))


def last_opened(log: Path) -> int:
    """When the worker last opened the queue, from the end of its log."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - TAIL, 0))
        opened = [
            line.split() for line in file if line.startswith(b"opened") and line[-1:] == b"\n"
        ]
    return int(opened[-1][-1]) if opened else -1


def checkpoint(path: Path) -> int:
    """Move the whole log into the file. Returns a time: writes before it are in the file."""
    with closing(sqlite3.connect(path, timeout=30)) as db:
        while True:
            since = time.monotonic_ns()
            [(blocked, there, moved)] = db.execute("PRAGMA wal_checkpoint").fetchall()
            if not blocked and there == moved:  # -1 and -1 if it is blocked
                return since


def is_being_saved(path: Path) -> bool:
    """True if a process is moving the log to the file: it has SQLite's WAL_CKPT_LOCK."""
    with path.with_name(f"{path.name}-shm").open("r+b") as index:
        try:
            fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 121)
        except OSError:
            return True
    return False


def remove(path: Path, parts: tuple[str, ...]) -> int:
    for part in parts:
        path.with_name(path.name + part).unlink(missing_ok=True)
    return time.monotonic_ns()


def check(fleet: Fleet, removals: list[Removal]) -> tuple[int, int, int]:
    def may_be_lost(line: Line) -> bool:
        return any(one.since < line.answered and line.asked < one.until for one in removals)

    with closing(sqlite3.connect(fleet.path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with Queue(fleet.path) as q:
        there = {job.id for job in q.read_state().jobs}
    lines = list(fleet.lines())
    asked = {line.job for line in lines if line.verb == "enqueue"}
    excused = there | {line.job for line in lines if line.verb == "ack"}
    enqueued = [line for line in lines if line.verb == "enqueued"]
    acked = [line for line in lines if line.verb == "acked"]
    missing = [line for line in enqueued if line.job not in excused]
    assert [line for line in missing if not may_be_lost(line)] == [], "a job is lost"
    assert there <= asked, "a job is stored that nobody enqueued"
    sure = [line.job for line in acked if not may_be_lost(line)]
    assert [job for job, times in Counter(sure).items() if times > 1] == [], "acked twice"
    assert not set(sure) & there, "an acked job is still stored"
    return len(enqueued), len(acked), len(missing)


def test_removing_the_log_at_random_loses_nothing_acknowledged_afterwards(
    tmp_path: Path,
) -> None:
    seed = time.time_ns()
    chance = random.Random(seed)
    fleet, removals = Fleet(tmp_path), list[Removal]()
    rounds = kills = 0
    try:
        fleet.until_all_have_opened(0)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or not removals or rounds == len(removals):
            time.sleep(chance.uniform(0.0, 0.3))
            rounds += 1
            if chance.random() < 0.5:
                # No worker is killed until all have reopened the queue, so nothing is lost.
                removed = remove(fleet.path, chance.choice(PARTS))
                fleet.until_all_have_opened(removed)
                victims = [chance.randrange(WORKERS)]
            else:
                since = checkpoint(fleet.path)
                victims = list(range(chance.randint(1, WORKERS)))
                fleet.suspend(victims)
                removed = remove(fleet.path, chance.choice(PARTS))
                removals.append(Removal(since, removed))
            for victim in victims:
                fleet.kill(victim)
                kills += 1
            for victim in victims:
                fleet.replace(victim)
            fleet.until_all_have_opened(removed)
    finally:
        for worker, _ in fleet.workers:
            worker.kill()
            worker.wait()
    stored, acked, missing = check(fleet, removals)
    print(
        f"{rounds} removals, {kills} kills, {stored} jobs enqueued, {acked} acked; "
        f"{missing} lost with a log that only killed processes had open (seed {seed})"
    )
    assert stored > rounds
