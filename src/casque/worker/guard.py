"""Guard: ends what a worker's commands started when the worker dies, however it dies.

A program of its own, run by its path, so that it is small and soon there. It
reads which sessions there are (`+N`, acknowledged; `-N`) from the worker, who
holds the only other end of that pipe: when it dies, the system closes it.
"""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Whoever ends the worker by these means the worker: the guard ends after it."""
_LOOKS = 200
_LOOK_SECONDS = 0.01


def main() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin.buffer:
        session = int(line[1:])
        if line.startswith(b"+"):
            sessions.add(session)
            with suppress(OSError):  # the worker is gone: the next line says so
                os.write(sys.stdout.fileno(), b"%d\n" % session)
        else:
            sessions.discard(session)
    _end(sessions)


def _end(sessions: set[int]) -> None:
    """Kill all of them: the groups of their leaders at once, then whatever is found in others."""
    _kill(sessions)
    for _ in range(_LOOKS):
        left = set(_groups(sessions))
        if not left:
            return
        _kill(left)  # one may be born while it is looked: so until none is found
        select.select([], [], [], _LOOK_SECONDS)


def _kill(groups: set[int]) -> None:
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _groups(sessions: set[int]) -> Iterator[int]:
    """The process groups in which something of the sessions lives, where the system tells."""
    if not os.path.exists("/proc/self/stat"):  # noqa: PTH110 - to load pathlib takes its time
        return
    for name in os.listdir("/proc"):  # noqa: PTH208 - as above
        with suppress(OSError):  # it is gone
            if name.isdecimal() and os.getsid(int(name)) in sessions and _lives(name):
                yield os.getpgid(int(name))


def _lives(pid: str) -> bool:
    """Whether it is more than a dead one that nobody has buried."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
        return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X", b"x")


if __name__ == "__main__":
    main()
