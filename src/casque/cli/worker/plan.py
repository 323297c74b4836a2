"""Plan: the data that `worker start` sends to its supervisor process."""

from __future__ import annotations

from typing import Literal

import msgspec

from casque.worker.options import WorkerOptions

LogFormat = Literal["console", "text", "json"]
MOST_WORKERS = 1_000
SHELL_CONCURRENCY = 1
"""For workers without an app: `--count 2` runs two commands at once, not 64."""


class StartPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The workers to start. Plain data, which the command sends to the supervisor process."""

    target: str | None
    """The app; None for shell jobs only."""
    count: int
    options: WorkerOptions
    store: str | None
    """The store to work on; None for the app's own."""
    registered_in: str | None
    """The store that holds the supervisor's entry; None if its address is unknown."""
    log_format: LogFormat
