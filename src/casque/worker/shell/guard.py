"""Guard: starts and talks to the process that kills a worker's commands when the worker dies."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from casque.system.forks import renew_in_child

_log = logging.getLogger("casque.worker")

_PROGRAM = Path(__file__).with_name("guard_main.py")
_ANSWER_SECONDS = 10.0
"""How long a guard may take to answer before it is replaced."""
_GUARDS = 3
"""How many guards are tried before a command is given up."""
_AGAIN_SECONDS = 1.0
"""How long to wait before the next guard if one died before its first answer."""
_END_SECONDS = 5.0
_ANSWER_BYTES = 65_536


class UnguardedError(Exception):
    """No guard can be started."""


class Guard:
    """The guard process. Each event loop of this process keeps one running.

    Only this process may hold the guard's pipes: a command does not inherit them, and the child of
    a fork closes them.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        """Held while the pipe is written to or closed."""
        self._process: subprocess.Popen[bytes] | None = None
        self._has_answered = False
        self._groups: dict[int, None] = {}
        """The groups that are guarded."""
        self._asking: dict[int, asyncio.Future[None]] = {}
        self._heard = b""
        self._is_closed = False
        renew_in_child(self)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def add(self, group: int) -> None:
        """Return when a group is guarded. Raises UnguardedError if no guard can start."""
        asking = self._asking[group] = self._loop.create_future()
        self._groups[group] = None
        try:
            if self._process is None:
                self._start()
            else:
                self._tell(b"+%d\n" % group)
            for _ in range(_GUARDS):
                answered, _ = await asyncio.wait([asking], timeout=_ANSWER_SECONDS)
                if answered:
                    return
                self._replace(self._process)
        finally:
            del self._asking[group]
        raise UnguardedError(
            "the guard, which kills this command if its worker dies, cannot be started; check "
            "whether the machine is out of memory or processes."
        )

    def extend(self, group: int, seconds: float) -> None:
        """Make the guard kill a group after `seconds`, unless called again before. Thread-safe.

        It does not use the loop, because heartbeats continue while a task blocks the loop.
        """
        self._tell(b"=%d %.3f\n" % (group, seconds))

    def drop(self, group: int) -> None:
        """Stop guarding a group."""
        if group in self._groups:
            del self._groups[group]
            self._tell(b"-%d\n" % group)

    def close(self) -> None:
        """End the guard. It kills the groups that it still guards."""
        self._is_closed = True
        process = self._let_go()
        if process is None:
            return
        if not self._groups:
            process.kill()
        _close(process.stdin)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        if self._is_closed or self._process is not None:
            return
        try:
            # In its own session: neither Ctrl-C nor a signal to the worker's group reaches it.
            process = subprocess.Popen(  # noqa: S603 - our own program, by the same Python
                [sys.executable, "-I", "-S", str(_PROGRAM)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            _log.warning("the guard of this worker's commands cannot be started: %s", error)
            self._start_later()
            return
        assert process.stdin is not None
        assert process.stdout is not None
        for stream in (process.stdin, process.stdout):
            os.set_blocking(stream.fileno(), False)
        self._process, self._has_answered, self._heard = process, False, b""
        self._loop.add_reader(process.stdout.fileno(), self._hear)
        self._tell(b"".join(b"+%d\n" % group for group in self._groups))

    def _start_later(self) -> None:
        self._loop.call_later(_AGAIN_SECONDS, self._start)

    def _tell(self, line: bytes) -> None:
        """Send a line to the guard, if there is one. Thread-safe."""
        with self._lock:
            process = self._process
            if process is None or process.stdin is None:
                return  # the next guard gets all groups, and the next renewals
            try:
                is_sent = process.stdin.write(line) == len(line)
            except (OSError, ValueError):
                return  # it is dead, and `_hear` will notice
        # The guard does not read: it was stopped, or the machine is overloaded. It would misread
        # a line that was cut off, so it must be replaced.
        if not is_sent:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._replace, process)

    def _hear(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            heard = os.read(self._process.stdout.fileno(), _ANSWER_BYTES)
        except BlockingIOError:
            return
        if not heard:
            _log.warning("the guard of this worker's commands died and is replaced")
            self._replace(self._process)
            return
        self._has_answered = True
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            asking = self._asking.get(int(line))
            if asking is not None and not asking.done():
                asking.set_result(None)

    def _replace(self, process: subprocess.Popen[bytes] | None) -> None:
        """Start another guard for all running groups, unless `process` was replaced already."""
        if process is not self._process:
            return
        self._let_go()
        if process is not None:
            # Kill it first: a guard that was only stopped would see its pipe end, and kill the
            # running groups.
            process.kill()
            process.wait()
            _close(process.stdin)
        if not self._groups:
            return
        if self._has_answered:
            self._start()
        else:
            self._start_later()

    def _let_go(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.stdout is not None:
            self._loop.remove_reader(process.stdout.fileno())
            _close(process.stdout)
        return process

    def renew(self) -> None:
        """Close the pipes in the child of a fork, so that the guard notices the worker's end."""
        if self._process is not None:
            _close(self._process.stdin)
            _close(self._process.stdout)


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with suppress(OSError):
            stream.close()
