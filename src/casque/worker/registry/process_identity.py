"""Presence: whether a process is still the one that it was, as far as this machine can tell.

A number alone says little: it is given to another process once its own has
ended, and in a container it means another one.
"""

from __future__ import annotations

import os
import signal
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_GONE = frozenset("ZXx")
"""The states of a process that has ended, whether or not anybody has reaped it."""


class Vitals(NamedTuple):
    """What the system says of a process."""

    parent: int
    birth: int
    """When it was started, in the system's own ticks: no two of one number have the same."""


@lru_cache(maxsize=1)
def machine() -> str:
    """Within what the number of a process means one process; empty where that cannot be known.

    Two containers may have one host name, and two machines too; they never
    have one kernel and one space of process numbers.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def vitals(pid: int) -> Vitals | None:
    """None: it is not there, has ended, or the system does not say."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Its name stands in parentheses, and may have some of its own.
    state, parent, *others = told.rpartition(")")[2].split()
    return None if state in _GONE else Vitals(int(parent), int(others[17]))


def birth_of(pid: int) -> int | None:
    found = vitals(pid)
    return None if found is None else found.birth


def has_ended(pid: int, birth: int | None) -> bool:
    """Whether the process that was started then is there no more. In doubt it is there."""
    found = vitals(pid)
    if found is not None:
        return birth is not None and found.birth != birth
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # another's, of whom the system shows us nothing
    # There, and nothing is said of it: it ended and was not reaped, or there is no /proc.
    return Path("/proc/self/stat").exists()


def send(pid: int, birth: int | None, number: signal.Signals) -> bool:
    """Send a signal to the process that was started then, and to no other. False: it was not sent.

    One that is stopped, as by Ctrl-Z, goes on, to heed it. It is not sent when
    the process has ended, belongs to another user, or when the system cannot
    say which process it is.
    """
    if birth is None or not hasattr(os, "pidfd_open"):
        return False
    try:
        # What is opened stays this process; its number may be another's the moment after.
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
