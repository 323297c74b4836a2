"""Groups: whether anything of a process group still lives."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_PROCESSES = Path("/proc")
_DEAD = (b"Z", b"X", b"x")


class LivingGroups:
    """Which process groups have a living process; looked up once for many who ask.

    To the system a group is there as long as its dead are unburied, and whose
    parent is gone may stay so for ever where process 1 does not bury them. So
    it is looked which are dead, where the system shows that.
    """

    def __init__(self) -> None:
        self._seen: frozenset[int] = frozenset()
        self._seen_at = float("-inf")

    def has(self, group: int, now: float, *, since: float) -> bool:
        """Whether it has one, as of `since` or later."""
        if not is_there(group):
            return False
        if not (_PROCESSES / "self" / "stat").exists():
            return True
        if self._seen_at < since:
            self._seen, self._seen_at = _living(), now
        return group in self._seen


def is_there(group: int) -> bool:
    """Whether there is a process of that group, dead or alive."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # there is, of somebody else
        return True
    return True


def _living() -> frozenset[int]:
    groups = set()
    for name in os.listdir(_PROCESSES):  # noqa: PTH208 - of a thousand names, no thousand Paths
        if name.isdecimal():
            # The name of the program, which may hold anything, is in brackets.
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                state, _, group, *_ = file.read().rpartition(b")")[2].split()
                if state not in _DEAD:
                    groups.add(int(group))
    return frozenset(groups)
