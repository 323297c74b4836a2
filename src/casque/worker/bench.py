"""Bench: the other end of `processes.py`: a process that runs the functions it is told to.

`python -m casque.worker.bench MODULE:APP FD`. It ends when the worker does, in
the middle of a function too: the job's lease ends, and another worker has it.
"""

from __future__ import annotations

import contextvars
import os
import socket
import sys
import threading
from queue import SimpleQueue
from typing import Any

import msgspec

from casque import process
from casque.clock import span_us
from casque.current import RunningJob, become
from casque.errors import InvalidError
from casque.job import Failure, Job
from casque.retry import Discard, Retry, Snooze
from casque.tasks import App


class Order(msgspec.Struct, frozen=True):
    """Run this job."""

    job: Job
    deadline_us: int | None


class Progress(msgspec.Struct, frozen=True, tag=True):
    fraction: float
    note: str | None


class Returned(msgspec.Struct, frozen=True, tag=True):
    result: bytes | None


class Failed(msgspec.Struct, frozen=True, tag=True):
    failure: Failure
    gives_up: bool


class Retried(msgspec.Struct, frozen=True, tag=True):
    delay_us: int | None
    reason: str


class Snoozed(msgspec.Struct, frozen=True, tag=True):
    delay_us: int


class Discarded(msgspec.Struct, frozen=True, tag=True):
    reason: str


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """What the function returned cannot be kept."""

    text: str


Reply = Progress | Returned | Failed | Retried | Snoozed | Discarded | Unfit

encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(Order).decode
_REPLIES = msgspec.msgpack.Decoder(Reply)

_LENGTH_BYTES = 4


def decode_reply(body: bytes) -> Reply:
    reply: Reply = _REPLIES.decode(body)
    return reply


def serve(app: App, line: socket.socket) -> None:
    """Run what is ordered, one after another. Returns never: ends with the worker."""
    orders: SimpleQueue[Order] = SimpleQueue()
    # A reader of its own, so that the end of the worker is noticed while a function runs.
    threading.Thread(target=_read, args=(line, orders), name="casque-bench", daemon=True).start()
    while True:
        order = orders.get()
        _send(line, contextvars.copy_context().run(_run, app, order, line))


def _read(line: socket.socket, orders: SimpleQueue[Order]) -> None:
    stream = line.makefile("rb")
    while True:
        length = stream.read(_LENGTH_BYTES)
        body = stream.read(int.from_bytes(length, "big")) if len(length) == _LENGTH_BYTES else b""
        if not body:
            os._exit(0)
        orders.put(decode_order(body))


def _send(line: socket.socket, reply: Reply) -> None:
    body = encode(reply)
    line.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


def _run(app: App, order: Order, line: socket.socket) -> Reply:
    # Here and not above: processes.py, on the worker's end, needs only the replies.
    from casque.worker.attempt import (  # noqa: PLC0415
        Attempt,
        InvalidResult,
        failure_of,
        from_its_own_code,
        gives_up,
    )
    from casque.worker.places import Hooks, encoded, leave_if_forked  # noqa: PLC0415
    from casque.worker.report import Report  # noqa: PLC0415

    task = app.tasks[order.job.entrypoint]
    attempt = Attempt(order.job, task, app.store.clock)
    attempt.running = RunningJob(
        order.job, order.deadline_us, lambda fraction, note: _send(line, Progress(fraction, note))
    )
    hooks = Hooks(app.middleware, Report(order.job.worker or "", app.store.clock))

    def call() -> Any:
        args, kwargs = task.decode(order.job.payload)
        return task.function(*args, **kwargs)

    generation = process.generation
    become(attempt.running)
    try:
        try:
            value = hooks.call(attempt, call)
        finally:
            leave_if_forked(generation)
        return Returned(encoded(attempt, value))
    except Retry as error:
        return Retried(None if error.delay is None else span_us(error.delay), error.reason)
    except Snooze as error:
        return Snoozed(span_us(error.delay))
    except Discard as error:
        return Discarded(error.reason)
    except InvalidResult as unfit:
        return Unfit(str(unfit.args[0]))
    except BaseException as error:  # noqa: BLE001 - whatever a task does, the bench lives
        return Failed(failure_of(from_its_own_code(error)), gives_up(error, task))


def main() -> None:
    from casque.worker.loading import load_app  # noqa: PLC0415

    target, fd = sys.argv[1:]
    line = socket.socket(fileno=int(fd))
    try:
        app = load_app(target)
    except InvalidError as error:
        sys.exit(str(error))
    serve(app, line)


if __name__ == "__main__":
    main()
