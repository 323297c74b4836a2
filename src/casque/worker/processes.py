"""Processes: functions that need a processor of their own run in children of the worker.

A child serves one job after another and is killed when one of them must end.
It is told which job, finds the task in its own copy of the app, and answers
over a socket: by values, never by pickles.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

from casque.errors import InvalidError
from casque.job import Failure
from casque.retry import Discard, Retry, Snooze
from casque.tasks import App
from casque.worker.attempt import Attempt, InvalidResult, TaskError
from casque.worker.bench import (
    Discarded,
    Failed,
    Order,
    Progress,
    Reply,
    Retried,
    Returned,
    Snoozed,
    Unfit,
    decode_reply,
    encode,
)
from casque.worker.loading import path_of

_LENGTH_BYTES = 4


class InProcesses:
    """Plain functions, each in a process of its own while it runs."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._idle: list[_Child] = []
        self._serving: dict[Attempt, _Child] = {}

    async def call(
        self,
        attempt: Attempt,
        args: list[Any],  # noqa: ARG002 - checked here, decoded again there
        kwargs: dict[str, Any],  # noqa: ARG002
    ) -> bytes | None:
        child = self._idle.pop() if self._idle else await _Child.start(path_of(self._app))
        self._serving[attempt] = child
        is_fit = False
        try:
            reply = await child.serve(attempt)
            is_fit = True
        finally:
            del self._serving[attempt]
            if is_fit:
                self._idle.append(child)
            else:
                child.kill()
        return _result(reply)

    def interrupt(self, attempt: Attempt) -> bool:
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

    @classmethod
    async def start(cls, target: str) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            # In a session of its own: Ctrl-C is not for it, and what it starts is killed with it.
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - a millisecond; our own command
                [sys.executable, "-m", "casque.worker.bench", target, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer)

    async def serve(self, attempt: Attempt) -> Reply:
        body = encode(Order(attempt.job, attempt.deadline_us))
        self._writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
        while True:
            try:
                length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
                reply = decode_reply(await self._reader.readexactly(length))
            except (asyncio.IncompleteReadError, ConnectionError):
                raise TaskError(await self._death(), gives_up=False) from None
            if not isinstance(reply, Progress):
                return reply
            attempt.running.progress(reply.fraction, reply.note)

    async def _death(self) -> Failure:
        code = await asyncio.to_thread(self._process.wait)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Failure("ProcessDied", f"the process that ran the task ended with {how}")

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._writer.close()
        self._process.wait()  # it is dead: this only takes note of it


def _result(reply: Reply) -> bytes | None:
    """What a reply means here."""
    match reply:
        case Returned(result):
            return result
        case Failed(failure, gives_up):
            raise TaskError(failure, gives_up=gives_up)
        case Retried(delay_us, reason):
            raise Retry(None if delay_us is None else _span(delay_us), reason=reason)
        case Snoozed(delay_us):
            raise Snooze(_span(delay_us))
        case Discarded(reason):
            raise Discard(reason)
        case Unfit(text):
            raise InvalidResult(InvalidError(text))
        case Progress():
            raise AssertionError("no reply to an order")


def _span(us: int) -> timedelta:
    return timedelta(microseconds=us)
