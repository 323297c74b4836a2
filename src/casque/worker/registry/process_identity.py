"""Process identity: whether a process is still the one that wrote an entry.

A PID alone is not enough: the system may later give it to another process, and in another container
the same PID is another process.
"""

from __future__ import annotations

import os
import signal
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_ENDED_STATES = frozenset("ZXx")
"""The states in /proc of a process that has ended, reaped or not."""


class Vitals(NamedTuple):
    """A process as the system reports it."""

    parent: int
    group: int
    session: int
    birth: int
    """Its start time in ticks of the system. Two processes with one PID never share it."""


@lru_cache(maxsize=1)
def machine() -> str:
    """Identify the kernel and PID namespace, in which a PID is unique; empty if unknown.

    Two containers or machines may share a host name. They never share both a
    kernel and a PID namespace.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def vitals(pid: int) -> Vitals | None:
    """Return the process as /proc shows it; None if it is absent or ended, or without /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program is in parentheses, and may contain some.
    state, parent, group, session, *others = text.rpartition(")")[2].split()
    if state in _ENDED_STATES:
        return None
    return Vitals(int(parent), int(group), int(session), int(others[15]))


def birth_of(pid: int) -> int | None:
    found = vitals(pid)
    return None if found is None else found.birth


def has_ended(pid: int, birth: int | None) -> bool:
    """True if the process that started at `birth` has ended. In doubt, False."""
    found = vitals(pid)
    if found is not None:
        return birth is not None and found.birth != birth
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it belongs to another user
    # It is there without vitals: it ended and was not reaped, or there is no /proc.
    return Path("/proc/self/stat").exists()


def send(pid: int, birth: int | None, number: signal.Signals) -> bool:
    """Send a signal only to the process that started at `birth`. Returns False if not sent.

    If the process is stopped by Ctrl-Z, it is also continued (SIGCONT), so that it can
    handle the signal. Nothing is sent if the process has ended, belongs to another user,
    or cannot be identified.
    """
    if birth is None or not hasattr(os, "pidfd_open"):
        return False
    try:
        # The descriptor always means this process; the PID may mean another one a moment later.
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        found = vitals(pid)
        if found is None or found.birth != birth:
            return False
        signal.pidfd_send_signal(process, number)
        signal.pidfd_send_signal(process, signal.SIGCONT)
    except OSError:
        return False
    finally:
        os.close(process)
    return True
