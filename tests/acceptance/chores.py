"""Chores: the tasks that the workers under test run, each told by a line in an append-only file.

A test copies this module into its folder and starts `python -m casque.worker
chores:app` there, as somebody would with a module of their own.
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
"""Chores that wait end when this file is there."""
STOPPING = FOLDER / "stopping"
"""Some end when this one is, which is made when workers have been told to stop."""
RUNS = FOLDER / "runs.jsonl"

LATER = Backoff(base=timedelta(hours=1), jitter=0.0)
"""What failed is not tried again while a test looks at it."""

app = App(os.environ["CHORES_STORE"])


def tell(name: str, **what: object) -> None:
    """One line, in one write: lines of several processes do not mix, and a kill loses none."""
    now = {"at": time.time(), "steady": time.monotonic()}
    line = json.dumps({**now, "pid": os.getpid(), **what}) + "\n"
    descriptor = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@contextmanager
def told() -> Iterator[None]:
    """Tells of a run: when it starts, and when it ends as it should."""
    job = current_job()
    run = {"job": job.id, "attempt": job.attempt}
    tell(RUNS.name, what="start", **run)
    yield
    tell(RUNS.name, what="end", **run)


class Said(logging.Handler):
    """Keeps what the worker logs, as fields."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(
            "said.jsonl",
            logger=record.name,
            level=record.levelname,
            message=record.getMessage(),
            job=getattr(record, "job_id", None),
        )


logging.getLogger("casque.worker").addHandler(Said())

# How long a store tries before it says that there is no answer: half a minute, which is longer than
# a test may take. Not in ledger.store, where it bounds the races that are lost to others: those go
# on.
PATIENT = [
    importlib.import_module(f"casque.{place}")
    for place in ("stores.sqlite.connection", "stores.ledger.bucket_requests", "queues.commit")
]
IMPATIENT = FOLDER / "impatient"
"""While this file is there, stores lose their patience sooner."""


def be_impatient(us: int) -> None:
    """At other times they have all of it: a busy machine is no storage that is away."""
    before = [vars(module)["COMMIT_DEADLINE_US"] for module in PATIENT]
    is_impatient = False
    while True:
        if IMPATIENT.exists() != is_impatient:
            is_impatient = not is_impatient
            for module, usual in zip(PATIENT, before, strict=True):
                vars(module)["COMMIT_DEADLINE_US"] = us if is_impatient else usual
            tell("patience.jsonl", is_impatient=is_impatient)
        time.sleep(0.05)


if patience := os.environ.get("CHORES_PATIENCE_US"):
    threading.Thread(target=be_impatient, args=(int(patience),), daemon=True).start()

if beats := os.environ.get("CHORES_BEATS_PER_LEASE"):
    # Many, of a long lease: they come soon, and a busy machine does not lose it.
    vars(store_thread)["BEATS_PER_LEASE"] = int(beats)

if last_words := os.environ.get("CHORES_LAST_WORDS_US"):
    # How long a worker that ends waits for a storage that is away.
    vars(store_thread)["LAST_WORDS_US"] = int(last_words)
    vars(worker)["_LAST_WORDS_SECONDS"] = int(last_words) / 1_000_000 + 1.0


# -- those that behave -------------------------------------------------------------


@app.task
async def note(seconds: float = 0.0) -> str:
    with told():
        await asyncio.sleep(seconds)
    return current_job().id


@app.task
def note_plainly(seconds: float = 0.0) -> str:
    with told():
        time.sleep(seconds)
    return current_job().id


@app.task
async def wait_at_the_gate() -> int:
    with told():
        while not GATE.exists():
            await asyncio.sleep(0.01)
    return os.getpid()


@app.task
def wait_plainly_at_the_gate() -> int:
    with told():
        while not GATE.exists():
            time.sleep(0.01)
    return os.getpid()


@app.task
async def wait_for_the_end() -> None:
    """Of its worker, which says that it stops."""
    with told():
        while not STOPPING.exists():
            await asyncio.sleep(0.01)


@app.task(run_in="process")
def wait_apart_at_the_gate() -> None:
    while not GATE.exists():
        time.sleep(0.01)


@app.task
async def block_the_loop(seconds: float) -> None:
    with told():
        time.sleep(seconds)


@app.task
def calculate_at_the_gate() -> None:
    """And say how short the turns of threads were at the shortest."""
    shortest = sys.getswitchinterval()
    with told():
        while not GATE.exists():
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                pass  # without a call that would let others have their turn
            shortest = min(shortest, sys.getswitchinterval())
    tell("turns.jsonl", seconds=shortest)


# -- those that do not -------------------------------------------------------------


class TroubleError(BaseException):
    """What is no Exception."""


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
"""Each is misbehaved in by an async task and by a plain one."""


def _misbehaving(way: Callable[[], Any], name: str) -> None:
    @app.task(name=name, backoff=LATER)
    async def on_the_loop() -> Any:
        with told():
            return way()

    @app.task(name=f"{name}_plainly", backoff=LATER)
    def in_a_thread() -> Any:
        with told():
            return way()


for name, way in WAYS.items():
    _misbehaving(way, name)


@app.task
async def fork() -> int:
    with told():
        os.fork()
    return os.getpid()


@app.task
def fork_plainly() -> int:
    with told():
        os.fork()
    return os.getpid()


@app.task
def fork_and_raise() -> int:
    with told():
        if os.fork() == 0:
            raise ValueError("in the child")
    return os.getpid()


@app.task(backoff=LATER)
def vanish() -> None:
    with told():
        os._exit(7)


@app.task(run_in="process", backoff=LATER)
def vanish_apart() -> None:
    os._exit(7)


@app.task(run_in="process", backoff=LATER)
def exit_apart() -> None:
    sys.exit(3)


@app.task
async def ignore_signals() -> None:
    """Then it waits, like a server, for what will not come."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, print)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with told():
        while not GATE.exists():
            await asyncio.sleep(0.01)


@app.task
def leak_a_thread() -> None:
    with told():
        threading.Thread(target=threading.Event().wait, daemon=False).start()


@app.task
async def leak_a_coroutine() -> None:
    with told():
        app.leaked = asyncio.create_task(asyncio.Event().wait())  # type: ignore[attr-defined]


@app.task
async def declare(number: int, word: str = "") -> int:
    with told():
        return number


@app.task(backoff=LATER)
async def outstay() -> None:
    with told():
        await asyncio.Event().wait()
