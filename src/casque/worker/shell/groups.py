"""Groups: in which process groups of a session something still lives."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_PROCESSES = Path("/proc")
_DEAD = (b"Z", b"X", b"x")


class LivingGroups:
    """Which process groups of a session have a living process; looked up once for many who ask.

    A session, since whatever a command starts stays in its session unless it
    takes pains, but not in its group: `timeout` makes one of its own, and so
    does each job of a shell with job control.

    To the system a group is there as long as its dead are unburied, and whose
    parent is gone may stay so for ever where process 1 does not bury them. So
    it is looked which are dead, where the system shows that. Where it does not,
    of a session the group of its leader is all that is known.
    """

    def __init__(self) -> None:
        self._seen: Mapping[int, list[int]] = {}
        self._seen_at = float("-inf")

    def of(self, session: int, now: float, *, since: float) -> frozenset[int]:
        """Those of a session, as of `since` or later."""
        if not (_PROCESSES / "self" / "stat").exists():
            return frozenset({session} if is_there(session) else ())
        if self._seen_at < since:
            self._seen, self._seen_at = _processes(), now
        groups = (_living_group(pid, session) for pid in self._seen.get(session, ()))
        return frozenset(group for group in groups if group is not None)


def is_there(group: int) -> bool:
    """Whether there is a process of that group, dead or alive."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # there is, of somebody else
        return True
    return True


def _processes() -> Mapping[int, list[int]]:
    """Those of each session. To ask for it is far cheaper than to read what is told of each."""
    found: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir(_PROCESSES):  # noqa: PTH208 - of a thousand names, no thousand Paths
        if name.isdecimal():
            try:
                found[os.getsid(int(name))].append(int(name))
            except OSError:  # it is gone
                continue
    return found


def _living_group(pid: int, session: int) -> int | None:
    """The group of a process; None when it is dead, or not of that session any more."""
    # The name of the program, which may hold anything, is in brackets.
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        state, _, group, of, *_ = file.read().rpartition(b")")[2].split()
        if state not in _DEAD and int(of) == session:
            return int(group)
    return None
