"""The cost of a claim and its ack when many other jobs are queued, in SQLite machine steps.

The number of steps is exactly repeatable; seconds are not. benchmarks/depth.py measures seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from casque import NewJob, Queue
from casque.stores.sqlite.store import SqliteStore
from casque.testing import FakeClock
from tests.sqlite.waiting import closed_behind

HOUR = timedelta(hours=1)
CYCLES = 10

CLAIMING: dict[str, dict[str, Any]] = {
    "anything": {},
    "an entrypoint": {"entrypoint": "work"},
    "several entrypoints": {"entrypoint": ["work", "other"]},
    "a queue": {"queue": "default"},
    "ten at once": {"entrypoint": "work", "batch_size": 10},
}
READY = 2 * CYCLES * sum(options.get("batch_size", 1) for options in CLAIMING.values())

Jobs = Iterator[NewJob]

SHAPES: dict[str, tuple[Callable[[int], Jobs], int]] = {
    "ready jobs": (lambda count: (NewJob("work") for _ in range(count)), 5_000),
    "future jobs of better priority": (
        lambda count: (NewJob("work", priority=-1, delay=HOUR) for _ in range(count)),
        5_000,
    ),
    "idle queues": (
        lambda count: (NewJob("work", queue=f"idle-{n}", delay=HOUR) for n in range(count)),
        2_000,
    ),
    "idle entrypoints": (
        lambda count: (NewJob(f"idle-{n}", delay=HOUR) for n in range(count)),
        2_000,
    ),
    "jobs that are kept": (
        lambda count: (NewJob("kept", retain=HOUR) for _ in range(count)),
        2_000,
    ),
}
"""Other jobs that must not matter, and how many."""


def fill(q: Queue, jobs: Iterable[NewJob]) -> None:
    waiting = iter(jobs)
    while batch := list(islice(waiting, 10_000)):
        q.enqueue_many(batch)
    while kept := q.dequeue("kept", batch_size=1_000):
        q.ack_many(kept)


def claim_and_ack(q: Queue, **options: Any) -> None:
    claimed = q.dequeue(**options)
    assert len(claimed) == options.get("batch_size", 1)
    for job in claimed:
        q.ack(job)


@contextmanager
def counted(path: Path, *jobs: Iterable[NewJob]) -> Iterator[tuple[Queue, Callable[[], int]]]:
    """A queue with these jobs, and a counter of the steps of its writing connection."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    store = SqliteStore(path, durability="normal", clock=FakeClock())
    with closed_behind(store), Queue(store) as q:
        q.enqueue("work", id="first")
        connection = store._writer.opened
        assert connection is not None
        q.ack(q.dequeue()[0])
        for some in jobs:
            fill(q, some)
        connection.set_progress_handler(step, 1)
        yield q, lambda: steps
        assert store._writer.opened is connection, "another connection did the work"


def steps_by_claim(path: Path, jobs: Iterable[NewJob]) -> dict[str, int]:
    """The steps of some claims with their acks, by kind of claim."""
    taken: dict[str, int] = {}
    ready = (NewJob("work") for _ in range(READY))
    with counted(path, ready, jobs) as (q, steps):
        for name, options in CLAIMING.items():
            claim_and_ack(q, **options)  # the first one may have to fill the cache
            before = steps()
            for _ in range(CYCLES):
                claim_and_ack(q, **options)
            taken[name] = steps() - before
    return taken


def check_flat(folder: Path, shape: str, beside: Sequence[NewJob]) -> None:
    jobs, many = SHAPES[shape]
    few_steps = steps_by_claim(folder / "few.db", [*beside, *jobs(100)])
    many_steps = steps_by_claim(folder / "many.db", [*beside, *jobs(many)])
    for claim, steps in few_steps.items():
        assert steps > CYCLES
        assert many_steps[claim] <= 1.5 * steps, claim


@pytest.mark.parametrize("shape", SHAPES)
def test_a_claim_and_its_ack_cost_the_same_whatever_else_is_queued(
    tmp_path: Path, shape: str
) -> None:
    check_flat(tmp_path, shape, [])


# If several lines are due, a claim reads all lines of the queue that it takes from.
@pytest.mark.parametrize("shape", sorted(set(SHAPES) - {"idle entrypoints"}))
@pytest.mark.parametrize("other", [NewJob("other"), NewJob("work", queue="other")])
def test_a_claim_that_has_to_choose_between_lines_costs_the_same_too(
    tmp_path: Path, shape: str, other: NewJob
) -> None:
    check_flat(tmp_path, shape, [other] * READY)


def test_future_jobs_of_better_priority_cost_hardly_more_than_none_at_all(tmp_path: Path) -> None:
    jobs, many = SHAPES["future jobs of better priority"]
    plain = steps_by_claim(tmp_path / "plain.db", [])
    beside = steps_by_claim(tmp_path / "beside.db", jobs(many))
    for claim, steps in plain.items():
        assert beside[claim] <= 1.5 * steps, claim


IDLE = ("future jobs of better priority", "idle queues")


@pytest.mark.parametrize("shape", IDLE)
def test_a_dequeue_that_finds_nothing_costs_the_same_too(tmp_path: Path, shape: str) -> None:
    jobs, many = SHAPES[shape]
    few_steps, many_steps = (
        steps_of_nothing(tmp_path / f"{count}.db", jobs(count)) for count in (100, many)
    )
    assert 0 < many_steps <= 1.5 * few_steps


def steps_of_nothing(path: Path, jobs: Iterable[NewJob]) -> int:
    with counted(path, jobs) as (q, steps):
        assert not q.dequeue()
        before = steps()
        for options in CLAIMING.values():
            assert not q.dequeue(**options)
        return steps() - before
