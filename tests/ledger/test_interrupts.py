"""Ctrl-C at any line of a commit to a ledger: it is stored whole or not, and memory agrees."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from casque import Bucket, Job, NewJob, Queue
from casque.buckets import folder, synced_names
from casque.buckets.folder import FolderBucket
from casque.buckets.memory import MemoryBucket
from casque.rules import counts, decide, evolve, lines, picking, state, transaction
from casque.stores.ledger import (
    bucket_requests,
    entry,
    housekeeping,
    log,
    log_reader,
    proof,
    replica,
    sent_commits,
)
from casque.stores.ledger.ledger_bucket import Upkeep
from casque.stores.ledger.store import LedgerStore
from casque.system import background
from casque.system.clock import drive
from tests.buckets.forks import quick_folder

OURS = {
    module.__file__
    for module in (
        *(bucket_requests, entry, housekeeping, log, log_reader, proof, replica, sent_commits),
        *(folder, synced_names, background),
        *(counts, decide, evolve, lines, picking, state, transaction),
    )
}


@cache
def is_ours(code: CodeType) -> bool:
    return code.co_filename in OURS


class Interrupt:
    """Raises KeyboardInterrupt at the nth line that runs in one of `OURS`."""

    def __init__(self, nth: int) -> None:
        self.fired = False
        self._left = nth

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not is_ours(frame.f_code):
            return None
        if event == "line":
            self._left -= 1
            if not self._left:
                self.fired = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def queue_with_jobs(bucket: Bucket, others: bool) -> tuple[LedgerStore, Queue, Job]:
    # In a folder each call makes a snapshot due. A thread writes it, which is not interrupted.
    often = isinstance(bucket, FolderBucket)
    store = LedgerStore(bucket, upkeep=Upkeep(snapshot_entries=2) if often else None)
    q = Queue(store)
    q.enqueue_many([NewJob("e", id=name, queue=name[0]) for name in ("a1", "a2", "b1", "b2")])
    [job] = q.dequeue(id="a1")
    if others:
        # The next decision of q loses its first race, and is reverted.
        other = Queue(LedgerStore(bucket))
        other.enqueue("e", id="b3", queue="b")
        other.cancel("a2")
    return store, q, job


CALLS: dict[str, Callable[[Queue, Job], object]] = {
    "enqueue": lambda q, _: q.enqueue("other", id="new", queue="c"),
    "dequeue": lambda q, _: q.dequeue(batch_size=3),
    "ack": lambda q, job: q.ack(job, enqueue=[NewJob("e", id="next")]),
}


BUCKETS: dict[str, Callable[[Path], Callable[[int], Bucket]]] = {
    "memory": lambda _: lambda _: MemoryBucket(),
    "folder": lambda place: lambda nth: FolderBucket(place / str(nth)),
}

# Most lines are in code that all calls share. So each call is interrupted at every third line, and
# the three cases take turns. With other writers there are three times as many lines. A folder makes
# it slow, and little of the code depends on that.
PLACES: dict[tuple[str, bool], Callable[[str], Iterable[int]]] = {
    ("memory", False): lambda name: count(1 + list(CALLS).index(name), 3),
    ("memory", True): lambda name: count(1 + 2 * list(CALLS).index(name), 6),
    ("folder", False): lambda _: count(1, 41),
    ("folder", True): lambda _: count(1, 41),
}


def contents(q: Queue) -> object:
    jobs = q.read_state().jobs
    order = sorted(job.token for job in jobs)
    told = [(job.id, job.status, order.index(job.token)) for job in jobs]
    return told, q.stats(), len(q.peek(limit=100))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("others", [False, True], ids=["alone", "with others"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_after_an_interrupt_at_any_line_memory_is_what_the_log_says(
    kind: str, name: str, others: bool
) -> None:
    with quick_folder() as place:
        sweep(CALLS[name], PLACES[kind, others](name), others, BUCKETS[kind](place))


def sweep(
    call: Callable[[Queue, Job], object],
    places: Iterable[int],
    others: bool,
    new_bucket: Callable[[int], Bucket],
) -> None:
    _, q, job = queue_with_jobs(new_bucket(0), others)
    before = contents(q)
    call(q, job)
    after = contents(q)
    for nth in places:
        bucket = new_bucket(nth)
        store, q, job = queue_with_jobs(bucket, others)
        interrupt = Interrupt(nth)
        sys.settrace(interrupt)
        try:
            call(q, job)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        found = contents(q)
        assert found in (before, after), f"torn at line {nth}"
        reader = Queue(LedgerStore(bucket))
        assert found == contents(reader), f"memory and log differ, line {nth}"
        q.enqueue("e", id="more")  # the queue still works
        assert contents(q) == contents(reader), f"memory and log differ later, line {nth}"
        drive(store.housekeeping.background.stop(60))
        if not interrupt.fired:
            assert nth > 100
            return
