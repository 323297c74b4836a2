"""Screen: one block that is redrawn on a terminal, or plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from casque.job import Attempt, Job, JobStatus, Stats
from casque.system.clock import SECOND_US, SystemClock
from casque.worker.registry.process_identity import has_ended

WORKERS = 2
SLOTS = 3
_NEWS = 5
_BAR = 48
_EVERY_US = SECOND_US


class Screen:
    """Shows the progress of the demo. A context manager: it draws while it is entered."""

    def __init__(self, max_attempts: int, lease_seconds: int) -> None:
        self.last = Stats()
        self._max_attempts = max_attempts
        self._comes_back = f"its jobs come back when their leases end, in {lease_seconds} s"
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)
        self.is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._clock = SystemClock()
        self._started_us = self._clock.monotonic()
        self._said_us = -_EVERY_US
        self._news: deque[Text] = deque([Text()] * _NEWS, maxlen=_NEWS)
        self._running: list[Job] = []
        self._seen: set[tuple[str, int]] = set()
        self._workers: dict[str, list[str | None]] = {}

    @property
    def seconds(self) -> float:
        return (self._clock.monotonic() - self._started_us) / SECOND_US

    def __enter__(self) -> Self:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_live:
            self._live.stop()

    def update(self, jobs: Sequence[Job]) -> None:
        """Note which of these jobs run, and which attempts failed since the last update."""
        self._running = [job for job in jobs if job.status is JobStatus.IN_PROGRESS]
        for job in jobs:
            for attempt in job.history:
                if (job.id, attempt.number) not in self._seen:
                    self._seen.add((job.id, attempt.number))
                    self._add_failure(job, attempt)

    def _add_failure(self, job: Job, attempt: Attempt) -> None:
        failure = attempt.failure
        if failure is None:
            return
        is_dead = attempt.number == self._max_attempts
        again = "retry soon" if failure.kind == "lost" else "retry in 1 s"
        fate = "dead" if is_dead else again
        news = f"{job.id}  attempt {attempt.number}: {failure.text}; {fate}"
        if self.is_live:
            self._news.append(Text(f"  {news}", "red" if is_dead else "yellow"))
        else:
            print(f"        {news}", flush=True)

    def show(self, stats: Stats, *, is_last: bool = False) -> None:
        """Draw the counts; on a terminal also the workers and failures, except in the last call."""
        self.last = stats
        counts = (
            f"completed {stats.completed}   dead {stats.dead}   processing {stats.processing}   "
            f"failed {stats.failed}   pending {stats.pending}"
        )
        now = self._clock.monotonic()
        if self.is_live:
            self._live.update(self._block(stats, counts, is_last=is_last), refresh=True)
        elif is_last or now >= self._said_us + _EVERY_US:
            self._said_us = now
            print(f"{self.seconds:4.1f} s  {counts}", flush=True)

    def _block(self, stats: Stats, counts: str, *, is_last: bool) -> Group:
        done = stats.completed + stats.dead
        head = Table.grid(padding=(0, 1))
        head.add_row(
            " ",
            ProgressBar(stats.total, done, width=_BAR, complete_style="green"),
            f"{done} of {stats.total}  {self.seconds:4.1f} s",
        )
        lines: list[Text] = [] if is_last else [Text(), *self._slots(), Text(), *self._news]
        below = [Text(f"  {counts}"), *lines]
        for line in below:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(head, *below)

    def _slots(self) -> list[Text]:
        """Return a line per slot of each worker. Workers are in the order of their first jobs."""
        now = {job.id: job for job in self._running}
        for worker, slots in list(self._workers.items()):
            slots[:] = [job_id if job_id in now else None for job_id in slots]
            if has_ended(_pid_of(worker), None):
                del self._workers[worker]
                gone = f"  worker {_pid_of(worker)} is gone: {self._comes_back}"
                self._news.append(Text(gone, "red"))
        for job in self._running:
            worker = job.worker or ""
            if worker in self._workers or not has_ended(_pid_of(worker), None):
                slots = self._workers.setdefault(worker, [None] * SLOTS)
                if job.id not in slots and None in slots:
                    slots[slots.index(None)] = job.id
        lines = [
            Text(f"  worker {_pid_of(worker):<8} {_doing(job_id, now)}")
            for worker, slots in self._workers.items()
            for job_id in slots
        ]
        missing = WORKERS * SLOTS - len(lines)
        return (lines + [Text("  worker          starting") for _ in range(missing)])[
            : WORKERS * SLOTS
        ]


def _doing(job_id: str | None, now: dict[str, Job]) -> str:
    return "waiting" if job_id is None else f"{job_id:<18} attempt {now[job_id].attempts}"


def _pid_of(worker: str) -> int:
    """The PID in the name of a worker, host:pid:random."""
    return int(worker.split(":")[-2])
