"""Ctrl-C at any moment of a call: it happens completely or not at all, and all can go on."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from inspect import CO_COROUTINE, CO_GENERATOR
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

from casque import Job, NewJob, Queue
from casque.stores.sqlite.store import SqliteStore
from casque.system import local_disk
from casque.system.clock import drive
from casque.testing import FakeClock
from tests.buckets.forks import quick_folder

# An interrupt may come when a connection is open and not assigned yet: from Python 3.13 on, the
# garbage collector warns when it closes the connection.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

HOUR = timedelta(hours=1)
OURS = str(Path("casque") / "stores" / "sqlite")
ROUNDS = 12


class Interrupt:
    """Raises an error in the SQLite store, at the nth moment when a signal handler could.

    Python checks for signals when a function begins and when a C function has
    returned, and so does this. A tracer could also interrupt at the start of each
    line, but Python never does that, for example between `with lock:` and its end.
    The later rounds of a long loop do not count: the loop over open files has one
    more round for every connection that an earlier interrupt left open.
    """

    def __init__(self, nth: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.fired = ""
        self._error = error
        self._left = nth
        self._rounds: Counter[tuple[CodeType, int]] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        begins = event == "call" and not code.co_flags & (CO_GENERATOR | CO_COROUTINE)
        if OURS not in code.co_filename or not (begins or event == "c_return"):
            return
        place = code, frame.f_lasti
        self._rounds[place] += 1
        if self._rounds[place] > ROUNDS:
            return
        self._left -= 1
        if not self._left:
            self.fired = f"{Path(code.co_filename).name}:{frame.f_lineno}"
            sys.setprofile(None)
            raise self._error


class Opened(NamedTuple):
    """A queue in the middle of its work, and the jobs it works on."""

    path: Path
    store: SqliteStore
    q: Queue
    held: Job
    also_held: Job


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk in memory, if there is one: every round opens and closes a file or two."""
    # Do not read the list of mounts each time: that takes half as long as all the rest.
    monkeypatch.setattr(local_disk, "_mounts", lambda: iter(()))
    with quick_folder() as path:
        yield path


def make_template(path: Path, delay: timedelta) -> None:
    """A queue with jobs of every kind; its second line is due after `delay`."""
    store = SqliteStore(path, durability="normal", clock=FakeClock(seed=1))
    with Queue(store) as q:
        q.enqueue_many([NewJob("e", queue="a")] * 6 + [NewJob("e", queue="b", delay=delay)] * 6)
        q.enqueue("e", id="named", queue="a")
        q.enqueue("e", id="kept", queue="a", retain=HOUR)
        q.enqueue("e", id="dead", queue="d")
        q.fail(q.dequeue(id="dead")[0])
    drive(store.close())


def open_one(template: Path, path: Path) -> Opened:
    """Always the same, down to each id and instant."""
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    shutil.copy(template, path)
    clock = FakeClock()
    clock.advance(timedelta(seconds=10))
    store = SqliteStore(path, durability="normal", clock=clock)
    q = Queue(store)
    [held, also_held] = q.dequeue(queue="a", batch_size=2)
    q.enqueue("e", queue="a")
    q.ack(q.dequeue(queue="a")[0])  # now its lines are cached
    return Opened(path, store, q, held, also_held)


def enqueue_within(opened: Opened) -> None:
    with closing(sqlite3.connect(opened.path)) as connection:
        try:
            opened.q.enqueue("e", id="new", queue="b", connection=connection)
        finally:
            sys.setprofile(None)
            connection.commit()


CALLS: dict[str, Callable[[Opened], object]] = {
    "a fast enqueue": lambda one: one.q.enqueue("e", queue="a"),
    "an enqueue": lambda one: one.q.enqueue("other", id="new", queue="c"),
    "enqueue_many": lambda one: one.q.enqueue_many([NewJob("e", queue=name) for name in "abcb"]),
    "a duplicate": lambda one: one.q.enqueue_many([NewJob("e", id="x"), NewJob("e", id="x")]),
    "enqueue within": enqueue_within,
    "a claim": lambda one: one.q.dequeue(),
    "several claims": lambda one: one.q.dequeue("e", batch_size=9),
    "a claim by id": lambda one: one.q.dequeue(id="named"),
    "a claim of nothing": lambda one: (one.q.dequeue("none"), one.q.dequeue("none")),
    "a fast ack": lambda one: one.q.ack(one.held),
    "an ack": lambda one: one.q.ack(one.held, enqueue=[NewJob("e", id="next")]),
    "several acks": lambda one: one.q.ack_many([one.held, one.also_held]),
    "nack": lambda one: one.q.nack(one.held, error="no"),
    "cancel": lambda one: one.q.cancel("named"),
    "pause": lambda one: one.q.pause("b"),
    "drop": lambda one: one.q.drop("a"),
    "purge": lambda one: one.q.purge(older_than=timedelta(0)),
    "stats": lambda one: one.q.stats(),
    "a look at everything": lambda one: one.q.read_state(),
}


TABLES = ("casque_job", "casque_line", "casque_record", "casque_counter")


def rows(path: Path) -> dict[str, list[Any]]:
    """Everything stored, as another program reads it; and check that it can write."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        found = {
            table: sorted(other.execute(f"SELECT * FROM {table}"), key=repr) for table in TABLES
        }
        other.execute("ROLLBACK")
    return found


def check_goes_on(opened: Opened, stored: dict[str, list[Any]]) -> None:
    """Check that the same queue object sees the stored state and can change it."""
    q = opened.q
    there = {row[1] for row in stored["casque_job"]}
    assert {job.id for job in q.read_state().jobs} == there
    q.enqueue("last", id="last", queue="last")
    [last] = q.dequeue("last")
    q.ack(last)
    q.enqueue("last", id="cancelled", queue="last")
    q.cancel("cancelled")
    assert {job.id for job in q.read_state().jobs} == there | {"cancelled"}


def interrupted(
    opened: Opened, call: Callable[[Opened], object], nth: int
) -> tuple[str, KeyboardInterrupt | None]:
    """Where the interrupt came, and its error; empty if the call ended before."""
    interrupt, error = Interrupt(nth), None
    sys.setprofile(interrupt)
    try:
        call(opened)
    except KeyboardInterrupt as raised:
        error = raised
    finally:
        sys.setprofile(None)
    return interrupt.fired, error


def sweep(
    open_again: Callable[[], Opened], call: Callable[[Opened], object], moments: Iterable[int]
) -> Iterator[tuple[Opened, str]]:
    """Interrupt the call at each of these moments, until it ends before the next one."""
    for nth in moments:
        opened = open_again()
        try:
            # The error and all objects in its traceback live on, as in an interactive Python.
            fired, error = interrupted(opened, call, nth)
            yield opened, fired
        finally:
            del error
            opened.q.close()
            drive(opened.store.close())
        if not fired:
            assert nth > 5
            gc.collect()  # here, where it does no harm
            return


def moments_of(name: str) -> Iterable[int]:
    """Every moment of a fast call, and every second moment of the others.

    Neighbours in `CALLS` use alternating moments, so code that all of them run is interrupted
    everywhere.
    """
    return count(1) if "fast" in name else count(1 + list(CALLS).index(name) % 2, 2)


def check_whole(
    folder: Path, call: Callable[[Opened], object], delay: timedelta, moments: Iterable[int]
) -> None:
    template, path = folder / "template.db", folder / "jobs.db"
    make_template(template, delay)
    opened = open_one(template, path)
    before = rows(path)
    call(opened)
    after = rows(path)
    opened.q.close()
    drive(opened.store.close())
    for one, fired in sweep(lambda: open_one(template, path), call, moments):
        stored = rows(path)
        assert stored in (before, after), f"torn at {fired}"
        check_goes_on(one, stored)


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_moment_leaves_all_of_a_call_or_nothing(
    folder: Path, name: str
) -> None:
    check_whole(folder, CALLS[name], timedelta(0), moments_of(name))


@pytest.mark.parametrize("name", ["a fast enqueue", "a claim", "several claims", "a fast ack"])
def test_an_interrupt_on_the_fast_path_leaves_all_of_a_call_or_nothing(
    folder: Path, name: str
) -> None:
    check_whole(folder, CALLS[name], HOUR, count(1))


def test_an_interrupt_while_the_file_is_first_opened_leaves_a_queue_that_works(
    folder: Path,
) -> None:
    path = folder / "jobs.db"

    def open_new() -> Opened:
        for old in folder.iterdir():
            old.unlink()
        store = SqliteStore(path, durability="normal", clock=FakeClock())
        held = Job(id="none", entrypoint="e", payload=b"")
        return Opened(path, store, Queue(store), held, held)

    for one, _ in sweep(open_new, lambda one: one.q.enqueue("e", id="new"), count(1)):
        assert {job.id for job in one.q.read_state().jobs} <= {"new"}
        check_goes_on(one, rows(path))


@pytest.mark.parametrize("name", ["a fast enqueue", "a claim", "a fast ack"])
def test_a_timeout_raised_by_a_signal_handler_reaches_the_caller(folder: Path, name: str) -> None:
    template, path = folder / "template.db", folder / "jobs.db"
    make_template(template, HOUR)
    for nth in count(1):
        opened = open_one(template, path)
        interrupt = Interrupt(nth, TimeoutError)  # an OSError, as from a file that is gone
        sys.setprofile(interrupt)
        try:
            CALLS[name](opened)
            error = ""
        except BaseException as raised:  # noqa: BLE001 - its type is what is tested
            error = type(raised).__name__
        finally:
            sys.setprofile(None)
        assert error == ("TimeoutError" if interrupt.fired else ""), f"at {interrupt.fired}"
        check_goes_on(opened, rows(path))
        opened.q.close()
        drive(opened.store.close())
        if not interrupt.fired:
            break
    assert nth > 5
