"""Functions in subprocesses of the worker, for tasks that need their own processor.

A child runs one job after another, and is killed when a job must end early. It gets a job over a
socket, finds the task in its own copy of the app, and answers with plain values, never with
pickles.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from casque.errors import InvalidError
from casque.job import Failure
from casque.retry import Discard, Retry, Snooze
from casque.tasks.app import TaskApp
from casque.worker.attempt import InvalidResult, RunningAttempt, TaskError
from casque.worker.executors import protocol
from casque.worker.loading import modules_of, path_of
from casque.worker.logging import setup as logs
from casque.worker.supervision.child_process import exit_text

_STARTS = 3
"""How many children may die before they have started a job."""


class ProcessExecutor:
    """Runs plain functions in subprocesses, one at a time in each."""

    def __init__(self, app: TaskApp, when_begun: Callable[[RunningAttempt], None]) -> None:
        """`when_begun` is called when a function starts, not when its process starts."""
        self._app = app
        self._when_begun = when_begun
        self._idle: list[_Child] = []
        self._serving: dict[RunningAttempt, _Child] = {}

    async def call(
        self,
        attempt: RunningAttempt,
        args: list[Any],  # noqa: ARG002 - checked here, decoded again there
        kwargs: dict[str, Any],  # noqa: ARG002
    ) -> bytes | None:
        for start in range(_STARTS):
            try:
                return _result(await self._serve(attempt))
            except _NotBegun:
                # An idle child died, for example killed by the system: not this job's fault.
                if start == _STARTS - 1 or attempt.ending is not None:
                    raise
        raise AssertionError

    async def _serve(self, attempt: RunningAttempt) -> protocol.Reply:
        child = self._idle_child() or await _Child.start(self._setup())
        self._serving[attempt] = child
        is_fit = False
        try:
            reply = await child.serve(attempt, self._when_begun)
            is_fit = True
        finally:
            del self._serving[attempt]
            if is_fit:
                self._idle.append(child)
            else:
                child.kill()
        return reply

    def _idle_child(self) -> _Child | None:
        while self._idle:
            child = self._idle.pop()
            if not child.is_dead:
                return child
            child.kill()  # processes that it started may be alive
        return None

    def _setup(self) -> protocol.AppSetup:
        app = self._app
        found = path_of(app), modules_of(app)
        python_path = os.environ.get("PYTHONPATH")
        return protocol.AppSetup(
            *found, app.app_store.address, list(sys.path), python_path, logs.current()
        )

    def interrupt(self, attempt: RunningAttempt) -> bool:
        child = self._serving.get(attempt)
        if child is not None:
            child.kill()
        elif attempt.work is not None:  # it is being started
            attempt.work.cancel()
        return True

    def close(self) -> None:
        for child in [*self._idle, *self._serving.values()]:
            child.kill()
        self._idle.clear()


class _NotBegun(TaskError):  # noqa: N818 - it is tried once more
    """A child died before it had started its job."""


class _Child:
    """One process, and the socket to it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        # Its forks may hold the socket open, so wait for the process itself.
        threading.Thread(target=self._await_end, name="casque-child", daemon=True).start()

    @classmethod
    async def start(cls, setup: protocol.AppSetup) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            # In its own session: Ctrl-C does not reach it, and what it starts is killed with it.
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - a millisecond; our own command
                [
                    sys.executable,
                    "-m",
                    "casque.worker.executors.subprocess_main",
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, setup.path))},
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        child = cls(process, reader, writer)
        child._send(setup)
        return child

    @property
    def is_dead(self) -> bool:
        return self._reader.at_eof()

    def _await_end(self) -> None:
        # Only `Popen` waits for the PID: a second wait could find another process with it.
        self._process.wait()
        with suppress(RuntimeError):  # the loop is closed: the worker has ended
            self._loop.call_soon_threadsafe(self._reader.feed_eof)

    def _send(self, message: protocol.AppSetup | protocol.RunOrder) -> None:
        self._writer.write(protocol.frame(message))

    async def serve(
        self, attempt: RunningAttempt, when_begun: Callable[[RunningAttempt], None]
    ) -> protocol.Reply:
        self._send(protocol.RunOrder(attempt.job))
        has_begun = False
        while True:
            try:
                length = int.from_bytes(
                    await self._reader.readexactly(protocol.LENGTH_BYTES), "big"
                )
                reply = protocol.decode_reply(await self._reader.readexactly(length))
            except (asyncio.IncompleteReadError, ConnectionError):
                failure = await asyncio.to_thread(self._death)
                died = TaskError if has_begun else _NotBegun
                raise died(failure, gives_up=False) from None
            if isinstance(reply, protocol.BegunReply):
                has_begun = True
                when_begun(attempt)
            elif not isinstance(reply, protocol.ProgressReply):
                attempt.is_over = True
                return reply
            elif reply.job_id == attempt.job.id:  # else from a thread that an earlier job left
                attempt.running.progress(reply.fraction, reply.note)

    def _death(self) -> Failure:
        how = exit_text(self._process.wait())
        return Failure("ProcessDied", f"the process that ran the task {how}")

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._writer.close()


def _result(reply: protocol.Reply) -> bytes | None:
    """Return the result in a reply, or raise the exception that the reply stands for."""
    match reply:
        case protocol.ReturnedReply(result):
            return result
        case protocol.FailedReply(failure, gives_up):
            raise TaskError(failure, gives_up=gives_up)
        case protocol.AskedReply(kind, delay_us, reason):
            delay = None if delay_us is None else timedelta(microseconds=delay_us)
            if kind == "retry":
                raise Retry(delay, reason=reason)
            raise Snooze(delay or timedelta(0)) if kind == "snooze" else Discard(reason)
        case protocol.UnfitReply(text):
            raise InvalidResult(InvalidError(text))
        case protocol.ProgressReply() | protocol.BegunReply():
            raise AssertionError("no reply to an order")
