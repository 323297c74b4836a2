"""`queuectl show`: everything about one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from casque.cli.error_groups import first_line
from casque.cli.job_ids import resolved
from casque.cli.options import is_json, open_for_reading
from casque.cli.output import (
    DONE,
    add_row,
    local_time,
    print_json,
    print_table,
    table,
    whole_job_object,
)
from casque.cli.store import Access
from casque.errors import CasqueError, InvalidError, JobNotFoundError
from casque.job import Attempt, Job
from casque.rules.transitions import describe
from casque.rules.views import View, view_of
from casque.system.durations import told
from casque.system.terminal_text import cut, plain, plain_lines
from casque.worker.shell.job import SHELL, ShellCall, command_of, decode, exit_code_of

if TYPE_CHECKING:
    from rich.table import Table

_OUTPUT_LINES = 20
_TRACEBACK_LINES = 40
_LONGEST_PAYLOAD = 2_000
_IN_LINES = ("Error",)
"""These fields keep their line breaks. A command stays on one line, to be compared and copied."""
_LONGEST_ERROR = 500

IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The id of a job, its unique beginning, or its last 6 characters."
    ),
]
EXAMPLES = (
    "queuectl show job1",
    "queuectl show 85bc52c2",
    "queuectl show job1 --json | jq -r .output",
)


def show(context: typer.Context, id: IdArgument) -> int:
    """Show everything about a job: its times, attempts, error and output."""
    with open_for_reading(context) as access:
        job = found(access, id)
        show_job(job, access.store.clock.now(), as_json=is_json(context))
    return DONE


def found(access: Access, id: str, view: View | None = None) -> Job:
    """The job with this id; else the one job, in this state, whose id begins or ends with it.

    Raises JobNotFoundError if there is none, InvalidError if there are several.
    """
    job = access.run(access.queue.get(id))
    if job is None:
        whole = resolved(access, [id], view).get(id)
        if isinstance(whole, CasqueError):
            raise whole
        job = access.run(access.queue.get(whole)) if whole else None
    if job is None:
        raise JobNotFoundError(
            f"job {id}: not found in {access.store.name}. It was deleted, or never existed.",
            job_id=id,
        )
    return job


def show_job(job: Job, now: int, *, as_json: bool) -> None:
    if as_json:
        print_json(whole_job_object(job, now))
        return
    print_table(_fields(job, now))
    if job.history:
        print_table(_attempts(job))
    _print_traceback(job)
    if job.output:
        _print_tail("Output", job.output.decode(errors="replace"), _OUTPUT_LINES)


def _print_traceback(job: Job) -> None:
    """Print the traceback of the latest attempt that has one."""
    failed = [one for one in job.history if one.failure is not None and one.failure.traceback]
    if not failed:
        return
    last = failed[-1]
    assert last.failure is not None
    more = "; --json prints those before" if len(failed) > 1 else ""
    title = f"Traceback of attempt {last.number}{more}"
    _print_tail(title, last.failure.traceback, _TRACEBACK_LINES)


def _print_tail(title: str, text: str, most: int) -> None:
    """Print the last lines of a text under its title."""
    lines = plain_lines(text).split("\n")
    if len(lines) > most:
        title += f" (the last {most} of {len(lines)} lines; --json prints all)"
    print(f"{title}:")
    print("\n".join(lines[-most:]))


def _fields(job: Job, now: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(title=Text(f"Job {plain(job.id)}"), show_header=False)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in {**_what(job, now), **_times(job), **_outcome(job)}.items():
        if value not in (None, ""):
            shown = plain_lines if name in _IN_LINES else plain
            made.add_row(name, Text(shown(str(value))))
    return made


def _what(job: Job, now: int) -> dict[str, object]:
    call = _call(job)
    return {
        "State": view_of(job, now),
        "Queue": job.queue,
        "Entrypoint": job.entrypoint,
        "Command": command_of(job),
        "Environment": _pairs(call.env),
        "Folder": call.cwd,
        "Payload": None if job.entrypoint == SHELL else _data(job.payload),
        "Priority": job.priority,
        "Attempts": f"{job.attempts} of {job.max_attempts}",
        "Depth": job.depth or None,
        "Headers": _pairs(job.headers),
    }


def _pairs(values: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _times(job: Job) -> dict[str, object]:
    return {
        "Created": local_time(job.created_us),
        "Not before": local_time(job.run_us) if job.run_us != job.created_us else None,
        "Claimed": local_time(job.claimed_us),
        "Finished": local_time(job.finished_us),
        "Waited": _between(job.created_us, job.claimed_us),
        "Took": _between(job.claimed_us, job.finished_us),
        "Updated": local_time(job.updated_us),
        "Lease until": None if job.lease is None else local_time(job.lease_until_us),
        "Kept until": local_time(job.expires_us),
        "Timeout": None if job.timeout_us is None else told(job.timeout_us),
    }


def _outcome(job: Job) -> dict[str, object]:
    return {
        "Worker": job.worker,
        "Progress": None if job.progress is None else f"{job.progress:.0%}",
        "Note": job.note,
        "Exit code": exit_code_of(job),
        "Error": job.error and cut(job.error, _LONGEST_ERROR),
        "Result": None if job.result is None or job.entrypoint == SHELL else _data(job.result),
    }


def _attempts(job: Job) -> Table:
    made = table("Attempts", "#No", "Worker", "Started", "Took", "Error")
    for attempt in job.history:
        add_row(
            made,
            attempt.number,
            attempt.worker,
            local_time(attempt.started_us),
            _between(attempt.started_us, attempt.ended_us) or "",
            _error(attempt),
        )
    return made


def _error(attempt: Attempt) -> str:
    if attempt.failure is None:
        return ""
    return cut(first_line(describe(attempt.failure)), _LONGEST_ERROR)


def _between(start_us: int | None, end_us: int | None) -> str | None:
    if start_us is None or end_us is None or end_us < start_us:
        return None
    return f"{(end_us - start_us) / 1_000_000:,.3f} s"


def _call(job: Job) -> ShellCall:
    try:
        return decode(job.payload) if job.entrypoint == SHELL else ShellCall("")
    except InvalidError:  # completed: the ack has dropped a payload over 8 KiB
        return ShellCall("")


def _data(data: bytes) -> str:
    return cut(data.decode(errors="replace"), _LONGEST_PAYLOAD)
