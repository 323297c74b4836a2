"""Options of a job, for every command that enqueues jobs."""

from __future__ import annotations

from typing import Annotated

import typer

OTHER_NAMES = {"max-retries": "max-attempts"}
"""Options that have a second name, which is not in the column of names in the help."""

QueueOption = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="NAME", help="The job's queue.")
]
PriorityOption = Annotated[
    int | None, typer.Option("--priority", "-p", metavar="N", help="Lower runs first. Default: 0.")
]
MaxAttemptsOption = Annotated[
    int | None,
    typer.Option(
        "--max-attempts",
        metavar="N",
        help="Total attempts. Default: the setting max_retries. Also: --max-retries.",
    ),
]
TimeoutOption = Annotated[
    str | None,
    typer.Option("--timeout", metavar="DURATION", help="How long one attempt may take."),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME=VALUE",
        help="A variable of its environment; repeat for more.",
    ),
]
CwdOption = Annotated[
    str | None, typer.Option("--cwd", metavar="PATH", help="The folder to run in.")
]
RetainOption = Annotated[
    str | None,
    typer.Option("--retain", metavar="DURATION", help="How long to keep it after it completes."),
]
