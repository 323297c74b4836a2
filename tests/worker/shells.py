"""Shell jobs for tests, and a look at the processes that they start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from casque import App, Job, NewJob, Queue
from casque.operations import PutRecord
from casque.record import ABSENT, CONFIG
from casque.settings import encoded
from casque.shelljob import SHELL, ShellCall, encode
from casque.worker.shell import add_shell
from tests.worker.apps import work_off

PATIENCE = 60.0
DAY = timedelta(days=1)
LONG_US = 600_000_000
"""A lease whose heartbeat no test lives to see."""
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


def shell_app(store: str) -> App:
    app = App(store)
    add_shell(app)
    return app


def on_each_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app for commands on each of STORES; to be made a fixture."""
    with shell_app(f"{tmp_path}/{request.param}") as app:
        yield app


def on_sqlite(tmp_path: Path) -> Iterator[App]:
    """An app for commands; to be made a fixture."""
    with shell_app(f"{tmp_path}/jobs.db") as app:
        yield app


def run(app: App, *jobs: NewJob) -> None:
    app.queue.enqueue_many(jobs)
    work_off(app)


def configure(queue: Queue, **settings: str) -> None:
    there = {one.name: one.version for one in queue._run(queue.store.records(CONFIG))}
    for key, text in settings.items():
        put = PutRecord(CONFIG, key, encoded(key, text), there.get(key, ABSENT))
        queue._run(_submit(queue, put))


async def _submit(queue: Queue, put: PutRecord) -> None:
    await queue._queue._session.submit(put)


def job_of(app: App, id: str = "job") -> Job:
    job = app.queue.get(id)
    assert job is not None
    return job


def until(what: str, happened: Callable[[], object], within: float = PATIENCE) -> None:
    end = time.monotonic() + within
    while not happened():
        assert time.monotonic() < end, f"not within {within:g} s: {what}"
        time.sleep(0.01)


def number_in(path: Path) -> int:
    """The number in a file that a command writes, once it has."""
    until(f"{path} is written", lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def lives(pid: int) -> bool:
    """Whether a process does; one that is dead but unburied does not."""
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


def session_of(leader: int) -> list[int]:
    """What lives of a session, in whatever process group."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == leader and lives(int(entry.name)):
                found.append(int(entry.name))
    return found


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
