"""`queuectl backup`: a copy of a SQLite queue, while it is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from casque.cli.interrupts import Interrupts
from casque.cli.options import is_json, open_existing
from casque.cli.output import answer, progress_bar
from casque.stores.sqlite.backup import refusal
from casque.stores.sqlite.store import SqliteStore
from casque.system.terminal_text import counted, plain

EXAMPLES = ("queuectl backup copy.db", "queuectl backup --force /backups/jobs.db")


def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The path of the copy.")],
    *,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace FILE if it exists.")
    ] = False,
) -> int:
    """Copy a SQLite queue as it is now, while it is in use, and check the copy."""
    with open_existing(context) as access, Interrupts(), progress_bar("Copying") as bar:
        copied = access.store
        if not isinstance(copied, SqliteStore):
            raise refusal(copied.name, type(copied).__name__)
        made = copied.backup(
            file, replace=force, progress=lambda done, total: bar(done, total, _mib(done))
        )
    size = _mib(made.size_bytes)
    return answer(
        {"file": str(made.path), "jobs": made.jobs, "bytes": made.size_bytes},
        f"{counted(made.jobs, 'job')} copied to {plain(str(made.path))} ({size}), and checked.",
        as_json=is_json(context),
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
