"""Calls by signal handlers and finalizers during a call are refused, and nothing hangs."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import InvalidError, NewJob, Queue
from casque.stores.memory import MemoryStore
from casque.stores.port import Store
from casque.stores.sqlite.reads import Reads
from casque.stores.sqlite.store import SqliteStore
from casque.stores.sqlite.watch import Watch
from tests.notes import without_notes

STRIKES = 400


def memory(_: Path) -> Store:
    return MemoryStore()


def sqlite(folder: Path) -> Store:
    return SqliteStore(folder / "jobs.db", durability="normal")


@pytest.fixture(params=[memory, sqlite])
def q(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queue]:
    with Queue(request.param(tmp_path)) as queue:
        yield queue


CALLS: dict[str, tuple[Callable[[Queue], object], Callable[[Queue], object]]] = {
    "enqueues": (lambda q: q.enqueue("e"), lambda q: q.enqueue("e")),
    "claims": (lambda q: q.dequeue(), lambda q: q.dequeue()),
    "reads": (lambda q: q.stats(), lambda q: q.stats()),
    "adds many": (lambda q: q.enqueue_many([NewJob("e")] * 3), lambda q: q.pause("other")),
    "uses another queue": (lambda q: q.enqueue("e"), lambda q: Queue(q.store).enqueue("e")),
}


@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", CALLS)
def test_a_handler_that_calls_the_queue_is_answered_or_refused(q: Queue, name: str) -> None:
    outside, inside = CALLS[name]
    answered = refused = 0
    told: set[str] = set()
    has_struck = True

    def handle(*_: object) -> None:
        nonlocal answered, refused, has_struck
        has_struck = True
        try:
            inside(q)
            answered += 1
        except InvalidError as error:
            told.add(str(error))
            refused += 1

    before = signal.signal(signal.SIGALRM, handle)
    try:
        while answered + refused < STRIKES or not refused:
            # Start the timer here and never in the handler: on a busy machine the next signal would
            # arrive inside the handler, and so on. The signal comes at another place each time.
            if has_struck:
                has_struck = False
                after = 0.000_05 + (answered + refused) % 17 * 0.000_01
                signal.setitimer(signal.ITIMER_REAL, after)
            outside(q)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all("signal handler" in one for one in told)
    outside(q)


CLOSING = """
import os, signal, sys
from casque import Queue

def run(after):
    q = Queue(sys.argv[1])
    q.enqueue("e")

    def stop(*_):
        q.close()
        sys.exit(7)

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, after)
    while True:
        q.enqueue("e")

for after in sys.argv[2:]:
    if not os.fork():
        run(float(after))
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@pytest.mark.parametrize("place", ["memory://", "jobs.db"])
def test_a_handler_may_close_the_queue_and_end_the_program(place: str, tmp_path: Path) -> None:
    # If the signal comes right after a coroutine is created, Python warns that it never ran.
    quietly = "-Wignore:coroutine:RuntimeWarning"
    command = [sys.executable, quietly, "-c", CLOSING, place, "0.01", "0.0123", "0.05"]
    done = subprocess.run(command, cwd=tmp_path, timeout=100, check=False, capture_output=True)
    assert (done.stdout, without_notes(done.stderr.decode())) == (b"7\n7\n7\n", "")


class Last:
    """An object that reads the queue when it is garbage-collected."""

    def __init__(self, q: Queue, told: list[object]) -> None:
        self._q, self._told = q, told

    def __del__(self) -> None:
        try:
            self._told.append(self._q.get("job"))
        except InvalidError as error:
            self._told.append(error)


def test_a_finalizer_that_reads_in_the_middle_of_a_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats, told = Reads.stats, list[object]()
    with Queue(tmp_path / "jobs.db") as q:
        q.enqueue("e", id="job")

        def collecting(*args: Any) -> Any:
            Last(q, told)
            return stats(*args)

        monkeypatch.setattr(Reads, "stats", collecting)
        assert q.stats().total == 1
    [error] = told
    assert isinstance(error, InvalidError)


@contextmanager
def handled(do: Callable[[], object]) -> Iterator[None]:
    """While this holds, the handler of SIGUSR1 does it."""
    before = signal.signal(signal.SIGUSR1, lambda *_: do())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupted_as_it_begins_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Watch._start

    def start_and_interrupt(watch: Watch) -> None:
        start(watch)
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(Watch, "_start", start_and_interrupt)


def is_watched() -> bool:
    return any(thread.name == "casque-watch" for thread in threading.enumerate())


@pytest.mark.timeout(100)
def test_a_handler_can_close_a_queue_whose_dequeue_begins_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = Queue(sqlite(tmp_path))
    interrupted_as_it_begins_to_wait(monkeypatch)
    with handled(q.close), pytest.raises(InvalidError, match="closed"):
        q.dequeue(wait=timedelta(seconds=60))
    assert not is_watched()


@pytest.mark.timeout(100)
def test_an_interrupt_as_a_dequeue_begins_to_wait_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with Queue(sqlite(tmp_path)) as q:
        interrupted_as_it_begins_to_wait(monkeypatch)
        with handled(interrupt), pytest.raises(KeyboardInterrupt):
            q.dequeue(wait=timedelta(seconds=60))
        assert not is_watched()


@pytest.mark.timeout(100)
@pytest.mark.parametrize("inside", ["enqueue", "close"])
def test_a_handler_is_refused_while_a_call_is_given_to_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    refused: list[InvalidError] = []
    submit = asyncio.run_coroutine_threadsafe

    def submit_and_interrupt(*call: Any) -> Any:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        return submit(*call)

    with Queue(tmp_path / "queue.json") as q:

        def call() -> None:
            with pytest.raises(InvalidError, match="signal handler") as error:
                q.enqueue("e") if inside == "enqueue" else q.close()
            refused.append(error.value)

        q.enqueue("e")
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit_and_interrupt)
        with handled(call):
            q.stats()
    assert refused
