"""The table of `worker list`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from casque.cli.output import add_row, names, print_table, table
from casque.cli.worker.fleet import age_us, ago, state_of
from casque.system.clock import SystemClock, to_us
from casque.worker.registry.entries import WorkerEntry


def show_workers(entries: Sequence[WorkerEntry], running: Mapping[str, Sequence[str]]) -> None:
    """One row each; those of a manager follow each other. `running`: their jobs, by name."""
    now = SystemClock().now()
    made = table("Workers", "#PID", "Host", "#Manager", "Queues", "Running", "Started", "Last beat")
    for entry in entries:
        add_row(made, *_row(entry, len(running.get(entry.name, ())), now))
    print_table(made)


def _row(entry: WorkerEntry, jobs: int, now: int) -> list[object]:
    state = state_of(entry)
    return [
        entry.pid,
        entry.host,
        "-" if entry.manager is None else entry.manager,
        "all" if entry.queues is None else names(entry.queues),
        f"{jobs} of {entry.concurrency}",
        ago(max(now - to_us(entry.started_at), 0)),
        ago(age_us(entry, now)) if state == "working" else state,
    ]
