"""Fleet: real worker processes on one store, what they ran, and what they logged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from casque import Job, JobStatus, NewJob, Queue
from casque.record import WORKER, Record
from tests.forkserver import Forked

PATIENCE = 100.0
"""How many seconds of real time to wait for something that must happen."""
ALL_ATTEMPTS = 1_000
"""So many that no job runs out of attempts because a test kills workers."""
DAY = timedelta(days=1)
STORES = ("jobs.db", "queue.json", "ledger/")
"""Where a queue is: SQLite, the document, and a ledger in a folder."""


def until(what: str, happened: Callable[[], object], within: float = PATIENCE) -> None:
    """Wait until `happened` returns something true; fail when the time is over."""
    end = time.monotonic() + within
    pause = 0.005
    while True:
        began = time.monotonic()
        if happened():
            return
        now = time.monotonic()
        assert now < end, f"not within {within:g} s: {what}"
        # Checking takes CPU time from the processes that we wait for: a fourth of it at most.
        time.sleep(max(pause, 3 * (now - began)))
        pause = min(1.3 * pause, 0.05)


def left(worker: Forked) -> bool:
    """True if the process group of an ended worker still has a process."""
    try:
        os.killpg(worker.pid, 0)
    except ProcessLookupError:
        return False
    return True


class Run(NamedTuple):
    """A line about a run: its start or its end."""

    job: str
    attempt: int
    pid: int
    at: float
    steady: float
    """By the monotonic clock, which all processes of the machine share."""
    what: str


class Said(NamedTuple):
    """A line that a worker logged."""

    pid: int
    at: float
    steady: float
    level: str
    logger: str
    message: str
    job: str | None


def chore(
    name: str, id: str | None = None, *, attempts: int = ALL_ATTEMPTS, **given: Any
) -> NewJob:
    """A job for one of the chores, whose record is kept."""
    return NewJob(name, msgspec.json.encode(given), id=id, max_attempts=attempts, retain=DAY)


class Fleet:
    """A store, a folder with the tasks, and the workers that were started on them."""

    def __init__(self, folder: Path, store: str, **environment: str) -> None:
        self.folder = folder
        self.store = store if "://" in store else f"{folder}/{store}"
        self.queue = Queue(self.store)
        self.workers: list[Forked] = []
        self._environment = os.environ | {
            "CHORES_STORE": self.store,
            "CHORES_FOLDER": str(folder),
            **environment,
        }
        shutil.copy(Path(__file__).with_name("chores.py"), folder / "chores.py")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        running = [worker for worker in self.workers if worker.poll() is None]
        for worker in running:
            os.killpg(worker.pid, signal.SIGKILL)  # and what it started, stopped or not
            worker.wait()
        self.queue.close()
        if error is not None:
            for log in sorted(self.folder.glob("worker-*.log")):
                print(f"--- {log.name}\n{log.read_text()[-1_000:]}")
            return
        ended = [worker for worker in self.workers if worker not in running]
        until("nothing that a worker started outlives it", lambda: not any(map(left, ended)), 20)

    def start(self, *arguments: str) -> Forked:
        """One more `python -m casque.worker`, with these arguments."""
        with (self.folder / f"worker-{len(self.workers)}.log").open("wb") as log:
            worker = Forked(
                ["casque.worker", "chores:app", *arguments],
                cwd=self.folder,
                env=self._environment,
                stdout=log.fileno(),
                stderr=log.fileno(),
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def until_stopping(self, count: int) -> None:
        """Wait until this many workers have logged that they are stopping."""
        until("they stop", lambda: sum("stopping; " in one.message for one in self.said()) >= count)

    # -- what they did -------------------------------------------------------------

    def runs(self, what: str | None = None) -> list[Run]:
        """All lines about runs so far; or only those of a `start`, or only those of an `end`."""
        runs = [Run(**line) for line in self._lines("runs.jsonl")]
        return [run for run in runs if what in (None, run.what)]

    def times_run(self) -> Counter[str]:
        """How often each job was started."""
        return Counter(run.job for run in self.runs("start"))

    def pids(self) -> set[int]:
        return {run.pid for run in self.runs("start")}

    def said(self, pid: int | None = None) -> list[Said]:
        said = (Said(**line) for line in self._lines("said.jsonl"))
        return [one for one in said if pid in (None, one.pid)]

    def turns(self) -> list[float]:
        """The shortest switch interval that each job saw while it computed."""
        return [line["seconds"] for line in self._lines("turns.jsonl")]

    def changes_of_patience(self) -> list[bool]:
        """Each change of a worker's store to the short deadline of the test, or back."""
        return [line["is_impatient"] for line in self._lines("patience.jsonl")]

    def _lines(self, name: str) -> Iterator[Any]:
        path = self.folder / name
        if path.exists():
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    yield json.loads(line)

    # -- what the store shows ------------------------------------------------------

    def job(self, id: str) -> Job:
        found = self.queue.get(id)
        assert found is not None, f"{id} is gone"
        return found

    def jobs(self) -> dict[str, Job]:
        return {job.id: job for job in self.queue.read_state().jobs}

    def registry(self) -> list[Record]:
        """The entries of the workers."""
        return self.queue._run(self.queue.store.records(WORKER))

    def until_completed(self, count: int, within: float = PATIENCE) -> None:
        try:
            until("all are completed", lambda: self.queue.stats().completed == count, within)
        except AssertionError as missed:
            raise AssertionError(f"{missed}: {self.queue.stats()}, of {count}") from None


def assert_each_done_once(fleet: Fleet, ids: Sequence[str]) -> None:
    """By its record, every job succeeded once; by what it wrote, it did not run after that."""
    jobs = fleet.jobs()
    assert sorted(jobs) == sorted(ids)
    stats = fleet.queue.stats()
    assert (stats.completed, stats.total) == (len(ids), len(ids)), stats
    starts = fleet.runs("start")
    for claim, times in Counter((run.job, run.attempt) for run in starts).items():
        assert times == 1, f"{claim}: one claim, and {times} runs"
    latest = {run.job: run for run in sorted(starts, key=lambda run: run.attempt)}
    ended = {(run.job, run.attempt) for run in fleet.runs("end")}
    for id, job in jobs.items():
        assert job.status is JobStatus.COMPLETED
        assert [attempt.number for attempt in job.history if attempt.failure is None] == [
            job.attempts
        ], f"{id} was acked other than once: {job.history}"
        assert latest[id].attempt == job.attempts, f"{id} ran again after its ack"
        assert (id, job.attempts) in ended, f"{id} was acked before it came to its end"
    for said in fleet.said():
        if said.job is not None and "): done in " in said.message:
            assert said.steady >= latest[said.job].steady, (
                f"{said.job} ran again after its ack was logged"
            )
