"""The table of `worker list`."""

from __future__ import annotations

from collections.abc import Sequence

from casque.cli.fleet import age_us, ago, state_of
from casque.cli.tables import add_row, names, show, table
from casque.clock import SystemClock, to_us
from casque.worker.registry import WorkerEntry


def show_workers(entries: Sequence[WorkerEntry]) -> None:
    """One row each; those of a manager follow each other."""
    now = SystemClock().now()
    made = table("Workers", "#PID", "Host", "#Manager", "Queues", "Running", "Started", "Last beat")
    for entry in entries:
        add_row(made, *_row(entry, now))
    show(made)


def _row(entry: WorkerEntry, now: int) -> list[object]:
    state = state_of(entry)
    return [
        entry.pid,
        entry.host,
        "-" if entry.manager is None else entry.manager,
        "all" if entry.queues is None else names(entry.queues),
        f"{len(entry.running)} of {entry.concurrency}",
        ago(max(now - to_us(entry.started_at), 0)),
        ago(age_us(entry, now)) if state == "working" else state,
    ]
