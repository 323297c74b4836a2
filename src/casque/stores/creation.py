"""Creation: reports each queue that this process has made.

A relative path means another file in another folder. Without this report, a program that enqueues
from the wrong folder would fill a second queue that no worker reads.
"""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], object]
"""Takes the name of a new queue."""


def report_created(name: str, report: Report | None) -> None:
    """Pass the name to `report`, or log it. A queue in memory has no place and is not reported."""
    if name.startswith("/") or ("://" in name and not name.startswith("memory:")):
        (report or _log)(name)


def _log(name: str) -> None:
    import logging  # noqa: PLC0415 - loading it takes as long as an enqueue

    logging.getLogger("casque").warning(
        "created a new queue: %s. If you expected one with jobs, check its address: a relative "
        "path starts in the working directory.",
        name,
    )
