"""Refusals: how the worker of a shell job learns that `max_depth` refused an enqueue.

The command of a shell job may hide the refusal: it may print nothing, or exit with its own
code. So the refused process writes the reason to a file, and the worker reads this file
after the command. The worker chooses a file name that nobody can guess, but does
not create the file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from casque.queues import lineage
from casque.system.clock import Clock

_LONGEST = 8_192


def new_path(folder: str, clock: Clock) -> str:
    """A path for the refusal of one command. Creates no file."""
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
    """Read and remove the reason; None if there is no file."""
    try:
        with Path(path).open("rb") as stream:
            reason = stream.read(_LONGEST).decode(errors="replace")
    except OSError:
        return None
    with suppress(OSError):
        Path(path).unlink()
    return reason
