"""Typer arguments: `queuectl enqueue` with help and errors; `fast_args` is the fast path."""

from __future__ import annotations

from typing import Annotated

import typer

from casque.cli.enqueue.fields import FIELDS
from casque.cli.enqueue.one import STDIN, EnqueueRequest, IfExists, enqueue_one
from casque.cli.enqueue.stdin import enqueue_lines
from casque.cli.job_options import (
    CwdOption,
    EnvOption,
    MaxAttemptsOption,
    PriorityOption,
    QueueOption,
    RetainOption,
    TimeoutOption,
)
from casque.cli.options import is_json, store_of
from casque.errors import InvalidError

EXAMPLES = (
    """queuectl enqueue '{"id": "job1", "command": "sleep 2"}'""",
    "queuectl enqueue --command 'make backup' --id backup --delay 5m",
    "queuectl enqueue -c './report.sh' -q reports --run-at 2026-01-31T08:00:00Z",
    "queuectl enqueue --id-from-content --if-exists fail -c 'make docs'",
    "queuectl enqueue - < jobs.jsonl",
)


def enqueue(
    context: typer.Context,
    *,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON|-",
            help=f"The job as JSON, with the fields {', '.join(FIELDS)}; or - to read many from "
            "stdin, one per line.",
        ),
    ] = None,
    command: Annotated[
        str | None, typer.Option("--command", "-c", metavar="TEXT", help="The command for sh.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The job's id. If it exists, nothing changes."),
    ] = None,
    queue: QueueOption = None,
    priority: PriorityOption = None,
    max_attempts: MaxAttemptsOption = None,
    run_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Earliest start: ISO 8601; without a zone, local time."),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Earliest start from now: 30s, 5m, 2h.")
    ] = None,
    timeout: TimeoutOption = None,
    env: EnvOption = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="KEY=VALUE",
            help="Text stored with the job, such as trace context; repeat for more. At most 1 KiB.",
        ),
    ] = None,
    cwd: CwdOption = None,
    retain: RetainOption = None,
    id_from_content: Annotated[
        bool,
        typer.Option(
            "--id-from-content",
            help="Derive the id from queue, command, env and cwd: equal jobs are enqueued once.",
        ),
    ] = False,
    if_exists: Annotated[
        IfExists | None,
        typer.Option(
            "--if-exists",
            metavar="POLICY",
            help="If the id exists: skip (the default) changes nothing and exits with 0, fail "
            "changes nothing and exits with 7, replace puts this job in its place, unless it is "
            "running: then 7.",
        ),
    ] = None,
    skip_inside_job: Annotated[
        bool, typer.Option("--skip-inside-job", help="Do nothing if called inside a job.")
    ] = False,
) -> int:
    """Enqueue a job: a command that a worker runs with sh.

    Give the job as JSON or by options, not both. With -, stdin has one JSON object
    per line; jobs are stored in batches of up to 10,000, and a bad line ends the
    command. When the command returns, the job is on disk.
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
        "env": pairs("--env", "NAME=VALUE", env) if env else None,
        "headers": pairs("--header", "KEY=VALUE", header) if header else None,
        "cwd": cwd,
        "retain": retain,
    }
    request = EnqueueRequest(
        address=store_of(context),
        is_json=is_json(context),
        text=job,
        fields={name: value for name, value in given.items() if value is not None},
        id_from_content=id_from_content,
        if_exists=if_exists,
        skip_inside_job=skip_inside_job,
    )
    if job == STDIN:
        return enqueue_lines(request)
    if job is None and not request.fields:
        raise InvalidError(
            """there is no job to enqueue; write queuectl enqueue '{"command": "sleep 2"}'."""
        )
    return enqueue_one(request)


def pairs(option: str, form: str, given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for one in given:
        name, has_value, value = one.partition("=")
        if not has_value:
            raise InvalidError(f"{option} {one!r} must be {form}.")
        pairs[name] = value
    return pairs
