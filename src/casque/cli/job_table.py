"""Job table: jobs and their errors as tables for people, in the width of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from casque.cli.error_groups import ErrorGroup, ErrorGroups, error_of, group_object
from casque.cli.job_ids import shown_ids
from casque.cli.output import add_row, console, local_time, print_json, print_table, table
from casque.job import DEFAULT_QUEUE, Job
from casque.rules.views import view_of
from casque.system.terminal_text import counted, cut, plain
from casque.worker.shell.job import command_of

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = 120
"""From this width on, ids and times are shown whole."""
_USUAL = 80
"""Below this width, some columns may be missing."""
_LESS_IMPORTANT = ("Updated At", "Attempts", "Queue")
_LONGEST_ID = 40
_SHORT_IDS = range(9, 17)
"""How long ids may be in a narrower terminal; it depends on the other columns."""
_LONGEST_COMMAND = 200
_LONGEST_PAYLOAD = 80
_LONGEST_QUEUE = 16
_LONGEST_TASK = 24
_LINES = 4
"""A command or an error takes at most about this many lines."""
_NARROWEST = 12


def job_table(heading: str, jobs: Sequence[Job], now: int, *, with_error: bool = False) -> Table:
    """A table of jobs: with their states and queues, or with their errors.

    `with_error` is for jobs of one state. Then there is a column for queues only if there is
    another one than "default".
    """
    width = console().width
    sides = _side_columns(jobs, now, is_wide=width >= _WIDE, with_error=with_error)
    texts = 2 if with_error else 1
    if width < _USUAL:
        needed = 1 + 3 * (1 + texts) + _SHORT_IDS[0] + texts * _NARROWEST
        for title in _LESS_IMPORTANT:
            if needed + sum(map(_width_of, sides.items())) > width:
                sides.pop(title, None)
    room = width - 1 - 3 * (1 + texts) - sum(map(_width_of, sides.items()))
    longest = _LONGEST_ID
    if width < _WIDE:
        longest = min(max(room - texts * _NARROWEST, _SHORT_IDS[0]), _SHORT_IDS[-1])
    ids = shown_ids([plain(job.id) for job in jobs], longest)
    longest = min(max(map(len, ids), default=0), longest)
    most = _LINES * max((room - longest) // texts, _NARROWEST)
    columns = {"Job ID": ids, "Command": [cut(_work_of(job), most) for job in jobs]}
    if with_error:
        columns["Error"] = [cut(plain(error_of(job)[1]), most) for job in jobs]
    columns |= sides
    # Rich shrinks the widest column that may wrap, and then has no room for its least width.
    is_whole = all(len(one) <= longest for one in ids)
    made = _empty(heading, columns, longest_id=longest, is_whole=is_whole)
    for cells in zip(*columns.values(), strict=True):
        add_row(made, *cells)
    return made


def _side_columns(
    jobs: Sequence[Job], now: int, *, is_wide: bool, with_error: bool
) -> dict[str, list[str]]:
    """The columns whose texts are short."""
    columns: dict[str, list[str]] = {}
    if not with_error:
        columns["State"] = [view_of(job, now) for job in jobs]
    if not with_error or any(job.queue != DEFAULT_QUEUE for job in jobs):
        columns["Queue"] = [plain(job.queue) for job in jobs]
    columns["Attempts"] = [str(job.attempts) for job in jobs]
    columns["Updated At"] = [
        local_time(job.updated_us) if is_wide else short_time(job.updated_us, now) for job in jobs
    ]
    return columns


def _width_of(column: tuple[str, list[str]]) -> int:
    """The width of a short column, with its border."""
    title, texts = column
    limit = {"Queue": _LONGEST_QUEUE, "Task": _LONGEST_TASK}.get(title)
    longest = max(map(len, texts), default=0)
    return 3 + max(len(title), longest if limit is None else min(longest, limit))


def _empty(title: str, columns: Iterable[str], *, longest_id: int, is_whole: bool) -> Table:
    from rich.table import Table

    made = Table(title=title)
    for name in columns:
        if name == "Job ID":  # people copy ids, so the other columns shrink first
            made.add_column(
                name, no_wrap=is_whole, max_width=longest_id, min_width=longest_id, overflow="fold"
            )
        elif name in ("Command", "Error"):
            made.add_column(name, min_width=5, overflow="fold")
        elif name == "Queue":
            made.add_column(name, max_width=_LONGEST_QUEUE, overflow="fold")
        else:
            made.add_column(name, no_wrap=True)
    return made


def _work_of(job: Job) -> str:
    """Return the work of a job on one line: its command, or its entrypoint and payload."""
    command = command_of(job)
    if command is not None:
        return cut(plain(command), _LONGEST_COMMAND)
    payload = cut(plain(job.payload.decode(errors="replace")), _LONGEST_PAYLOAD)
    return f"{job.entrypoint} {payload}".rstrip()


def short_time(us: int, now: int) -> str:
    """A local time in ten characters: of today the time, of another day the date."""
    text, today = local_time(us), local_time(now)
    return text[11:19] if text[:10] == today[:10] else text[:10]


def show_errors(groups: ErrorGroups, now: int, *, limit: int, as_json: bool) -> None:
    """Print the most frequent errors, as a table or as JSON."""
    ranked = groups.most_frequent()
    listed = ranked[:limit]
    others = groups.total - sum(group.count for group in listed)
    if as_json:
        listed_objects = [group_object(group) for group in listed]
        print_json({"errors": listed_objects, "others": others, "total": groups.total})
        return
    if not listed:
        print("No dead jobs.")
        return
    print_table(_error_table(listed, now))
    if others:
        print(f"… and {counted(others, 'job')} with other errors")


def _error_table(groups: Sequence[ErrorGroup], now: int) -> Table:
    """One row for each group, with the job that failed last as an example."""
    width = console().width
    is_wide = width >= _WIDE
    columns: dict[str, list[str]] = {
        "#Count": [f"{group.count:,}" for group in groups],
        "Error": [],  # filled below, with the room that the others leave
        "Task": [plain(group.entrypoint) for group in groups],
    }
    if width >= _USUAL:
        if any(group.queues != {DEFAULT_QUEUE} for group in groups):
            columns["Queue"] = list(map(_queues_of, groups))
        time = local_time if is_wide else partial(short_time, now=now)
        columns["Last Seen"] = [time(group.last_us) for group in groups]
    ids = [plain(group.job_id) for group in groups]
    columns["Last Job"] = shown_ids(ids, _LONGEST_ID if is_wide else _SHORT_IDS[3])
    sides = [one for one in columns.items() if one[0] != "Error"]
    room = width - 1 - 3 - sum(map(_width_of, sides))
    most = _LINES * max(room, _NARROWEST)
    columns["Error"] = [cut(plain(group.error), most) or "-" for group in groups]
    made = table("Dead Jobs by Error", *columns)
    for column in made.columns:
        column.no_wrap = column.header in ("Last Seen", "Last Job")
    for cells in zip(*columns.values(), strict=True):
        add_row(made, *cells)
    return made


def _queues_of(group: ErrorGroup) -> str:
    return next(iter(group.queues)) if len(group.queues) == 1 else "several"
