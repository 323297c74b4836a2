"""Chores: the tasks that the workers under test run. Each writes a line to an append-only file.

A test copies this module into its folder and starts `python -m casque.worker
chores:app` there, as a user would with their own module.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from casque import App, Backoff, current_job
from casque.worker import store_thread, worker

FOLDER = Path(os.environ["CHORES_FOLDER"])
GATE = FOLDER / "gate"
"""Chores that wait end when this file exists."""
STOPPING = FOLDER / "stopping"
"""Some chores end when this file exists. Tests create it after they asked workers to stop."""
RUNS = FOLDER / "runs.jsonl"

LATER = Backoff(base=timedelta(hours=1), jitter=0.0)
"""A failed job is not retried while a test checks it."""

app = App(os.environ["CHORES_STORE"])


def write_line(name: str, **what: object) -> None:
    """One line, in one write: lines of several processes do not mix, and a kill loses none."""
    now = {"at": time.time(), "steady": time.monotonic()}
    line = json.dumps({**now, "pid": os.getpid(), **what}) + "\n"
    descriptor = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@contextmanager
def noted() -> Iterator[None]:
    """Write a line when a run starts, and one when it ends without an exception."""
    job = current_job()
    run = {"job": job.id, "attempt": job.attempt}
    write_line(RUNS.name, what="start", **run)
    yield
    write_line(RUNS.name, what="end", **run)


class Said(logging.Handler):
    """Writes what the worker logs, as fields."""

    def emit(self, record: logging.LogRecord) -> None:
        write_line(
            "said.jsonl",
            logger=record.name,
            level=record.levelname,
            message=record.getMessage(),
            job=getattr(record, "job_id", None),
        )


logging.getLogger("casque.worker").addHandler(Said())

# The modules whose deadline decides when a store reports that there is no answer: half a minute,
# which is longer than a test may take. Not stores.conflicts, where the deadline limits how long a
# store may lose races to others.
PATIENT = [
    importlib.import_module(f"casque.{place}")
    for place in ("stores.sqlite.connection", "stores.ledger.bucket_requests", "queues.commit")
]
IMPATIENT = FOLDER / "impatient"
"""While this file exists, stores have a shorter deadline."""


def be_impatient(us: int) -> None:
    """Shorten the deadline while the file exists, and only then: a busy machine is no outage."""
    before = [vars(module)["COMMIT_DEADLINE_US"] for module in PATIENT]
    is_impatient = False
    while True:
        if IMPATIENT.exists() != is_impatient:
            is_impatient = not is_impatient
            for module, usual in zip(PATIENT, before, strict=True):
                vars(module)["COMMIT_DEADLINE_US"] = us if is_impatient else usual
            write_line("patience.jsonl", is_impatient=is_impatient)
        time.sleep(0.05)


if patience := os.environ.get("CHORES_PATIENCE_US"):
    threading.Thread(target=be_impatient, args=(int(patience),), daemon=True).start()

if beats := os.environ.get("CHORES_BEATS_PER_LEASE"):
    # Many beats of a long lease: they come soon, and a busy machine does not lose the lease.
    vars(store_thread)["BEATS_PER_LEASE"] = int(beats)

if last_words := os.environ.get("CHORES_LAST_WORDS_US"):
    # How long a stopping worker waits for a storage that does not answer.
    vars(store_thread)["LAST_WORDS_US"] = int(last_words)
    vars(worker)["_LAST_WORDS_SECONDS"] = int(last_words) / 1_000_000 + 1.0


# -- tasks that behave -------------------------------------------------------------


@app.task
async def note(seconds: float = 0.0) -> str:
    with noted():
        await asyncio.sleep(seconds)
    return current_job().id


@app.task
def note_plainly(seconds: float = 0.0) -> str:
    with noted():
        time.sleep(seconds)
    return current_job().id


@app.task
async def wait_at_the_gate() -> int:
    with noted():
        while not GATE.exists():
            await asyncio.sleep(0.01)
    return os.getpid()


@app.task
def wait_plainly_at_the_gate() -> int:
    with noted():
        while not GATE.exists():
            time.sleep(0.01)
    return os.getpid()


@app.task
async def wait_for_the_end() -> None:
    """Wait until the worker is stopping."""
    with noted():
        while not STOPPING.exists():
            await asyncio.sleep(0.01)


@app.task(run_in="process")
def wait_apart_at_the_gate() -> None:
    while not GATE.exists():
        time.sleep(0.01)


@app.task
async def block_the_loop(seconds: float) -> None:
    with noted():
        time.sleep(seconds)


@app.task
def calculate_at_the_gate() -> None:
    """Compute, and write down the shortest switch interval."""
    shortest = sys.getswitchinterval()
    with noted():
        while not GATE.exists():
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                pass  # without a call that would release the GIL
            shortest = min(shortest, sys.getswitchinterval())
    write_line("turns.jsonl", seconds=shortest)


# -- tasks that misbehave ----------------------------------------------------------


class TroubleError(BaseException):
    """Not a subclass of Exception."""


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("there are no words for it")

    __repr__ = __str__


def _interrupt() -> None:
    raise KeyboardInterrupt


def _be_trouble() -> None:
    raise TroubleError("no Exception")


def _be_unspeakable() -> None:
    raise UnspeakableError


def _be_cancelled() -> None:
    raise asyncio.CancelledError


def _stop_iterating() -> None:
    raise StopIteration("over")


WAYS: dict[str, Callable[[], Any]] = {
    "return_no_json": object,
    "return_too_much": lambda: "x" * (64 * 1024 + 1),
    "return_a_mess": lambda: {1: {2, 3}, "nested": [object()]},
    "exit": lambda: sys.exit(3),
    "interrupt": _interrupt,
    "be_trouble": _be_trouble,
    "be_unspeakable": _be_unspeakable,
    "be_cancelled": _be_cancelled,
    "stop_iterating": _stop_iterating,
}
"""Each is done by an async task and by a plain one."""


def _misbehaving(way: Callable[[], Any], name: str) -> None:
    @app.task(name=name, backoff=LATER)
    async def on_the_loop() -> Any:
        with noted():
            return way()

    @app.task(name=f"{name}_plainly", backoff=LATER)
    def in_a_thread() -> Any:
        with noted():
            return way()


for name, way in WAYS.items():
    _misbehaving(way, name)


@app.task
async def fork() -> int:
    with noted():
        os.fork()
    return os.getpid()


@app.task
def fork_plainly() -> int:
    with noted():
        os.fork()
    return os.getpid()


@app.task
def fork_and_raise() -> int:
    with noted():
        if os.fork() == 0:
            raise ValueError("in the child")
    return os.getpid()


@app.task(backoff=LATER)
def vanish() -> None:
    with noted():
        os._exit(7)


@app.task(run_in="process", backoff=LATER)
def vanish_apart() -> None:
    os._exit(7)


@app.task(run_in="process", backoff=LATER)
def exit_apart() -> None:
    sys.exit(3)


@app.task
async def ignore_signals() -> None:
    """Ignore them, then wait, like a server, for something that will not come."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, print)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with noted():
        while not GATE.exists():
            await asyncio.sleep(0.01)


@app.task
def leak_a_thread() -> None:
    with noted():
        threading.Thread(target=threading.Event().wait, daemon=False).start()


@app.task
async def leak_a_coroutine() -> None:
    with noted():
        app.leaked = asyncio.create_task(asyncio.Event().wait())  # type: ignore[attr-defined]


@app.task
async def declare(number: int, word: str = "") -> int:
    with noted():
        return number


@app.task(backoff=LATER)
async def outstay() -> None:
    with noted():
        await asyncio.Event().wait()
