"""Bench: the other end of `processes.py`: a process that runs the functions it is told to.

`python -m casque.worker.executors.subprocess_main FD`. It ends when the worker does, in the middle
of a function too: the job's lease ends, and another worker has it.
"""

from __future__ import annotations

import contextvars
import os
import socket
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, Any

import msgspec

from casque import checks
from casque.checks import describe
from casque.errors import InvalidError
from casque.job import Failure, Job
from casque.retry import Discard, Retry, Snooze, delay_of, reason_of
from casque.stores.port import Store
from casque.system import forks
from casque.system.clock import SystemClock
from casque.tasks.app import TaskApp
from casque.tasks.app_store import AppStore
from casque.tasks.current import RunningJob, become
from casque.tasks.task import Task
from casque.worker.logging.setup import LogOptions, set_up


class Setup(msgspec.Struct, frozen=True):
    """What comes first: where the app is found, and the store that the worker works on."""

    target: str
    modules: list[str]
    store: str | None
    """None: the one that the app names."""
    path: list[str]
    python_path: str | None
    """The variable PYTHONPATH as the worker has it; this process was started with another."""
    log: LogOptions | None


class Order(msgspec.Struct, frozen=True):
    """Run this job."""

    job: Job


class Begun(msgspec.Struct, frozen=True, tag=True):
    """The order has arrived: from now on it is the job whose doing it is if the process dies."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    job_id: str
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


Reply = Begun | Progress | Returned | Failed | Retried | Snoozed | Discarded | Unfit

encode = msgspec.msgpack.Encoder().encode
_ORDERS = msgspec.msgpack.Decoder(Order)
_REPLIES = msgspec.msgpack.Decoder(Reply)

_LENGTH_BYTES = 4
_sending = threading.Lock()


def decode_reply(body: bytes) -> Reply:
    reply: Reply = _REPLIES.decode(body)
    return reply


def serve(app: TaskApp, line: socket.socket, stream: IO[bytes]) -> None:
    """Run what is ordered, one after another. Returns never: ends with the worker."""
    orders: SimpleQueue[Order] = SimpleQueue()
    # A reader of its own, so that the end of the worker is noticed while a function runs.
    reader = threading.Thread(target=_read, args=(stream, orders), name="casque-bench", daemon=True)
    reader.start()
    while True:
        order = orders.get()
        _send(line, Begun())
        reply = contextvars.copy_context().run(_run, app, order, line)
        _flush()
        _send(line, reply)


def _flush() -> None:
    """What a task printed must be out before the process is idle, when it may be killed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # nobody reads it, or it is no stream
            stream.flush()


def _read(stream: IO[bytes], orders: SimpleQueue[Order]) -> None:
    while True:
        orders.put(_ORDERS.decode(_frame(stream)))


def _frame(stream: IO[bytes]) -> bytes:
    length = stream.read(_LENGTH_BYTES)
    body = stream.read(int.from_bytes(length, "big")) if len(length) == _LENGTH_BYTES else b""
    if not body:
        os._exit(0)
    return body


def _send(line: socket.socket, reply: Reply) -> None:
    body = encode(reply)
    with _sending:  # threads that a task has started tell of its progress too
        line.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


def _run(app: TaskApp, order: Order, line: socket.socket) -> Reply:
    # Here and not above: processes.py, on the worker's end, needs only the replies.
    from casque.worker.attempt import Attempt, InvalidResult  # noqa: PLC0415
    from casque.worker.executors.in_process import Hooks, encoded, leave_if_forked  # noqa: PLC0415
    from casque.worker.logging.events import Report  # noqa: PLC0415

    task = app.tasks[order.job.entrypoint]
    clock, job_id = SystemClock(), order.job.id
    attempt = Attempt(order.job, task, clock)

    def tell(fraction: float | None, note: str | None) -> None:
        if fraction is not None:
            _send(line, Progress(job_id, fraction, note))

    attempt.running = RunningJob(order.job, attempt.deadline_us, tell)
    hooks = Hooks(app.middleware, Report(order.job.worker or "", clock))

    def call() -> Any:
        args, kwargs = task.decode(order.job.payload)
        return task.function(*args, **kwargs)

    generation = forks.generation()
    become(attempt.running)
    try:
        try:
            value = hooks.call(attempt, call)
        finally:
            leave_if_forked(generation)
        return Returned(encoded(attempt, value))
    except InvalidResult as unfit:
        return Unfit(checks.text(describe(unfit.args[0]), "error"))
    except BaseException as error:  # noqa: BLE001 - whatever a task does, the bench lives
        return _of_error(error, task)


def _of_error(error: BaseException, task: Task[..., Any]) -> Reply:
    from casque.worker.attempt import (  # noqa: PLC0415 - as above
        failure_of,
        from_its_own_code,
        gives_up,
        sound,
    )

    error = sound(error)
    if isinstance(error, Retry):
        return Retried(delay_of(error), reason_of(error))
    if isinstance(error, Snooze):
        return Snoozed(delay_of(error) or 0)
    if isinstance(error, Discard):
        return Discarded(reason_of(error))
    return Failed(failure_of(from_its_own_code(error)), gives_up(error, task))


class _Elsewhere(AppStore):
    """What an app has instead of a store that lives in the worker's process alone."""

    @property
    def store(self) -> Store:
        raise InvalidError(
            "a store in memory lives in the process of the worker alone, so a task that runs in "
            "a process of its own cannot enqueue: use a store that processes share, as "
            "sqlite:///jobs.db is."
        )


def main() -> None:
    from casque.worker.loading import load_app  # noqa: PLC0415

    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)  # what a task starts must not hold it
    stream = line.makefile("rb")
    setup = msgspec.msgpack.decode(_frame(stream), type=Setup)
    sys.path[:] = setup.path
    if setup.python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = setup.python_path
    if setup.log is not None:
        set_up(setup.log)
    try:
        app = load_app(setup.target, store=setup.store, modules=setup.modules)
    except InvalidError as error:
        sys.exit(str(error))
    if setup.store is not None and setup.store.startswith("memory:"):
        app.app_store = _Elsewhere(setup.store)
    serve(app, line, stream)


if __name__ == "__main__":
    main()
