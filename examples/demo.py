"""See casque at work: good, flaky and hopeless jobs, a few workers, and what became of each job.

The queue is one SQLite file in a temporary folder. Ctrl-C gives the running jobs
back and ends. `make demo` runs this.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from casque import (
    BrokerQueue,
    DirectQueue,
    HeartbeatManager,
    Job,
    JobStatus,
    LeaseLostError,
    NewJob,
    QueueState,
    Stats,
)

JOBS = 60
WORKERS = 5
MAX_ATTEMPTS = 3
FIRST_DELAY = timedelta(milliseconds=400)
LEASE = timedelta(seconds=10)
PATIENCE = timedelta(milliseconds=500)
RETAIN = timedelta(hours=1)
INTERRUPTED = 130
ERRORS = ("connection refused", "no answer in 5 s", "the server hung up")

BAR = 48
RED, GREEN, YELLOW = "31", "32", "33"
HIDE_CURSOR, SHOW_CURSOR, ERASE_BELOW = "\x1b[?25l", "\x1b[?25h", "\x1b[J"


class Line(NamedTuple):
    """A line of the screen, in one colour."""

    text: str = ""
    colour: str = ""


PLAIN = Line()


def jobs_to_do() -> list[NewJob]:
    """Of a dozen, nine succeed, two succeed after a failure or two, and one never will."""
    jobs: list[NewJob] = []
    for number in range(JOBS):
        entrypoint, failures = "resize_photo", 0
        if number % 12 in (2, 9):
            entrypoint, failures = "fetch_price", 1 if number % 12 == 2 else 2
        elif number % 12 == 6:
            entrypoint, failures = "charge_card", MAX_ATTEMPTS
        work = {
            "seconds": 0.16 + 0.06 * (number % 5),
            "failures": failures,
            "error": ERRORS[number // 12 % len(ERRORS)],
        }
        jobs.append(
            NewJob(
                entrypoint,
                json.dumps(work).encode(),
                -1 if entrypoint == "charge_card" else 0,  # lower runs first
                id=f"{entrypoint}-{number:02}",
                max_attempts=MAX_ATTEMPTS,
                retain=RETAIN,
            )
        )
    return jobs


async def perform(job: Job) -> None:
    """The work itself: it takes a while, and may fail."""
    work = json.loads(job.payload)
    await asyncio.sleep(work["seconds"])
    if job.attempts <= work["failures"]:
        raise ConnectionError(work["error"])


class Board:
    """What the workers tell: who does what, and how attempts ended."""

    def __init__(self, left: int, screen: Screen) -> None:
        self.left = left
        self.doing = ["waiting"] * WORKERS
        self.ended = Counter(succeeded=0, failed=0)
        self.screen = screen

    def succeeded(self) -> None:
        self.ended["succeeded"] += 1
        self.left -= 1

    def failed(self, job: Job, error: Exception, delay: timedelta) -> None:
        self.ended["failed"] += 1
        is_dead = job.status is JobStatus.DEAD
        self.left -= is_dead
        fate = "dead" if is_dead else f"again in {delay.total_seconds():.1f} s"
        self.screen.tell(f"{job.id}  attempt {job.attempts}: {error}; {fate}", is_bad=is_dead)


async def work(queue: BrokerQueue, number: int, board: Board) -> None:
    """One worker: take a job as soon as one is due, until all are finished."""
    while board.left:
        for job in await queue.dequeue(lease=LEASE, wait=PATIENCE):
            board.doing[number] = f"{job.id:<18} attempt {job.attempts}"
            try:
                await attempt(queue, job, board)
            except LeaseLostError:
                board.ended["lost"] += 1  # the machine slept, say, and another has the job now
            board.doing[number] = "waiting"


async def attempt(queue: BrokerQueue, job: Job, board: Board) -> None:
    try:
        try:
            async with HeartbeatManager(queue, job):
                await perform(job)
        except Exception as error:  # noqa: BLE001 - whatever the work raises is a failed attempt
            delay = FIRST_DELAY * 2 ** (job.attempts - 1)
            board.failed(await queue.nack(job, delay=delay, error=error), error, delay)
        else:
            await queue.ack(job)
            board.succeeded()
    except asyncio.CancelledError:
        # Ctrl-C: due again at once, the attempt not counted. Refused if its end was stored already.
        with suppress(LeaseLostError):
            await queue.release(job)
        raise


async def paint(queue: BrokerQueue, board: Board) -> None:
    while True:
        board.screen.show(await queue.stats(), board)
        await asyncio.sleep(board.screen.pause)


async def run(path: Path, screen: Screen) -> bool:
    """Enqueue, work, show. Whether the numbers add up at the end."""
    address = f"sqlite:///{path}"
    jobs = jobs_to_do()
    board = Board(len(jobs), screen)
    try:
        async with BrokerQueue(address) as queue:
            await queue.enqueue_many(jobs)
            async with asyncio.TaskGroup() as group:
                painter = group.create_task(paint(queue, board))
                async with asyncio.TaskGroup() as workers:
                    for number in range(WORKERS):
                        workers.create_task(work(queue, number, board))
                painter.cancel()
    finally:
        # Leaving the queue stored whatever was on its way, also after Ctrl-C.
        async with DirectQueue(address) as queue:
            screen.show(await queue.stats())
            state = await queue.read_state()
    return report(state, len(jobs), board.ended)


def report(state: QueueState, enqueued: int, ended: Counter[str]) -> bool:
    """Print what the store says became of the jobs, held against what the workers saw."""
    print(f"\n  {'entrypoint':<14}{'jobs':>6}{'completed':>12}{'dead':>7}{'attempts':>11}")
    for entrypoint in ("resize_photo", "fetch_price", "charge_card"):
        print(row(entrypoint, [job for job in state.jobs if job.entrypoint == entrypoint]))
    print(row("all", state.jobs))
    print("\n  dead letters")
    dead = [job for job in state.jobs if job.status is JobStatus.DEAD]
    for job in dead:
        print(f"  {job.id:<18}{job.attempts} attempts   {job.error}")
    completed = sum(job.status is JobStatus.COMPLETED for job in state.jobs)
    attempts = sum(job.attempts for job in state.jobs)
    print(f"\n  {enqueued} enqueued = {completed} completed + {len(dead)} dead")
    print(f"  {attempts} attempts = " + " + ".join(f"{n} {how}" for how, n in ended.items()))
    adds_up = (
        enqueued == len(state.jobs) == completed + len(dead)
        and attempts == ended.total()
        and completed == ended["succeeded"]
    )
    print("  The numbers add up." if adds_up else "  THE NUMBERS DO NOT ADD UP.")
    return adds_up


def row(title: str, jobs: Sequence[Job]) -> str:
    count = Counter(job.status for job in jobs)
    attempts = sum(job.attempts for job in jobs)
    completed, dead = count[JobStatus.COMPLETED], count[JobStatus.DEAD]
    return f"  {title:<14}{len(jobs):>6}{completed:>12}{dead:>7}{attempts:>11}"


class Screen:
    """Where progress is shown: one block drawn over and over on a terminal, else plain lines."""

    def __init__(self) -> None:
        self.is_live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.pause = 0.1 if self.is_live else 1.0
        self.last = Stats()
        self._is_coloured = not os.environ.get("NO_COLOR")
        self._started = time.monotonic()
        self._news = deque([PLAIN] * 5, maxlen=5)
        self._height = 0
        can_draw = (sys.stdout.encoding or "").lower().startswith("utf")
        self._full, self._empty = ("█", "░") if can_draw else ("#", ".")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def tell(self, news: str, *, is_bad: bool) -> None:
        if self.is_live:
            self._news.append(Line(f"  {news}", RED if is_bad else YELLOW))
        else:
            print(f"        {news}", flush=True)

    def show(self, stats: Stats, board: Board | None = None) -> None:
        """The counts; and on a terminal, with a board, who does what and what went wrong."""
        self.last = stats
        counts = (
            f"completed {stats.completed}   dead {stats.dead}   processing {stats.processing}   "
            f"failed {stats.failed}   pending {stats.pending}"
        )
        if not self.is_live:
            print(f"{self.seconds:4.1f} s  {counts}", flush=True)
            return
        done = stats.completed + stats.dead
        filled = BAR * done // stats.total
        bar = self._full * filled + self._empty * (BAR - filled)
        lines = [
            Line(f"  {bar}  {done} of {stats.total}  {self.seconds:4.1f} s", GREEN),
            Line(f"  {counts}"),
        ]
        if board is not None:
            workers = [Line(f"  worker {n}   {doing}") for n, doing in enumerate(board.doing, 1)]
            lines += [PLAIN, *workers, PLAIN, *self._news]
        self._draw(lines)

    def close(self) -> None:
        if self.is_live:
            print(SHOW_CURSOR, end="", flush=True)

    def _draw(self, lines: list[Line]) -> None:
        width = shutil.get_terminal_size().columns
        start = f"\x1b[{self._height}F" if self._height else HIDE_CURSOR  # back to the top
        body = "".join(f"\x1b[2K{self._painted(line, width)}\n" for line in lines)
        print(start + body + ERASE_BELOW, end="", flush=True)
        self._height = len(lines)

    def _painted(self, line: Line, width: int) -> str:
        # Cut, since a line that wraps would count for two when the block is drawn over.
        text = line.text[: width - 1]
        return f"\x1b[{line.colour}m{text}\x1b[0m" if line.colour and self._is_coloured else text


def whereabouts(stats: Stats) -> str:
    """Where an interrupted run left its jobs."""
    left = stats.total - stats.completed - stats.dead
    if not left:
        return "."
    running = (
        f"{stats.processing} were running, and come back when their leases end"
        if stats.processing
        else "those that were running were given back, the attempt not counted"
    )
    return f": {stats.completed} completed, {stats.dead} dead, {left} left;\n  {running}."


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    print(f"casque demo: {JOBS} jobs, {WORKERS} workers, a queue in one SQLite file\n", flush=True)
    screen = Screen()
    try:
        with tempfile.TemporaryDirectory(prefix="casque-demo-") as folder:
            adds_up = asyncio.run(run(Path(folder, "jobs.db"), screen))
    except KeyboardInterrupt:
        print(f"\n  Stopped by Ctrl-C after {screen.seconds:.1f} s{whereabouts(screen.last)}")
        return INTERRUPTED
    finally:
        screen.close()
    print(f"  Took {screen.seconds:.1f} s.")
    return 0 if adds_up else 1


if __name__ == "__main__":
    sys.exit(main())
