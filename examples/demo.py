"""See casque at work: good, flaky and hopeless jobs, two worker processes, and what became of each.

The queue is one SQLite file in a temporary folder. `kill -9` a worker while it runs:
no job is lost. Ctrl-C lets the workers finish what they run, and ends. `make demo`
runs this.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from casque import App, Backoff, Job, JobStatus, NewJob, Queue, QueueState, Stats, current_job

JOBS = 60
WORKERS = 2
SLOTS = 3
MAX_ATTEMPTS = 3
BACKOFF = Backoff(base=timedelta(milliseconds=400), jitter=0)
LOOK_SECONDS = 0.1
LEASE_SECONDS = 3
GRACE_SECONDS = 10
INTERRUPTED = 130
ERRORS = ("connection refused", "no answer in 5 s", "the server hung up")

COMES_BACK = f"its jobs come back when their leases end, in {LEASE_SECONDS} s"

QUEUE, DIARY, LOG = "jobs.db", "diary.jsonl", "workers.log"

BAR = 48
RED, GREEN, YELLOW = "31", "32", "33"
HIDE_CURSOR, SHOW_CURSOR, ERASE_BELOW = "\x1b[?25l", "\x1b[?25h", "\x1b[J"


class Line(NamedTuple):
    """A line of the screen, in one colour."""

    text: str = ""
    colour: str = ""


PLAIN = Line()


class Ended(NamedTuple):
    """What a worker saw of the end of an attempt."""

    job: str
    attempt: int
    error: str | None


class Diary:
    """Middleware: writes down how each attempt ended, in the folder that the worker runs in."""

    def after(self, job: Job, result: object) -> None:  # noqa: ARG002 - middleware gets both
        self._write(Ended(job.id, job.attempts, None))

    def on_failure(self, job: Job, error: BaseException) -> None:
        self._write(Ended(job.id, job.attempts, str(error)))

    def _write(self, ended: Ended) -> None:
        with Path(DIARY).open("a") as diary:
            diary.write(json.dumps(ended) + "\n")


app = App(QUEUE, middleware=[Diary()])


@app.task(max_attempts=MAX_ATTEMPTS)
def resize_photo(seconds: float) -> None:
    """A good one, plain: it has a thread while it runs."""
    time.sleep(seconds)


@app.task(max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
async def fetch_price(seconds: float, failures: int, error: str) -> str:
    """A flaky one: it fails so many times, then it succeeds."""
    await asyncio.sleep(seconds)
    if current_job().attempt <= failures:
        raise ConnectionError(error)
    return "40.00"


@app.task(max_attempts=MAX_ATTEMPTS, backoff=BACKOFF, priority=-1)  # lower runs first
async def charge_card(seconds: float, error: str) -> None:
    """A hopeless one."""
    await asyncio.sleep(seconds)
    raise ConnectionError(error)


def jobs_to_do() -> list[NewJob]:
    """Of a dozen, nine succeed, two succeed after a failure or two, and one never will."""
    jobs: list[NewJob] = []
    for number in range(JOBS):
        seconds = 0.2 + 0.08 * (number % 5)
        error = ERRORS[number // 12 % len(ERRORS)]
        if number % 12 in (2, 9):
            failures = 1 if number % 12 == 2 else 2
            task = fetch_price.using(id=f"fetch_price-{number:02}")
            jobs.append(task.job(seconds, failures, error))
        elif number % 12 == 6:
            jobs.append(charge_card.using(id=f"charge_card-{number:02}").job(seconds, error))
        else:
            jobs.append(resize_photo.using(id=f"resize_photo-{number:02}").job(seconds))
    return jobs


@contextmanager
def workers(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Worker processes under a supervisor, as anyone would start them; stopped at the end."""
    command = [sys.executable, "-m", "casque.worker", f"{Path(__file__).resolve()}:app"]
    options = {"count": WORKERS, "concurrency": SLOTS}
    options |= {"lease": LEASE_SECONDS, "grace": GRACE_SECONDS}
    command += [f"--{name}={value}" for name, value in options.items()]
    with (
        (folder / LOG).open("wb") as log,
        subprocess.Popen(command, cwd=folder, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Let what runs end; on another Ctrl-C, give it back at once."""
    process.send_signal(signal.SIGTERM)  # changes nothing if Ctrl-C has reached it too
    while True:
        try:
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
        else:
            return


def watch(queue: Queue, folder: Path, screen: Screen, process: subprocess.Popen[bytes]) -> None:
    """Show how it goes until all jobs are finished."""
    told = 0
    while process.poll() is None:
        jobs, ends = queue.read_state().jobs, read(folder / DIARY)
        for ended in ends[told:]:
            screen.tell_failure(ended)
        told = len(ends)
        stats = queue.stats()
        screen.show(stats, [job for job in jobs if job.status is JobStatus.IN_PROGRESS])
        if stats.completed + stats.dead == JOBS:
            return
        time.sleep(LOOK_SECONDS)
    last_words = (folder / LOG).read_text()[-2000:]
    raise SystemExit(f"the workers ended with code {process.returncode}:\n{last_words}")


def read(diary: Path) -> list[Ended]:
    if not diary.exists():
        return []
    # Each entry ends with a newline: what follows the last one is still being written.
    lines = diary.read_text().split("\n")[:-1]
    return [Ended(*json.loads(line)) for line in lines]


def run(folder: Path, screen: Screen) -> bool:
    """Enqueue, work, show. Whether the numbers add up at the end."""
    with Queue(folder / QUEUE) as queue:
        queue.enqueue_many(jobs_to_do())
        try:
            with workers(folder) as process:
                watch(queue, folder, screen, process)
        finally:
            screen.show(queue.stats(), is_last=True)
        return report(queue.read_state(), read(folder / DIARY))


def report(state: QueueState, ends: Sequence[Ended]) -> bool:
    """Print what the store says became of the jobs, held against what the workers saw."""
    print(f"\n  {'entrypoint':<14}{'jobs':>6}{'completed':>12}{'dead':>7}{'attempts':>11}")
    for entrypoint in app.tasks:
        print(row(entrypoint, [job for job in state.jobs if job.entrypoint == entrypoint]))
    print(row("all", state.jobs))
    print("\n  dead letters")
    dead = [job for job in state.jobs if job.status is JobStatus.DEAD]
    for job in dead:
        print(f"  {job.id:<18}{job.attempts} attempts   {job.error}")
    completed = sum(job.status is JobStatus.COMPLETED for job in state.jobs)
    attempts = sum(job.attempts for job in state.jobs)
    fates = {
        (job.id, attempt.number): "lost"  # with its worker
        for job in state.jobs
        for attempt in job.history
        if attempt.failure is not None and attempt.failure.kind == "lost"
    }
    fates |= {(one.job, one.attempt): "failed" if one.error else "succeeded" for one in ends}
    ended = Counter(succeeded=0, failed=0)
    ended.update(fates.values())
    print(f"\n  {JOBS} enqueued = {completed} completed + {len(dead)} dead")
    print(f"  {attempts} attempts = " + " + ".join(f"{n} {how}" for how, n in ended.items()))
    adds_up = (
        len(state.jobs) == completed + len(dead) == JOBS
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


def pid_of(worker: str) -> int:
    """The process of a worker, which is a part of its name: host:pid:random."""
    return int(worker.split(":")[-2])


def is_there(worker: str) -> bool:
    try:
        os.kill(pid_of(worker), 0)  # sends nothing, but says if there is nobody to send it to
    except ProcessLookupError:
        return False
    return True


class Screen:
    """Where progress is shown: one block drawn over and over on a terminal, else plain lines."""

    def __init__(self) -> None:
        self.is_live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.last = Stats()
        self._is_coloured = not os.environ.get("NO_COLOR")
        self._started = time.monotonic()
        self._news = deque([PLAIN] * 5, maxlen=5)
        self._height = 0
        self._said_at = -1.0
        self._workers: dict[str, list[str | None]] = {}
        can_draw = (sys.stdout.encoding or "").lower().startswith("utf")
        self._full, self._empty = ("█", "░") if can_draw else ("#", ".")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def tell_failure(self, ended: Ended) -> None:
        if ended.error is None:
            return
        is_bad = ended.attempt == MAX_ATTEMPTS
        delay = BACKOFF.base.total_seconds() * BACKOFF.factor ** (ended.attempt - 1)
        fate = "dead" if is_bad else f"again in {delay:.1f} s"
        news = f"{ended.job}  attempt {ended.attempt}: {ended.error}; {fate}"
        if self.is_live:
            self._news.append(Line(f"  {news}", RED if is_bad else YELLOW))
        else:
            print(f"        {news}", flush=True)

    def show(self, stats: Stats, running: Sequence[Job] = (), *, is_last: bool = False) -> None:
        """The counts; and on a terminal, until the last, who does what and what went wrong."""
        self.last = stats
        counts = (
            f"completed {stats.completed}   dead {stats.dead}   processing {stats.processing}   "
            f"failed {stats.failed}   pending {stats.pending}"
        )
        if not self.is_live:
            if is_last or self.seconds >= self._said_at + 1:
                self._said_at = self.seconds
                print(f"{self.seconds:4.1f} s  {counts}", flush=True)
            return
        done = stats.completed + stats.dead
        filled = BAR * done // stats.total
        bar = self._full * filled + self._empty * (BAR - filled)
        lines = [
            Line(f"  {bar}  {done} of {stats.total}  {self.seconds:4.1f} s", GREEN),
            Line(f"  {counts}"),
        ]
        if not is_last:
            lines += [PLAIN, *self._slots(running), PLAIN, *self._news]
        self._draw(lines)

    def _slots(self, running: Sequence[Job]) -> list[Line]:
        """A line for each slot of each worker process, in the order that they came to be known."""
        now = {job.id: job for job in running}
        for worker, slots in list(self._workers.items()):
            slots[:] = [job_id if job_id in now else None for job_id in slots]
            if not is_there(worker):
                del self._workers[worker]
                self._news.append(Line(f"  worker {pid_of(worker)} is gone: {COMES_BACK}", RED))
        for job in running:
            worker = job.worker or ""
            if worker in self._workers or is_there(worker):
                slots = self._workers.setdefault(worker, [None] * SLOTS)
                if job.id not in slots and None in slots:
                    slots[slots.index(None)] = job.id
        lines: list[Line] = []
        for worker, slots in self._workers.items():
            for job_id in slots:
                doing = f"{job_id:<18} attempt {now[job_id].attempts}" if job_id else "waiting"
                lines.append(Line(f"  worker {pid_of(worker):<8} {doing}"))
        missing = WORKERS * SLOTS - len(lines)
        return (lines + [Line("  worker          starting")] * missing)[: WORKERS * SLOTS]

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
        else "the workers finished what was running, and the rest would wait for others"
    )
    return f": {stats.completed} completed, {stats.dead} dead, {left} left;\n  {running}."


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # the workers must not stay behind
    slots = f"{WORKERS} worker processes with {SLOTS} slots each"
    print(f"casque demo: {JOBS} jobs, {slots}, one SQLite file\n", flush=True)
    screen = Screen()
    try:
        with tempfile.TemporaryDirectory(prefix="casque-demo-") as folder:
            adds_up = run(Path(folder), screen)
    except KeyboardInterrupt:
        print(f"\n  Stopped by Ctrl-C after {screen.seconds:.1f} s{whereabouts(screen.last)}")
        return INTERRUPTED
    finally:
        screen.close()
    print(f"  Took {screen.seconds:.1f} s.")
    return 0 if adds_up else 1


if __name__ == "__main__":
    sys.exit(main())
