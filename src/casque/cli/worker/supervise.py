"""Supervise: the process that keeps workers running.

With `--foreground` that is the command itself. In the background it is `python -m
casque.cli.worker.supervise`. That program reads its plan from stdin, because a store's address may
hold a password, and everyone can see command lines.
"""

from __future__ import annotations

import os
import sys

import msgspec

from casque.cli.main import leave_with
from casque.cli.output import DONE, NOT_SO
from casque.cli.worker.plan import StartPlan
from casque.worker.logging.setup import LogOptions, set_up
from casque.worker.supervision.supervisor import Supervisor


def supervise(plan: StartPlan) -> int:
    """Run the workers until they end. Returns the exit code."""
    log = LogOptions(format=plan.log_format)
    set_up(log)
    supervisor = Supervisor(  # noqa: S604 - no shell here: its workers run shell jobs
        plan.target,
        plan.options,
        plan.count,
        plan.store,
        shell=True,
        registered_in=plan.registered_in,
        log=log,
    )
    return DONE if supervisor.run() else NOT_SO


def _supervise_from_stdin() -> int:
    data = sys.stdin.buffer.read()
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    if not data:
        return NOT_SO  # the command was killed before it could send the plan
    return supervise(msgspec.json.decode(data, type=StartPlan))


if __name__ == "__main__":
    leave_with(_supervise_from_stdin)
