"""Groups: the process groups of a session that still have a living process."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from casque.worker.registry.process_identity import vitals

_PROCESSES = Path("/proc")


class LivingGroups:
    """The process groups of a session that have a living process; one scan serves many commands.

    Processes stay in the session of their command, but may leave its group. For example, `timeout`
    creates a group, and so does each job of a shell with job control.

    For the system, a group exists while it has zombies, and zombies stay for ever if process 1 does
    not reap orphans. So zombies are left out if /proc shows them. Without /proc, only the group of
    the session's leader is found.
    """

    def __init__(self) -> None:
        self._seen: Mapping[int, list[int]] = {}
        self._seen_at = float("-inf")

    def of(self, session: int, now: float, *, since: float) -> frozenset[int]:
        """Return the groups of a session, from a scan made at `since` or later."""
        if not (_PROCESSES / "self" / "stat").exists():
            return frozenset({session} if is_there(session) else ())
        if self._seen_at < since:
            self._seen, self._seen_at = _processes(), now
        found = map(vitals, self._seen.get(session, ()))
        return frozenset(one.group for one in found if one is not None and one.session == session)


def is_there(group: int) -> bool:
    """True if the group has a process, zombies included."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return True


def _processes() -> Mapping[int, list[int]]:
    """The processes of each session. `getsid` is far cheaper than reading `/proc/PID/stat`."""
    found: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir(_PROCESSES):  # noqa: PTH208 - a Path for each name would be slow
        if name.isdecimal():
            try:
                found[os.getsid(int(name))].append(int(name))
            except OSError:  # it is gone
                continue
    return found
