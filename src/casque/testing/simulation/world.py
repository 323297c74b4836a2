"""World: virtual time and its events. Nothing sleeps: time jumps to the next event."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush

from casque.system.clock import to_us
from casque.testing.fakeclock import START

_START_US = to_us(START)


class World:
    """The true time, and the future events in order."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.elapsed_us = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def now(self) -> int:
        """Return the true time, which the bucket has and no process has."""
        return _START_US + self.elapsed_us

    def chance(self, name: str) -> random.Random:
        """Return a separate random source, so that one more draw here changes nothing there."""
        return random.Random(f"{self.seed}/{name}")  # noqa: S311 - to be repeatable

    def after(self, span_us: int, happen: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (self.elapsed_us + max(span_us, 0), self._count, happen))

    def run(self, *, until: Callable[[], bool], limit_us: int) -> bool:
        """Let time pass until the condition holds. Returns False if `limit_us` passed first."""
        end = self.elapsed_us + limit_us
        while not until():
            if not self._events or self._events[0][0] > end:
                self.elapsed_us = end
                return False
            self.elapsed_us, _, happen = heappop(self._events)
            happen()
        return True
