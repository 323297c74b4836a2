"""Command: a command line as a session: its start, its output, the end of all its processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from casque.checks import OUTPUT_BYTES
from casque.system.clock import SECOND_US, SystemClock
from casque.worker.shell.groups import LivingGroups, is_there
from casque.worker.shell.guard import Guard

SHELL_PATH = "/bin/sh"
_GATE = f'IFS= read -r _casque_gate && exec {SHELL_PATH} -c "$1" </dev/null'
"""Waits for a line before it becomes the command. If the worker dies before the group is guarded,
no line comes: the gate ends, and the command never runs. The variable has a name that nobody else
uses: `read` would empty a variable of the environment before the command sees it."""
_LEAVE_SECONDS = 0.1
"""How long, after the end of its `sh`, a process may take to leave the session by `setsid`."""
_TERM_SECONDS = 2.0
"""How long processes may take to end after SIGTERM, before they are killed."""
_GONE_SECONDS = 1.0
"""How long to wait for processes that were killed."""
_LOOK_SECONDS = 0.05
_READ_BYTES = 65_536
_LAST_READS = 16
_REPORT_SECONDS = 1.0
_REPORTED_BYTES_PER_SECOND = 8_192
"""How much output is stored per second while a command runs that writes without end."""


class Command:
    """One run of a command line by `sh -c`, in its own session and process group.

    Because of the session, a terminal's Ctrl-C reaches only the worker. A program that asks the
    terminal for a password fails instead of being stopped for ever.
    """

    def __init__(
        self,
        line: str,
        environment: Mapping[bytes, bytes],
        folder: str | None,
        report: Callable[[bytes], None],
    ) -> None:
        """Start `sh`, which waits for a call of `run`. OSError or ValueError if it cannot start.

        While the command runs, `report` gets its output from time to time.
        """
        self._loop = asyncio.get_running_loop()
        self._report = report
        self._tail = bytearray()
        self._reporting: asyncio.TimerHandle | None = None
        self._reported_bytes = 0
        self.is_left = False
        """True if a process of it could not be killed."""
        self._has_ended = asyncio.Event()
        """Set when the `sh` has ended. It is not reaped yet, so its PID still belongs to it."""
        self._process = subprocess.Popen(  # noqa: S603 - its purpose is to run given commands
            ["sh", "-c", _GATE, "sh", line.encode()],  # noqa: S607 - by its whole path, below
            executable=SHELL_PATH,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.group = self._process.pid
        """The number of its session, of its first process group, and of the leader of both."""
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._read)
        self._pidfd: int | None = None
        self._watch()

    async def run(self, guard: Guard, when_guarded: Callable[[], None]) -> int:
        """Run the command to its end. Returns its exit code, negative for a signal that killed it.

        When this returns or raises, no process of the command's session is left, unless `is_left`.
        Cancelling this coroutine ends the command.
        """
        try:
            await guard.add(self.group)
            when_guarded()
            self._open_gate()
            await self._has_ended.wait()
        finally:
            await self._clear_away()
            guard.drop(self.group)
            self._close()
        return self._process.returncode

    def _open_gate(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody killed it
            self._process.stdin.write(b"\n")
        self._process.stdin.close()

    # -- its end ---------------------------------------------------------------

    def _watch(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self.group)
        except (AttributeError, OSError):  # not Linux, or an old kernel
            threading.Thread(target=self._wait, name="casque-command", daemon=True).start()
        else:
            self._loop.add_reader(self._pidfd, self._see_the_end)

    def _wait(self) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.group, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            self._process.wait()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._has_ended.set)

    def _see_the_end(self) -> None:
        self._let_go_of_pidfd()
        self._has_ended.set()

    async def _clear_away(self) -> None:
        """End the remaining processes of the session. A cancellation makes it kill them at once.

        Once the `sh` is reaped, only the remaining processes keep the session's number from being
        used again. So the session is checked often, and never again once it was empty. The system
        assigns numbers in ascending order, and does not use all of them between two checks.
        """
        begun = self._loop.time()
        ask_after = _LEAVE_SECONDS if self._has_ended.is_set() else 0.0
        is_asked = is_hurried = False
        while not self._is_gone(begun):
            passed = self._loop.time() - begun
            if passed >= _TERM_SECONDS + _GONE_SECONDS:
                self.is_left = True
                return
            if is_hurried or passed >= _TERM_SECONDS:
                self._signal(signal.SIGKILL)
            elif not is_asked and passed >= ask_after:
                is_asked = True
                self._signal(signal.SIGTERM)
                self._signal(signal.SIGCONT)  # a stopped process must run to handle it
            try:
                await pause(_LOOK_SECONDS)
            except asyncio.CancelledError:
                is_hurried = True
        # The check may have missed a process that was forked meanwhile.
        if is_asked or is_there(self.group):
            self._signal(signal.SIGKILL)

    def _is_gone(self, begun: float) -> bool:
        """True if no process of the session is alive. A check before `begun` does not count."""
        if not self._has_ended.is_set():
            return False
        self._process.poll()
        now = self._loop.time()
        return not _groups.of(self.group, now, since=max(begun, now - _LOOK_SECONDS))

    def _signal(self, number: signal.Signals) -> None:
        now = self._loop.time()
        for group in {self.group} | _groups.of(self.group, now, since=now):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)

    def _close(self) -> None:
        """Read the rest of the output, without waiting for processes that still hold the pipe."""
        self._loop.remove_reader(self._output)
        for _ in range(_LAST_READS):
            if not self._take():
                break
        if self._reporting is not None:
            self._reporting.cancel()
        self._let_go_of_pidfd()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _let_go_of_pidfd(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    # -- its output ------------------------------------------------------------

    @property
    def output(self) -> bytes:
        """The last part of the output so far."""
        return bytes(self._tail[-OUTPUT_BYTES:])

    def _read(self) -> None:
        read = self._take()
        if read == b"":
            self._loop.remove_reader(self._output)  # nobody holds the other end any more
        elif read and self._reporting is None:
            # Not for each new line: a report repeats the output that was reported before.
            seconds = max(_REPORT_SECONDS, self._reported_bytes / _REPORTED_BYTES_PER_SECOND)
            self._reporting = self._loop.call_later(seconds, self._report_now)

    def _take(self) -> bytes | None:
        """Read the available output. None if there is none yet, empty if no more will come."""
        try:
            read = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return None
        self._tail += read
        if len(self._tail) > 2 * OUTPUT_BYTES:
            del self._tail[:-OUTPUT_BYTES]
        return read

    def _report_now(self) -> None:
        self._reporting = None
        output = self.output
        self._reported_bytes = len(output)
        self._report(output)


_groups = LivingGroups()
_clock = SystemClock()


async def pause(seconds: float) -> None:
    """Sleep, without blocking the event loop."""
    await _clock.sleep(int(seconds * SECOND_US), blocking=False)
