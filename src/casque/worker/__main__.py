"""Run workers: `python -m casque.worker tasks:app --count 4`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from casque.checks import LARGEST_INT, name
from casque.errors import CasqueError, InvalidError
from casque.system.durations import duration_us
from casque.worker.loading import load_app
from casque.worker.logging.setup import FORMATS, LEVELS, LogOptions, set_up
from casque.worker.options import (
    DEFAULT_CONCURRENCY,
    DEFAULT_GRACE_US,
    DEFAULT_LEASE_US,
    WorkerOptions,
)
from casque.worker.runtime import leave, leave_at_once
from casque.worker.supervision.child_main import run_child
from casque.worker.supervision.signals import stopping_on_signals
from casque.worker.supervision.supervisor import INIT_PID, Supervisor
from casque.worker.worker import Worker

STOPPED, HAD_TO_KILL, INVALID = 0, 1, 2
T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    if asked.child is not None:
        return run_child(asked.child)
    try:
        return _run(asked)
    except InvalidError as error:
        return _complain(error, INVALID)
    except CasqueError as error:
        return _complain(error, HAD_TO_KILL)


def _run(asked: argparse.Namespace) -> int:
    log = LogOptions(
        level=logging.getLevelNamesMapping()[asked.log_level.upper()], format=asked.log_format
    )
    options = msgspec.convert(vars(asked), WorkerOptions)
    set_up(log)
    # A single worker needs a supervisor too if it is replaced now and then, or if it would be
    # PID 1: PID 1 must reap orphans, and a worker that did would reap the children of its tasks.
    if asked.count > 1 or options.is_recycled or os.getpid() == INIT_PID:
        supervisor = Supervisor(asked.app, options, asked.count, asked.store, log=log)
        return STOPPED if supervisor.run() else HAD_TO_KILL
    app = load_app(asked.app, store=asked.store)
    worker = Worker(app, options, when_stuck=lambda _: leave_at_once(STOPPED))
    with stopping_on_signals(worker.stop, worker.stop_now) as restore:
        worker.run(restore_signals=restore)
    return STOPPED


def _complain(error: CasqueError, code: int) -> int:
    print(f"python -m casque.worker: error: {error}", file=sys.stderr)  # noqa: T201 - as argparse does
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m casque.worker",
        description="Run the jobs of an App.",
        epilog=(
            "SIGTERM or Ctrl-C: claim no more jobs, let running jobs finish within the grace, "
            "release the rest. Ctrl-C again: release them at once. DURATION: seconds, or with a "
            "unit: 500ms, 90s, 5m, 1h. Exit codes: 0 stopped or idle; 1 worker processes had to "
            "be killed, a task broke the event loop, or the storage is unusable; 2 wrong arguments "
            "or no such app."
        ),
    )
    parser.add_argument(
        "app",
        metavar="MODULE:APP",
        help="where the App is: tasks:app, or jobs/tasks.py:app; :APP is optional if the module "
        "has only one App",
    )
    add = parser.add_argument
    add("--count", type=_whole, default=1, metavar="N", help="worker processes (default: 1)")
    add(
        "--concurrency",
        type=_whole,
        default=DEFAULT_CONCURRENCY,
        metavar="N",
        help="jobs that one process runs at once (default: %(default)s)",
    )
    add(
        "--queue",
        dest="queues",
        type=_checked(partial(name, what="queue")),
        action="append",
        metavar="NAME",
        help="take jobs from this queue; may be given several times (default: from all)",
    )
    add(
        "--lease",
        dest="lease_us",
        type=_checked(partial(duration_us, at_least_us=1)),
        default=DEFAULT_LEASE_US,
        metavar="DURATION",
        help="how long until another worker runs the jobs of a process that died (default: 60s)",
    )
    add(
        "--grace",
        dest="grace_us",
        type=_checked(duration_us),
        default=DEFAULT_GRACE_US,
        metavar="DURATION",
        help="how long running jobs may continue after SIGTERM (default: 30s)",
    )
    add("--until-idle", action="store_true", help="exit when no job is due and none is running")
    add("--max-jobs", type=_whole, metavar="N", help="replace a process after N jobs")
    add("--max-mib", type=_whole, metavar="M", help="replace a process that uses more than M MiB")
    add("--store", metavar="URL", help="use this store instead of the App's own")
    add("--log-level", choices=LEVELS, default="info", help="(default: %(default)s)")
    add("--log-format", choices=FORMATS, default="text", help="(default: %(default)s)")
    add("--child", type=int, help=argparse.SUPPRESS)
    return parser


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= LARGEST_INT:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Turn InvalidError into the exception that argparse expects."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except InvalidError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


if __name__ == "__main__":
    sys.exit(leave(main()))
