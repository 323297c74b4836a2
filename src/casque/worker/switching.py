"""Switching: how often the threads of a worker take turns in Python.

By Python's own 5 ms, the deck behind 32 plain functions that calculate waits a
sixth of a second for each of its turns, and a heartbeat needs dozens: longer
than a lease. So turns are short, unless plain functions are seen to be short
themselves: those would lose a fourth of their rate, and end before it matters.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable

from casque.system.clock import SECOND_US

_TURN_SECONDS = 0.000_1
_LONG_US = SECOND_US // 2


class Switching:
    """What one worker wants of the turns in its process, from its first look until it is closed."""

    def __init__(self) -> None:
        self._is_often: bool | None = None
        self._is_long = False
        """Whether a plain function takes long, as far as was seen."""
        self._has_ended = False
        """Whether one has ended since it was looked last."""
        self._is_closed = False

    def look(self, ages_us: Iterable[int]) -> None:
        """For how long plain functions have been running."""
        self._is_long = any(age > _LONG_US for age in ages_us)
        self._want(often=self._is_long or not self._has_ended)
        self._has_ended = False

    def ended(self) -> None:
        """A plain function has ended."""
        self._has_ended = True
        if not self._is_long:
            self._want(often=False)

    def close(self) -> None:
        """Want nothing any more. The last worker of the process leaves it as it was."""
        self._is_closed = True
        _turns.leave(self)

    def _want(self, *, often: bool) -> None:
        if often is not self._is_often and not self._is_closed:
            self._is_often = often
            _turns.want(self, often=often)


class _Turns:
    """The turns of this process: short while any of its workers wants them so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[Switching, bool] = {}
        self._own = 0.0
        """What it was before the first of them."""

    def want(self, who: Switching, *, often: bool) -> None:
        with self._lock:
            if not self._wanted:
                self._own = sys.getswitchinterval()
            self._wanted[who] = often
            self._set()

    def leave(self, who: Switching) -> None:
        with self._lock:
            if self._wanted.pop(who, None) is not None:
                self._set()

    def _set(self) -> None:
        often = any(self._wanted.values())
        sys.setswitchinterval(min(self._own, _TURN_SECONDS) if often else self._own)


_turns = _Turns()
