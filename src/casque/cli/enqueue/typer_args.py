"""Typer arguments: `queuectl enqueue` with help and errors; `fast_args` is the short way."""

from __future__ import annotations

from typing import Annotated

import typer

from casque.cli.enqueue.fields import FIELDS
from casque.cli.enqueue.one import STDIN, EnqueueRequest, enqueue_one
from casque.cli.enqueue.stdin import enqueue_lines
from casque.cli.options import address_of, is_json
from casque.errors import InvalidError

EXAMPLES = (
    """queuectl enqueue '{"id": "job1", "command": "sleep 2"}'""",
    "queuectl enqueue --command 'make backup' --id backup --delay 5m",
    "queuectl enqueue -c './report.sh' -q reports --run-at 2026-01-31T08:00:00Z",
    "queuectl enqueue - < jobs.jsonl",
)


def enqueue(
    context: typer.Context,
    *,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON|-",
            help=f"The job, with the fields {', '.join(FIELDS)}; or - for many, one a line, from "
            "stdin.",
        ),
    ] = None,
    command: Annotated[
        str | None, typer.Option("--command", "-c", metavar="TEXT", help="What sh is to run.")
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Its id; one that is there changes nothing.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", metavar="NAME", help="Where it waits.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", "-p", help="Lower runs first; else 0.")
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts", "--max-retries", help="Attempts in all; else as the settings say."
        ),
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Not before: ISO 8601; without a zone, local time."),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Not before so long: 30s, 5m, 2h.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long one attempt may take.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable; repeat for more."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="KEY=VALUE",
            help="A text that goes with the job, say trace context; repeat for more, 1 KiB in all.",
        ),
    ] = None,
    cwd: Annotated[str | None, typer.Option(metavar="PATH", help="The folder to run in.")] = None,
    retain: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long to keep it when completed.")
    ] = None,
    id_from_content: Annotated[
        bool,
        typer.Option(
            "--id-from-content",
            help="Make the id of queue, command, env and cwd: the same job is enqueued once.",
        ),
    ] = False,
    skip_inside_job: Annotated[
        bool, typer.Option("--skip-inside-job", help="Do nothing when called by a job.")
    ] = False,
) -> int:
    """Add a job: a command that a worker runs by sh.

    The job is JSON, or is told by options, not both. With - there is one JSON
    object a line on stdin; they are stored in batches of up to 10,000, and a bad
    line ends it. When this returns, the job is on disk.
    """
    given = {
        "command": command,
        "id": id,
        "queue": queue,
        "priority": priority,
        "max_attempts": max_attempts,
        "run_at": run_at,
        "delay": delay,
        "timeout": timeout,
        "env": _pairs("--env", "NAME=VALUE", env) if env else None,
        "headers": _pairs("--header", "KEY=VALUE", header) if header else None,
        "cwd": cwd,
        "retain": retain,
    }
    request = EnqueueRequest(
        address=address_of(context),
        is_json=is_json(context),
        text=job,
        fields={name: value for name, value in given.items() if value is not None},
        id_from_content=id_from_content,
        skip_inside_job=skip_inside_job,
    )
    if job == STDIN:
        return enqueue_lines(request)
    if job is None and not request.fields:
        raise InvalidError(
            """what is to be enqueued? Write queuectl enqueue '{"command": "sleep 2"}'."""
        )
    return enqueue_one(request)


def _pairs(option: str, form: str, given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for one in given:
        name, has_value, value = one.partition("=")
        if not has_value:
            raise InvalidError(f"{option} {one!r} must be {form}.")
        pairs[name] = value
    return pairs
