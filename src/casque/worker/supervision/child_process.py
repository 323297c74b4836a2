"""Child processes, which a supervisor starts, watches, signals and reaps."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import casque
from casque.system.terminal_text import signal_name
from casque.worker.supervision import channel


def running(module: str) -> list[str]:
    """Return the command that runs one of our modules with the same Python, in any folder.

    `-P` keeps the current folder off the path: a `queue.py` there would replace
    Python's own.
    """
    return [sys.executable, *([] if _is_from_here() else ["-P"]), "-m", module]


def _is_from_here() -> bool:
    """True if casque is imported from the current folder."""
    try:
        return Path(casque.__file__).resolve().parents[1] == Path.cwd()
    except OSError:  # the folder was removed
        return False


class ChildProcess:
    """One running `python -m casque.worker`, and this end of its channel.

    The process has its own group, so that a terminal's Ctrl-C reaches only the supervisor.
    `when_it_ends` is called on another thread when the process has ended. Only `ended`, on the
    supervisor's thread, reaps the process, so that a signal can never reach another process with
    the same number.
    """

    def __init__(self, orders: channel.Orders, when_it_ends: Callable[[], None]) -> None:
        self.line, theirs = socket.socketpair()
        """Its channel. Closing it stops a running child."""
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, by the same Python
                [*running("casque.worker"), orders.target or "-", f"--child={theirs.fileno()}"],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        channel.send_orders(self.line, orders)
        self.pid = self._process.pid
        watcher = threading.Thread(
            target=self._watch, args=(when_it_ends,), name=f"casque-child-{self.pid}", daemon=True
        )
        watcher.start()

    def ended(self) -> int | None:
        """Return its exit code, negative for the signal that killed it; None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.send_signal(
            signal.SIGCONT
        )  # a process stopped by SIGSTOP must run to handle it

    def kill(self) -> None:
        """Kill the child, and everything that its tasks left in its process group."""
        if self.ended() is not None:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()

    def _watch(self, when_it_ends: Callable[[], None]) -> None:
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):  # reaped already
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            self._process.wait()
        when_it_ends()


def reap_orphans(own: dict[int, ChildProcess]) -> list[int]:
    """Reap every ended process that is not in `own`. Only PID 1 calls this: it inherits orphans."""
    reaped: list[int] = []
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return reaped
        if found is None:
            return reaped
        if (child := own.get(found.si_pid)) is not None:
            # `ended` reaps it and keeps its exit code; unreaped, it would be found for ever.
            child.ended()
        else:
            os.waitpid(found.si_pid, 0)
            reaped.append(found.si_pid)


def exit_text(code: int) -> str:
    """Return how a process ended, in words."""
    return f"ended with exit code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
