"""Claims from many lines at once take the same jobs as the rules, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from casque.rules.operations import Enqueue, Request
from casque.testing import FakeClock
from tests.sqlite.working import LEASE, Both, ask_for, request

MANY = 7
"""The number of lines of one entrypoint: more than are read at once."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def both(tmp_path: Path, clock: FakeClock) -> Iterator[Both]:
    with ExitStack() as stack:
        yield Both(tmp_path, clock, stack)


def add(both: Both, *requests: Request) -> None:
    one = Enqueue(requests, 9)
    both.commit(0, [(one, one)])


def take_all(both: Both, limit: int, entrypoints: tuple[str, ...] | None) -> int:
    """Claim until nothing is left, and compare with the rules; returns the number of jobs."""
    before = 0
    while True:
        both.commit(0, [(ask_for(limit, entrypoints),) * 2])
        if len(both.held) == before:
            return before
        before = len(both.held)


@pytest.mark.parametrize("limit", [1, 3, 10])
@pytest.mark.parametrize("entrypoints", [None, ("e",), ("e", "f"), ("f", "nobody", "e")])
def test_many_queues_take_their_turns(
    both: Both, clock: FakeClock, limit: int, entrypoints: tuple[str, ...] | None
) -> None:
    for n in range(3 * MANY):
        add(both, request(clock, queue=f"q{n % MANY}", entrypoint="eeff"[n % 4]))
    found = take_all(both, limit, entrypoints)
    assert found == (3 * MANY if entrypoints != ("e",) else 11)


@pytest.mark.parametrize("limit", [1, 2, 5, 9, 10, 30])
def test_a_line_that_gives_more_than_its_share_is_read_further(
    both: Both, clock: FakeClock, limit: int
) -> None:
    add(both, *(request(clock, entrypoint="f") for _ in range(12)))
    add(both, *(request(clock, priority=-1) for _ in range(12)))
    add(both, request(clock, entrypoint="g"))
    assert take_all(both, limit, None) == 25


@pytest.mark.parametrize("limit", [2, 5])
def test_jobs_that_are_not_due_yet_are_skipped(both: Both, clock: FakeClock, limit: int) -> None:
    for entrypoint in "ef":
        add(both, *(request(clock, entrypoint=entrypoint, priority=p % 3) for p in range(9)))
        add(both, request(clock, entrypoint=entrypoint, priority=-1, delay_us=10**9))
    assert take_all(both, limit, ("e", "f")) == 18


def test_spent_jobs_do_not_count_and_lost_jobs_do(both: Both, clock: FakeClock) -> None:
    for entrypoint in "ef":
        add(
            both, *(request(clock, entrypoint=entrypoint, max_attempts=1 + n % 2) for n in range(8))
        )
    assert take_all(both, 20, None) == 16
    add(both, request(clock), request(clock, entrypoint="f"))
    clock.advance(LEASE)
    both.held.clear()
    assert take_all(both, 3, ("e", "f")) == 8 + 2


def test_a_line_with_nothing_left_is_not_due(both: Both, clock: FakeClock) -> None:
    add(both, *(request(clock, entrypoint="eeff"[n % 4]) for n in range(8)))
    add(both, request(clock, entrypoint="e", delay_us=10**6), request(clock, entrypoint="g"))
    for _ in range(4):
        both.commit(0, [(ask_for(4, ("e", "f")),) * 2])
        for entrypoint in "efg":
            both.commit(1, [(ask_for(1, (entrypoint,), id="nobody"),) * 2])
