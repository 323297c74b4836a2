"""Refusals: how an enqueue that the loop guard refused tells the worker of its shell job.

The command of a shell job may hide the refusal: a hook prints nothing, a program between
them exits with its own code. So the refused process writes the reason to a file, and the
worker looks for it when the command has failed. The worker chooses a name that nobody can
guess and creates nothing, so a command that is not refused costs nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from casque.queues import lineage
from casque.system.clock import Clock

_LONGEST = 8_192


def new_path(folder: str, clock: Clock) -> str:
    """A path for the refusals of one command. There is no file yet."""
    return str(Path(folder).absolute() / f"casque-refusal-{clock.new_id()}")


def write(reason: str) -> None:
    """Write the reason for the worker, if this program runs in a shell job. Never raises."""
    path = os.environ.get(lineage.REFUSAL_VARIABLE)
    if not path or lineage.running.get() is not None:
        return  # a task of a worker that runs inside a shell job settles its own job
    with suppress(OSError, ValueError):
        # Exclusive, so that it follows no link; the first reason is enough.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(reason.encode(errors="replace")[:_LONGEST])


def take(path: str) -> str | None:
    """The reason, if an enqueue was refused; removes the file."""
    try:
        with Path(path).open("rb") as stream:
            reason = stream.read(_LONGEST).decode(errors="replace")
    except OSError:
        return None
    with suppress(OSError):
        Path(path).unlink()
    return reason
