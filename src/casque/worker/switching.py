"""Switching: how often the threads of a worker take turns in Python.

By Python's own 5 ms, the deck behind 32 plain functions that calculate waits a
sixth of a second for each of its turns, and a heartbeat needs dozens: longer
than a lease. So turns are short, unless plain functions are seen to be short
themselves: those would lose a fourth of their rate, and end before it matters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from casque.clock import SECOND_US

_TURN_SECONDS = 0.000_1
_LONG_US = SECOND_US // 2


class Switching:
    """The turns of threads in this process, while one worker runs."""

    def __init__(self) -> None:
        self._before = sys.getswitchinterval()
        self._is_long = False
        """Whether a plain function takes long, as far as was seen."""
        self._has_ended = False
        """Whether one has ended since it was looked last."""
        self._set(often=True)

    def ended(self) -> None:
        """A plain function has ended."""
        self._has_ended = True
        if not self._is_long:
            self._set(often=False)

    def look(self, ages_us: Iterable[int]) -> None:
        """For how long plain functions have been running."""
        self._is_long = any(age > _LONG_US for age in ages_us)
        self._set(often=self._is_long or not self._has_ended)
        self._has_ended = False

    def close(self) -> None:
        """Leave it as it was."""
        sys.setswitchinterval(self._before)

    def _set(self, *, often: bool) -> None:
        seconds = min(self._before, _TURN_SECONDS) if often else self._before
        if seconds != sys.getswitchinterval():
            sys.setswitchinterval(seconds)
