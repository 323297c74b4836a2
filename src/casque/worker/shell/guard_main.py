"""Guard: kills the sessions of a worker's commands when the worker dies in any way.

The guard is a separate program, run by its path, so that it is small and starts fast. It reads
lines from the worker: `+N` adds a session and is acknowledged, `-N` drops one. Only the worker
holds the other end of that pipe: when the worker dies, the system closes the pipe. A frozen worker
does not die, but its lease ends. So `=N SECONDS` limits how long a session may run, unless the
worker extends the limit again.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""These signals are meant for the worker: the guard ends after it."""
_IN = 0
_READ_BYTES = 65_536
_NEVER = float("inf")
_LONGEST_SECONDS = 3600.0
_LOOKS = 200
_LOOK_SECONDS = 0.01


_now = time.monotonic  # noqa: TID251 - this program cannot import our clock


def main() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    ends: dict[int, float] = {}
    heard = b""
    while True:
        # Read the worker's lines first: this process may be the one that was frozen.
        if not select.select([_IN], [], [], _seconds_to(ends))[0]:
            _end_late(ends)
            continue
        read = os.read(_IN, _READ_BYTES)
        if not read:
            break
        *lines, heard = (heard + read).split(b"\n")
        for line in lines:
            _obey(line, ends)
    _end(set(ends))


def _obey(line: bytes, ends: dict[int, float]) -> None:
    session, *seconds = line[1:].split()
    number = int(session)
    if line.startswith(b"+"):
        ends[number] = _NEVER
        with suppress(OSError):  # the worker is gone: the next read shows it
            os.write(sys.stdout.fileno(), b"%d\n" % number)
    elif line.startswith(b"-"):
        ends.pop(number, None)
    elif number in ends:
        ends[number] = _now() + float(seconds[0])


def _seconds_to(ends: dict[int, float]) -> float | None:
    first = min(ends.values(), default=_NEVER)
    return None if first == _NEVER else min(max(0.0, first - _now()), _LONGEST_SECONDS)


def _end_late(ends: dict[int, float]) -> None:
    now = _now()
    late = {session for session, end in ends.items() if end <= now}
    _end(late)
    ends.update(dict.fromkeys(late, _NEVER))  # until the worker, if it runs again, drops it


def _end(sessions: set[int]) -> None:
    """Kill the sessions: the groups of their leaders at once, then every other group."""
    _kill(sessions)
    for _ in range(_LOOKS):
        left = set(_groups(sessions))
        if not left:
            return
        _kill(left)  # a process may fork during the scan, so repeat until none is found
        select.select([], [], [], _LOOK_SECONDS)


def _kill(groups: set[int]) -> None:
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _groups(sessions: set[int]) -> Iterator[int]:
    """Return the process groups of the sessions that have a living process, as /proc shows them."""
    if not os.path.exists("/proc/self/stat"):  # noqa: PTH110 - importing pathlib takes time
        return
    for name in os.listdir("/proc"):  # noqa: PTH208 - as above
        with suppress(OSError):  # it is gone
            if name.isdecimal() and os.getsid(int(name)) in sessions and _lives(name):
                yield os.getpgid(int(name))


def _lives(pid: str) -> bool:
    """False for a zombie. Copies the states of `process_identity`, which is not importable here."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
        return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X", b"x")


if __name__ == "__main__":
    main()
