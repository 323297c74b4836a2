"""Shell jobs for tests, and helpers that inspect the processes that they start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from casque import App, Job, NewJob, Queue
from casque.record import ABSENT, CONFIG
from casque.rules.operations import PutRecord
from casque.stores.url import StoreAddress
from casque.tasks.app import TaskApp
from casque.worker import running
from casque.worker.attempt import RunningAttempt
from casque.worker.shell.job import SHELL, ShellCall, encode
from casque.worker.shell.settings import encoded
from casque.worker.shell.task import add_shell
from tests.worker.apps import run_until_idle, wait_for

DAY = timedelta(days=1)
LONG_US = 600_000_000
"""A lease so long that no heartbeat comes during a test."""
STORES = ("jobs.db", "queue.json", "ledger/")


def command(
    line: str,
    id: str = "job",
    *,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    attempts: int = 1,
    timeout: timedelta | None = None,
) -> NewJob:
    payload = encode(ShellCall(line, env or {}, cwd))
    return NewJob(SHELL, payload, id=id, max_attempts=attempts, retain=DAY, timeout=timeout)


def shell_app(store: StoreAddress) -> App:
    app = App(store)
    add_shell(app)
    return app


def on_each_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app for commands on each of STORES; used as a fixture."""
    with shell_app(f"{tmp_path}/{request.param}") as app:
        yield app


def on_sqlite(tmp_path: Path) -> Iterator[App]:
    """An app for commands; used as a fixture."""
    with shell_app(f"{tmp_path}/jobs.db") as app:
        yield app


def run(app: TaskApp, *jobs: NewJob) -> None:
    app.queue.enqueue_many(jobs)
    run_until_idle(app)


def configure(queue: Queue, **settings: str) -> None:
    there = {one.name: one.version for one in queue._run(queue.store.records(CONFIG))}
    for key, text in settings.items():
        put = PutRecord(CONFIG, key, encoded(key, text), there.get(key, ABSENT))
        queue._run(_submit(queue, put))


async def _submit(queue: Queue, put: PutRecord) -> None:
    await queue._queue._session.submit(put)


def job_of(app: TaskApp, id: str = "job") -> Job:
    job = app.queue.get(id)
    assert job is not None
    return job


def out_of_time_when(happened: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Let a job time out as soon as something has happened, however long that takes."""

    def check(
        attempts: running.RunningAttempts, attempt: RunningAttempt, seconds: float, reason: str
    ) -> None:
        if happened():
            attempts._time_out(attempt, reason)
        else:
            again = attempts._loop.call_later(0.01, check, attempts, attempt, seconds, reason)
            attempt.timer = again

    def begin(
        attempts: running.RunningAttempts, attempt: RunningAttempt, seconds: float, reason: str
    ) -> None:
        if attempt.timer is not None:
            attempt.timer.cancel()
        check(attempts, attempt, seconds, reason)

    patch.setattr(running.RunningAttempts, "_set_timer", begin)


def number_in(path: Path) -> int:
    """The number that a command writes to a file; waits for it."""
    wait_for(f"{path} is written", lambda: is_written(path))
    return int(path.read_text())


def lives(pid: int) -> bool:
    """True if the process is alive; a zombie is not."""
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


def is_written(*paths: Path) -> bool:
    """True if commands have written a line to each file."""
    return all(path.exists() and path.read_text().endswith("\n") for path in paths)


def session_of(leader: int) -> list[int]:
    """The living processes of a session, in any process group."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == leader and lives(int(entry.name)):
                found.append(int(entry.name))
    return found


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
