"""Inserted jobs behave the same on SQLite as by the rules, whatever happens around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from casque import Job, JobStatus, Queue, Store
from casque.rules.operations import Insert
from casque.stores.memory import MemoryStore
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import SECOND_US, drive
from casque.testing import FakeClock
from casque.transfer.opened_store import OpenedStore

QUEUES = ("north", "south")
SPANS = (-1, 0, 5, 30)


class Given(NamedTuple):
    """A job to insert; its times are relative to the clock."""

    id: str
    queue: str
    entrypoint: str
    priority: int
    status: JobStatus
    due: int

    def job(self, now: int) -> Job:
        is_over = self.status is not JobStatus.QUEUED
        return Job(
            id=self.id,
            queue=self.queue,
            entrypoint=self.entrypoint,
            payload=b"",
            priority=self.priority,
            status=self.status,
            created_us=now - SECOND_US,
            updated_us=now,
            run_us=now + self.due * SECOND_US,
            finished_us=now if is_over else None,
            expires_us=now + 40 * SECOND_US if is_over else None,
        )


jobs = st.builds(
    Given,
    st.sampled_from("abcdefghij"),
    st.sampled_from(QUEUES),
    st.sampled_from(("mail", "mail", "print")),
    st.sampled_from((0, -1, 4)),
    st.sampled_from((JobStatus.QUEUED, JobStatus.QUEUED, JobStatus.DEAD, JobStatus.COMPLETED)),
    st.sampled_from(SPANS),
)
steps = st.one_of(
    st.tuples(st.just("insert"), st.lists(jobs, min_size=1, max_size=2)),
    st.tuples(st.just("dequeue"), st.integers(1, 3)),
    st.tuples(st.just("ack"), st.just(0)),
    st.tuples(st.just("advance"), st.sampled_from((1, 10, 50))),
    st.tuples(st.sampled_from(("pause", "resume")), st.sampled_from(QUEUES)),
)


def play(store: Store, clock: FakeClock, walk: list[tuple[str, Any]]) -> list[object]:
    """Take the steps; return all that a caller can see, without tokens and enqueue order."""
    seen: list[object] = []
    held: list[Job] = []
    with Queue(store, lease=timedelta(seconds=20)) as queue, OpenedStore(store) as opened:
        for name, value in walk:
            if name == "insert":
                now = clock.now()
                seen.append(opened.submit_all([Insert(tuple(one.job(now) for one in value))]))
            elif name == "dequeue":
                taken = queue.dequeue(batch_size=value)
                held += taken
                seen.append([job.id for job in taken])
            elif name == "ack" and held:
                job = held.pop()
                if (there := queue.get(job.id)) is not None and there.token == job.token:
                    queue.ack(job)
            elif name == "advance":
                clock.advance(timedelta(seconds=value))
            elif name in {"pause", "resume"}:
                getattr(queue, name)(value)
            seen.append(queue.stats())
        state = sorted(queue.read_state().jobs, key=lambda job: job.seq)
        seen += [(job.id, job.status, job.attempts, job.run_us) for job in state]
    return seen


@contextmanager
def fresh() -> Iterator[tuple[SqliteStore, FakeClock]]:
    with TemporaryDirectory() as folder:
        clock = FakeClock()
        store = SqliteStore(Path(folder) / "jobs.db", durability="normal", clock=clock)
        try:
            yield store, clock
        finally:
            drive(store.close())


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=8, max_size=16))
def test_inserted_jobs_are_claimed_in_the_same_order_on_sqlite(walk: list[Any]) -> None:
    clock = FakeClock()
    expected = play(MemoryStore(clock), clock, walk)
    with fresh() as (store, own):
        assert play(store, own, walk) == expected
