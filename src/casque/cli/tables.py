"""Tables: what commands print for people: within the terminal, and as it was written.

Nothing that a job says is taken for markup, and no control character gets to
the terminal. Times are local here; in JSON they are UTC.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from casque.job import Job
from casque.system.clock import to_datetime
from casque.system.terminal_text import cut, plain
from casque.worker.shell.job import command_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LONGEST_ID = 40
_LONGEST_COMMAND = 200
_LONGEST_PAYLOAD = 80
_SHORTEST_COMMAND = 10
_COMMAND_LINES = 4
_NARROWEST = 5
_OTHER_COLUMNS = 38
"""What the others need at the least, with the borders."""
_UNBOUNDED = 1_000
"""Columns of a pipe, which has none: nothing is wrapped for a program or a file."""


def console() -> Console:
    """The terminal, or whatever stdout is."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # as any other print does; rich would end the process

    # Rich asks a terminal for its columns; of anything else it believes COLUMNS.
    is_bound = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Quiet(width=None if is_bound else _UNBOUNDED, highlight=False, markup=False, emoji=False)


def table(title: str, *columns: str) -> Table:
    """Empty yet; columns of numbers are written with a `#` before their name."""
    from rich.table import Table

    made = Table(title=title)
    for name in columns:
        made.add_column(
            name.lstrip("#"), justify="right" if name.startswith("#") else "left", overflow="fold"
        )
    return made


def add_row(to: Table, *cells: object) -> None:
    from rich.text import Text

    to.add_row(*(Text(plain(str(cell))) for cell in cells))


def show(*things: object) -> None:
    from rich.text import Text

    out = console()
    for thing in things:
        out.print(Text(thing) if isinstance(thing, str) else thing)


def job_table(title: str, jobs: Sequence[Job]) -> Table:
    from rich.table import Table
    from rich.text import Text

    longest = _COMMAND_LINES * _room_for_commands(jobs)
    made = Table(title=title)
    # An id is there to be copied: the other columns give way.
    longest_id = max((len(job.id) for job in jobs), default=0)
    is_whole = longest_id <= min(_LONGEST_ID, console().width - _OTHER_COLUMNS)
    made.add_column("Job ID", no_wrap=is_whole, min_width=_NARROWEST, overflow="fold")
    made.add_column("Command", min_width=_NARROWEST, overflow="fold")
    made.add_column("Attempts", no_wrap=True)
    made.add_column("Updated At", min_width=8)
    for job in jobs:
        cells = (job.id, cut(work_of(job), longest), str(job.attempts), local(job.updated_us))
        made.add_row(*(Text(plain(cell)) for cell in cells))
    return made


def _room_for_commands(jobs: Sequence[Job]) -> int:
    """The columns that are left when the others have what they need: their borders, and 18."""
    ids = min(max((len(job.id) for job in jobs), default=0), _LONGEST_ID)
    return max(console().width - ids - 13 - 18, _SHORTEST_COMMAND)


def work_of(job: Job) -> str:
    """What a job does, on one line: its command, or its entrypoint and what that is given."""
    command = command_of(job)
    if command is not None:
        return cut(plain(command), _LONGEST_COMMAND)
    payload = cut(plain(job.payload.decode(errors="replace")), _LONGEST_PAYLOAD)
    return f"{job.entrypoint} {payload}".rstrip()


def local(us: int | None) -> str:
    """An instant by the clock of this machine, to the second."""
    if us is None:
        return ""
    instant = to_datetime(us)
    try:
        return f"{instant.astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):  # the last day that there is, and east of UTC
        return f"{instant:%Y-%m-%d %H:%M:%S}Z"


def names(of: Iterable[str]) -> str:
    return ", ".join(map(plain, of))
