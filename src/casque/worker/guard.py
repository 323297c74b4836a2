"""Guard: ends what a worker's commands started when the worker dies, however it dies.

A program of its own, run by its path, so that it is small and soon there. It
reads which process groups there are (`+N`, acknowledged; `-N`) from the worker,
who holds the only other end of that pipe: when it dies, the system closes it.
"""

import os
import signal
import sys
from contextlib import suppress

_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Whoever ends the worker by these means the worker: the guard ends after it."""


def main() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        group = int(line[1:])
        if line.startswith(b"+"):
            groups.add(group)
            with suppress(OSError):  # the worker is gone: the next line says so
                os.write(sys.stdout.fileno(), b"%d\n" % group)
        else:
            groups.discard(group)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
