"""Output: exit codes, lines on stderr, JSON for programs, tables for people.

Text from jobs is never parsed as markup, and no control character reaches the
terminal. Times are local in tables and UTC in JSON. The keys of the JSON are
documented and do not change. Rich is imported late: it is slow to load.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from casque.errors import (
    CASConflictError,
    CasqueError,
    CorruptError,
    InvalidError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
)
from casque.job import Attempt, Job
from casque.rules.views import view_of
from casque.system.clock import to_datetime
from casque.system.terminal_text import plain, plain_lines
from casque.worker.shell.job import command_of, exit_code_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_TRACEBACK = "\nTraceback (most recent call last):\n"

DONE = 0
NOT_SO = 1
"""The answer is no, for example from `worker check`."""
INVALID = 2
NOT_FOUND = 3
NOT_OURS = 6
EXISTS = 7
"""A job with this id exists, and is not replaced: see `enqueue --if-exists`."""
INTERRUPTED = 130
NOWHERE = 141
"""The reader closed the pipe, as `head` does: 128 plus the number of SIGPIPE."""

_CODES: dict[type[CasqueError], int] = {
    InvalidError: INVALID,
    JobNotFoundError: NOT_FOUND,
    CASConflictError: 4,
    LeaseLostError: 4,
    StorageError: 5,
    CorruptError: NOT_OURS,
}

JsonObject = dict[str, Any]

_UNBOUNDED = 1_000
"""The width of a pipe or a file, where nothing is wrapped."""


# -- how a command ends ------------------------------------------------------------


def code_of(error: CasqueError) -> int:
    from casque.stores.place_errors import ForeignError

    if isinstance(error, ForeignError):  # the same as for a file of another program
        return NOT_OURS
    if isinstance(error, CASConflictError) and error.job_id is not None:
        return EXISTS
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), NOT_SO)


def complain(message: str) -> None:
    """Print one line on stderr. A traceback of Python in the message follows in its own lines."""
    said, begin, frames = str(message).partition(_TRACEBACK)
    line = plain(" ".join(said.split()))
    try:
        print(f"queuectl: {line}", file=sys.stderr)
        if begin:
            print(plain_lines(begin.lstrip() + frames), file=sys.stderr)
    except OSError:
        return  # stderr is closed


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """Yield a function that updates a bar on a terminal: f(done, total, note)."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    note = TextColumn("{task.fields[note]}")
    columns = (TextColumn(title), BarColumn(), note, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, note="")
        yield lambda done, total, note: progress.update(
            task, completed=done, total=total, note=note
        )


# -- JSON --------------------------------------------------------------------------


def answer(value: object, text: str, *, as_json: bool) -> int:
    """Print the value as JSON, or the text for people. Returns the exit code DONE."""
    if as_json:
        print_json(value)
    else:
        print(text)
    return DONE


def print_json(value: object) -> None:
    """Print one value, indented."""
    print(_printable(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def print_json_line(value: object) -> None:
    """Print one value on one line and flush it."""
    print(_printable(msgspec.json.encode(value).decode()), flush=True)


def _printable(text: str) -> str:
    """Use JSON escapes for the characters that stdout may not be able to encode."""
    if codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8":
        return text
    import json

    return re.sub("[^\x00-\x7f]+", lambda letters: json.dumps(letters[0])[1:-1], text)


def utc_time(us: int | None) -> str | None:
    """Return ISO 8601 in UTC, always to the microsecond, so that times sort as text."""
    return None if us is None else f"{to_datetime(us):%Y-%m-%dT%H:%M:%S.%fZ}"


def job_object(job: Job, now: int) -> JsonObject:
    """Return a job for `--json`, with the fields that lists show."""
    return {
        "id": job.id,
        "queue": job.queue,
        "entrypoint": job.entrypoint,
        "command": command_of(job),
        "state": view_of(job, now),
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "priority": job.priority,
        "headers": job.headers or None,
        "created_at": utc_time(job.created_us),
        "run_at": utc_time(job.run_us),
        "claimed_at": utc_time(job.claimed_us),
        "finished_at": utc_time(job.finished_us),
        "updated_at": utc_time(job.updated_us),
        "worker": job.worker,
        "error": job.error,
        "exit_code": exit_code_of(job),
    }


def whole_job_object(job: Job, now: int) -> JsonObject:
    """Return a job for `--json`, with all its stored fields."""
    return job_object(job, now) | {
        "heartbeat_at": utc_time(job.heartbeat_us),
        "lease_until": utc_time(job.lease_until_us),
        "expires_at": utc_time(job.expires_us),
        "timeout_seconds": _seconds(job.timeout_us),
        "retain_seconds": _seconds(job.retain_us),
        "depth": job.depth,
        "progress": job.progress,
        "note": job.note,
        "output": _decoded(job.output),
        "payload": _decoded(job.payload),
        "result": _decoded(job.result),
        "history": [_attempt_object(attempt) for attempt in job.history],
    }


def _attempt_object(attempt: Attempt) -> JsonObject:
    failure = attempt.failure
    return {
        "number": attempt.number,
        "worker": attempt.worker,
        "started_at": utc_time(attempt.started_us),
        "ended_at": utc_time(attempt.ended_us),
        "error": None if failure is None else failure.text or failure.kind,
        "kind": None if failure is None else failure.kind,
        "traceback": None if failure is None else failure.traceback or None,
    }


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1_000_000


def _decoded(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


# -- tables ------------------------------------------------------------------------


def console() -> Console:
    """Return a console on stdout, even if stdout is not a terminal."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # as any other print does; rich would end the process

    # Rich asks a terminal for its columns. For anything else it uses COLUMNS.
    is_bound = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Quiet(width=None if is_bound else _UNBOUNDED, highlight=False, markup=False, emoji=False)


def table(title: str, *columns: str) -> Table:
    """An empty table. A `#` before a column name marks a column of numbers."""
    from rich.table import Table

    made = Table(title=title)
    for name in columns:
        made.add_column(
            name.lstrip("#"), justify="right" if name.startswith("#") else "left", overflow="fold"
        )
    return made


def add_row(to: Table, *cells: object) -> None:
    """Add a row. A Text is shown as it is; anything else as one line."""
    from rich.text import Text

    to.add_row(*(cell if isinstance(cell, Text) else Text(plain(str(cell))) for cell in cells))


def print_table(drawn: object) -> None:
    console().print(drawn)


def local_time(us: int | None) -> str:
    """A time in the local time zone, to the second."""
    if us is None:
        return ""
    instant = to_datetime(us)
    try:
        return f"{instant.astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):  # the last day of the calendar, east of UTC
        return f"{instant:%Y-%m-%d %H:%M:%S}Z"


def names(of: Iterable[str]) -> str:
    return ", ".join(map(plain, of))
