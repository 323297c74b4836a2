"""Working: a worker that sends its own commits to a store, and to the rules too."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from casque import CasqueError, Job
from casque.rules.decide import Leased
from casque.rules.operations import Ack, Dequeue, Enqueue, Nack, Operation, Release, Request
from casque.rules.views import JobFilter
from casque.stores.memory import MemoryStore
from casque.stores.port import Store
from casque.stores.sqlite.connection import Durability
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import drive, span_us
from casque.testing import FakeClock
from casque.testing.batches import commit_batch
from tests.sqlite.waiting import closed_behind

LEASE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
DAY_US = span_us(timedelta(days=1))


class Worker:
    """A store, and the commits of one writer to it."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.number = 0

    def commit(self, *operations: Operation) -> list[Any]:
        self.number += 1
        return drive(commit_batch(self.store, self.name, self.number, operations))

    def work(
        self, done: Sequence[Job], limit: int, *, result: bytes | None = None, **ask: Any
    ) -> list[Job]:
        """Ack these jobs and claim `limit` more."""
        *acks, leased = self.commit(*acks_of(done, result), ask_for(limit, **ask))
        assert acks == [None] * len(done)
        jobs: list[Job] = leased.jobs
        return jobs


def acks_of(jobs: Sequence[Job], result: bytes | None = None) -> list[Ack]:
    return [Ack(job.id, job.token, result) for job in jobs]


def ask_for(
    limit: int,
    entrypoints: tuple[str, ...] | None = ("e", "f"),
    worker: str = "worker",
    **ask: Any,
) -> Dequeue:
    return Dequeue(worker, span_us(LEASE), limit, entrypoints, **ask)


def request(clock: FakeClock, **options: Any) -> Request:
    """A job to add, with a minted id unless one is given."""
    [minted], [order] = clock.mint(1)
    how = {
        "queue": "default",
        "entrypoint": "e",
        "payload": b"p",
        "priority": 0,
        "max_attempts": 20,
    }
    if "id" not in options:
        how |= {"id": minted, "order": order, "minted": True}
    return Request(**(how | options))  # type: ignore[arg-type]


class Both:
    """Two handles on a file, and the rules in memory, which get the same operations."""

    def __init__(
        self, folder: Path, clock: FakeClock, stack: ExitStack, durability: Durability = "full"
    ) -> None:
        self.clock = clock
        path = folder / "jobs.db"
        stores = [SqliteStore(path, clock=clock, durability=durability) for _ in range(2)]
        self.workers = [Worker(store, f"worker {n}") for n, store in enumerate(stores)]
        for store in stores:
            stack.enter_context(closed_behind(store))
        self.rules = Worker(MemoryStore(clock), "rules")
        self.held: list[tuple[Job, Job]] = []

    def commit(self, who: int, operations: Sequence[tuple[Operation, Operation]]) -> None:
        mine = self.workers[who].commit(*(one for one, _ in operations))
        theirs = self.rules.commit(*(one for _, one in operations))
        for one, other in zip(mine, theirs, strict=True):
            assert like(one) == like(other)
            if isinstance(one, Leased):
                self.held += zip(one.jobs, other.jobs, strict=True)
        self.compare()

    def compare(self) -> None:
        mine, theirs = self.workers[0].store, self.rules.store
        for due in (True, False):
            assert drive(mine.queues(due=due)) == drive(theirs.queues(due=due))
        assert drive(mine.stats(None)) == drive(theirs.stats(None))
        for served in ({}, {"e": ["default"]}):
            unserved = [
                drive(store.unserved(served, limit=999, waited_us=0)) for store in (mine, theirs)
            ]
            assert unserved[0] == unserved[1]
        assert drive(mine.mismatched(None)) == drive(theirs.mismatched(None))
        assert drive(mine.next_run("default")) == drive(theirs.next_run("default"))
        jobs = [drive(store.jobs(JobFilter(), limit=999)) for store in (mine, theirs)]
        assert like(jobs[0]) == like(jobs[1])
        peeked = [drive(store.peek(None, None, 999)) for store in (mine, theirs)]
        assert like(peeked[0]) == like(peeked[1])

    def add(self, who: int, *options: Any) -> None:
        entrypoint, count, retain_us, priority = options
        how = {"entrypoint": entrypoint, "retain_us": retain_us, "priority": priority}
        one = Enqueue(tuple(request(self.clock, **how) for _ in range(count)), 9)
        self.commit(who, [(one, one)])

    def work(self, who: int, *options: Any) -> None:
        count, limit, entrypoints, odd = options
        done = [self.held.pop(0) for _ in range(min(count, len(self.held)))]
        acks = [(Ack(a.id, a.token, b"r"), Ack(b.id, b.token, b"r")) for a, b in done]
        if odd == "twice":
            acks += acks[:1]
        if odd == "wrong" and acks:
            acks[0] = (replace(acks[0][0], token=10**6), replace(acks[0][1], token=10**6))
        if odd == "adds" and acks:
            child = (request(self.clock),)
            acks[-1] = tuple(replace(one, enqueue=child, max_depth=9) for one in acks[-1])  # type: ignore[assignment]
        self.commit(who, [*acks, (ask_for(limit, entrypoints),) * 2])

    def back(self, who: int, kind: str) -> None:
        if self.held:
            a, b = self.held.pop()
            make = Nack if kind == "nack" else Release
            self.commit(who, [(make(a.id, a.token), make(b.id, b.token))])


def like(outcome: Any) -> Any:
    """An outcome without the values that each store counts by itself."""
    if isinstance(outcome, Job):
        return replace(outcome, token=0, seq=0)
    if isinstance(outcome, list):
        return [like(one) for one in outcome]
    if isinstance(outcome, Leased):
        return like(outcome.jobs), outcome.next_in_us
    return str(outcome) if isinstance(outcome, CasqueError) else outcome
