"""The process, started by `subprocess.py`, that runs functions for a worker.

`python -m casque.worker.executors.subprocess_main FD`. It ends when the worker ends, even in the
middle of a function. Then the job's lease ends, and another worker runs the job.
"""

from __future__ import annotations

import contextvars
import os
import socket
import sys
import threading
from queue import SimpleQueue
from typing import IO, Any

from casque import checks
from casque.checks import describe
from casque.errors import InvalidError
from casque.job import Job
from casque.queues.lineage import VARIABLES, variables
from casque.queues.running_job import RunningJob
from casque.retry import Discard, Retry, Snooze, delay_of, reason_of
from casque.stores.port import Store
from casque.system.clock import SystemClock
from casque.tasks.app import TaskApp
from casque.tasks.app_store import AppStore
from casque.tasks.task import Task
from casque.worker.attempt import (
    InvalidResult,
    RunningAttempt,
    failure_of,
    from_its_own_code,
    gives_up,
    sound,
)
from casque.worker.executors import protocol
from casque.worker.executors.in_process import run_plain
from casque.worker.executors.middleware import Middleware
from casque.worker.loading import load_app
from casque.worker.logging.events import Report
from casque.worker.logging.setup import set_up
from casque.worker.runtime import flush_output

_sending = threading.Lock()


def serve(app: TaskApp, line: socket.socket, stream: IO[bytes]) -> None:
    """Run the jobs that the worker sends. Never returns: the process ends with the worker."""
    orders: SimpleQueue[protocol.RunOrder] = SimpleQueue()
    # A separate thread reads, and so notices the end of the worker while a function runs.
    reader = threading.Thread(
        target=_read, args=(stream, orders), name="casque-orders", daemon=True
    )
    reader.start()
    while True:
        order = orders.get()
        _send(line, protocol.BegunReply())
        reply = contextvars.copy_context().run(_run, app, order, line)
        flush_output()  # an idle process may be killed
        _send(line, reply)


def _read(stream: IO[bytes], orders: SimpleQueue[protocol.RunOrder]) -> None:
    while True:
        orders.put(protocol.decode_order(_frame(stream)))


def _frame(stream: IO[bytes]) -> bytes:
    body = protocol.read_frame(stream)
    if body is None:
        os._exit(0)
    return body


def _send(line: socket.socket, reply: protocol.Reply) -> None:
    message = protocol.frame(reply)
    with _sending:  # threads that a task has started report its progress too
        line.sendall(message)


def _run(app: TaskApp, order: protocol.RunOrder, line: socket.socket) -> protocol.Reply:
    task = app.tasks[order.job.entrypoint]
    clock, job_id = SystemClock(), order.job.id
    attempt = RunningAttempt(order.job, task, clock)

    def report(fraction: float | None, note: str | None) -> None:
        if fraction is not None:
            _send(line, protocol.ProgressReply(job_id, fraction, note))

    store = app.app_store.shared_address
    attempt.running = RunningJob(order.job, attempt.deadline_us, report, store=store)
    _set_variables(order.job, store)
    middleware = Middleware(app.middleware, Report(order.job.worker or "", clock))
    try:
        arguments = task.call.decode(order.job.payload)
        return protocol.ReturnedReply(run_plain(attempt, middleware, *arguments))
    except InvalidResult as unfit:
        return protocol.UnfitReply(checks.text(describe(unfit.args[0]), "error"))
    except BaseException as error:  # noqa: BLE001 - whatever a task does, this process lives
        return _of_error(error, task)


def _set_variables(job: Job, store: str | None) -> None:
    """Tell the programs that the function starts in which job they run.

    This process runs one job at a time and belongs to the worker, so its environment may change.
    The variables stay until the next job, for threads that the function leaves behind.
    """
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(variables(job, store))


def _of_error(error: BaseException, task: Task[..., Any]) -> protocol.Reply:
    error = sound(error)
    if isinstance(error, Retry):
        return protocol.AskedReply("retry", delay_of(error), reason_of(error))
    if isinstance(error, Snooze):
        return protocol.AskedReply("snooze", delay_of(error))
    if isinstance(error, Discard):
        return protocol.AskedReply("discard", reason=reason_of(error))
    return protocol.FailedReply(failure_of(from_its_own_code(error)), gives_up(error, task))


class _Elsewhere(AppStore):
    """Raises on use: only the worker's process has the memory store."""

    @property
    def shared_address(self) -> str | None:
        return None

    @property
    def store(self) -> Store:
        raise InvalidError(
            "a store in memory exists only in the worker's process, so a task that runs in "
            "another process cannot enqueue: use a store that processes share, such as "
            "sqlite:///jobs.db."
        )


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)  # processes that a task starts must not hold it
    stream = line.makefile("rb")
    setup = protocol.decode_setup(_frame(stream))
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
    app.app_store.require_existing()  # the job to run came from it
    serve(app, line, stream)


if __name__ == "__main__":
    main()
