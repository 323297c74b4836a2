"""Run: good, flaky and failing jobs, two worker processes, and a report at the end.

The queue is one SQLite file in a temporary folder. You can `kill -9` a worker while
it runs: no job is lost. On Ctrl-C the workers finish their running jobs, and the
demo ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from casque.cli.demo.screen import SLOTS, WORKERS, Screen
from casque.cli.interrupts import Interrupts
from casque.cli.output import DONE, INTERRUPTED, NOT_SO
from casque.errors import CasqueError
from casque.job import Failure, Job, JobStatus, Stats
from casque.queues.arguments import NewJob
from casque.queues.lineage import STORE_VARIABLE
from casque.queues.sync_queue import Queue
from casque.record import ABSENT, CONFIG
from casque.rules.operations import Batch, PutRecord
from casque.rules.state import QueueState
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import SystemClock, drive
from casque.worker.shell.job import SHELL, ShellCall, encode
from casque.worker.shell.settings import encoded

JOBS = 60
MAX_ATTEMPTS = 3
LOOK_US = 100_000
LEASE_SECONDS = 3
GRACE_SECONDS = 10
ERRORS = ("connection refused", "no answer in 5 s", "the server hung up")
KINDS = ("resize_photo", "fetch_price", "charge_card")

_QUEUE, _DIARY, _LOG = "jobs.db", "diary", "workers.log"


def jobs_to_do() -> list[NewJob]:
    """Return the jobs: of twelve, nine succeed, two succeed after failures, and one never does."""
    jobs: list[NewJob] = []
    for number in range(JOBS):
        work = f"sleep {0.2 + 0.08 * (number % 5):.2f}"
        error = ERRORS[number // 12 % len(ERRORS)]
        fails = f'echo "{error}"; exit {1 + number % 3}'
        if number % 12 in (2, 9):
            failures = 1 if number % 12 == 2 else 2  # noqa: PLR2004 - of a dozen
            flaky = f'{work}; [ "$CASQUE_ATTEMPT" -gt {failures} ] || {{ {fails}; }}'
            jobs.append(_job(f"fetch_price-{number:02}", flaky))
        elif number % 12 == 6:  # noqa: PLR2004 - of a dozen
            jobs.append(_job(f"charge_card-{number:02}", f"{work}; {fails}", priority=-1))
        else:
            jobs.append(_job(f"resize_photo-{number:02}", work))
    return jobs


def _job(job_id: str, command: str, *, priority: int = 0) -> NewJob:
    # Each attempt adds a line to a file; the report compares that file with the store.
    noted = f'echo "$CASQUE_JOB_ID $CASQUE_ATTEMPT" >> {_DIARY}; {command}'
    return NewJob(
        SHELL,
        encode(ShellCall(noted)),
        priority,
        id=job_id,
        max_attempts=MAX_ATTEMPTS,
        retain=timedelta(days=1),
    )


def demo() -> int:
    """Run the demo. Returns its exit code."""
    slots = f"{WORKERS} worker processes with {SLOTS} slots each"
    print(f"casque demo: {JOBS} jobs, {slots}, one SQLite file\n", flush=True)
    screen = Screen(MAX_ATTEMPTS, LEASE_SECONDS)
    try:
        with (
            Interrupts() as interrupts,  # leave no workers behind
            tempfile.TemporaryDirectory(prefix="casque-demo-") as folder,
        ):
            adds_up = _run(Path(folder), screen, interrupts)
    except KeyboardInterrupt:
        print(f"\n  Stopped by Ctrl-C after {screen.seconds:.1f} s{_whereabouts(screen.last)}")
        return INTERRUPTED
    print(f"  Took {screen.seconds:.1f} s.")
    return DONE if adds_up else NOT_SO


def _run(folder: Path, screen: Screen, interrupts: Interrupts) -> bool:
    """Enqueue the jobs, run workers and show the progress. True if the final numbers add up."""
    store = SqliteStore(folder / _QUEUE)
    store.announce_to(lambda _: None)  # it is removed at the end
    with Queue(store) as queue:
        value = encoded("backoff_base", "1")
        change = PutRecord(CONFIG, "backoff_base", value, ABSENT)
        drive(store.commit([Batch("demo", 1, [change])]))
        queue.enqueue_many(jobs_to_do())
        with screen:
            try:
                with _workers(folder, interrupts) as process:
                    _watch(queue, folder, screen, process)
            finally:
                screen.show(queue.stats(), is_last=True)
        state = queue.read_state()
    drive(store.close())
    return _report(state, (folder / _DIARY).read_text().splitlines())


@contextmanager
def _workers(folder: Path, interrupts: Interrupts) -> Iterator[subprocess.Popen[bytes]]:
    """Start worker processes under a supervisor, as a user would; stop them at the end."""
    command = [sys.executable, "-m", "casque.cli", "worker", "start", "--foreground"]
    command += [f"--count={WORKERS}", f"--concurrency={SLOTS}"]
    command += [f"--lease={LEASE_SECONDS}s", f"--grace={GRACE_SECONDS}s"]
    environment = {**os.environ, STORE_VARIABLE: str(folder / _QUEUE)}
    interrupts.hold()
    with (
        (folder / _LOG).open("wb") as log,
        subprocess.Popen(  # noqa: S603 - our own module, by the same Python
            command, cwd=folder, env=environment, stdout=log, stderr=log
        ) as process,
    ):
        try:
            interrupts.release()
            yield process
        finally:
            _stop(process, interrupts)


def _stop(process: subprocess.Popen[bytes], interrupts: Interrupts) -> None:
    """Stop the workers after their running jobs; on another Ctrl-C, give the jobs back at once."""
    process.send_signal(signal.SIGTERM)  # has no effect if Ctrl-C has reached it too
    while True:
        try:
            interrupts.release()
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
        else:
            return


def _watch(queue: Queue, folder: Path, screen: Screen, process: subprocess.Popen[bytes]) -> None:
    """Show the progress until all jobs are finished."""
    bell = SystemClock().bell(blocking=True)
    while process.poll() is None:
        screen.update(queue.read_state().jobs)
        stats = queue.stats()
        screen.show(stats)
        if stats.completed + stats.dead == JOBS:
            return
        drive(bell.wait(LOOK_US))
    last_words = (folder / _LOG).read_text()[-2000:]
    raise CasqueError(f"the workers ended with code {process.returncode}: {last_words}")


def _report(state: QueueState, ran: Sequence[str]) -> bool:
    """Print the outcome of the jobs. True if the store agrees with the file that the jobs wrote."""
    print(f"\n  {'kind':<14}{'jobs':>6}{'completed':>12}{'dead':>7}{'attempts':>11}")
    for kind in KINDS:
        print(_row(kind, [job for job in state.jobs if job.id.startswith(kind)]))
    print(_row("all", state.jobs))
    print("\n  dead letters")
    dead = [job for job in state.jobs if job.status is JobStatus.DEAD]
    for job in dead:
        output = (job.output or b"").decode(errors="replace").strip()
        print(f"  {job.id:<18}{job.attempts} attempts   {job.error}: {output}")
    completed = sum(job.status is JobStatus.COMPLETED for job in state.jobs)
    attempts = sum(job.attempts for job in state.jobs)
    ended = Counter(succeeded=0, failed=0)
    ended.update(_fate(attempt.failure) for job in state.jobs for attempt in job.history)
    print(f"\n  {JOBS} enqueued = {completed} completed + {len(dead)} dead")
    print(f"  {attempts} attempts = " + " + ".join(f"{n} {how}" for how, n in ended.items()))
    adds_up = (
        len(state.jobs) == completed + len(dead) == JOBS
        and attempts == ended.total()
        and completed == ended["succeeded"]
        and _as_they_say(state, ran)
    )
    print("  The numbers add up." if adds_up else "  THE NUMBERS DO NOT ADD UP.")
    return adds_up


def _fate(failure: Failure | None) -> str:
    if failure is None:
        return "succeeded"
    return "lost" if failure.kind == "lost" else "failed"  # lost with its worker


def _as_they_say(state: QueueState, ran: Sequence[str]) -> bool:
    """True if no attempt ran twice, and the file that the jobs wrote fits the stored attempts."""
    recorded = {f"{job.id} {one.number}": one for job in state.jobs for one in job.history}
    succeeded = {name for name, one in recorded.items() if one.failure is None}
    return len(ran) == len(set(ran)) and succeeded <= set(ran) <= set(recorded)


def _row(title: str, jobs: Sequence[Job]) -> str:
    count = Counter(job.status for job in jobs)
    attempts = sum(job.attempts for job in jobs)
    completed, dead = count[JobStatus.COMPLETED], count[JobStatus.DEAD]
    return f"  {title:<14}{len(jobs):>6}{completed:>12}{dead:>7}{attempts:>11}"


def _whereabouts(stats: Stats) -> str:
    """Describe what became of the jobs of an interrupted demo."""
    left = stats.total - stats.completed - stats.dead
    if not left:
        return "."
    running = (
        f"{stats.processing} were running, and are due again when their leases end"
        if stats.processing
        else "the workers finished the running jobs; the rest would wait for other workers"
    )
    return f": {stats.completed} completed, {stats.dead} dead, {left} left;\n  {running}."
