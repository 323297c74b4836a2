"""The table of `worker list`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from casque.cli.fleet import age_us, ago, state_of
from casque.clock import SystemClock, to_us
from casque.worker.registry import WorkerEntry

_COLUMNS = ("PID", "Host", "Manager", "Queues", "Running", "Started", "Last beat")
_NUMBERS = ("PID", "Manager")


def print_workers(entries: Sequence[WorkerEntry]) -> None:
    """One row each; those of a manager follow each other."""
    now = SystemClock().now()
    table = Table(title="Workers")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", overflow="fold")
    for entry in entries:
        table.add_row(*_row(entry, now), style=None if state_of(entry) == "working" else "dim")
    Console().print(table, markup=False)


def _row(entry: WorkerEntry, now: int) -> list[str]:
    state = state_of(entry)
    return [
        str(entry.pid),
        entry.host,
        "-" if entry.manager is None else str(entry.manager),
        "all" if entry.queues is None else ", ".join(entry.queues),
        f"{len(entry.running)} of {entry.concurrency}",
        ago(max(now - to_us(entry.started_at), 0)),
        ago(age_us(entry, now)) if state == "working" else state,
    ]
