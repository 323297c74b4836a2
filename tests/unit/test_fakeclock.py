"""FakeClock, the clock of the suite."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from casque.testing import FakeClock
from casque.testing.fakeclock import _FakeBell


@pytest.mark.parametrize(
    "move", [lambda clock: clock.advance(timedelta(seconds=1)), FakeClock.advance_to_next]
)
def test_time_wakes_no_waiter_while_it_holds_the_clock(move: Callable[[FakeClock], object]) -> None:
    """A waiting thread holds its bell and needs the clock: otherwise both would wait for ever."""
    free: list[bool] = []

    class Asks(_FakeBell):
        def _wake(self) -> None:
            def ask() -> None:
                free.append(self._clock._lock.acquire(timeout=1))

            other = threading.Thread(target=ask)
            other.start()
            other.join()

    clock = FakeClock()
    clock._wake_later(1, Asks(clock))
    move(clock)
    assert free == [True]
