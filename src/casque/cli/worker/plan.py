"""Plan: the arguments of `worker start`, checked; and the plan that its supervisor process gets."""

from __future__ import annotations

from typing import Literal

import msgspec

from casque.checks import LARGEST_INT
from casque.errors import InvalidError
from casque.worker.options import WorkerOptions
from casque.worker.shell.settings import Settings

LogFormat = Literal["console", "text", "json"]
MOST_WORKERS = 1_000
SHELL_CONCURRENCY = 1
"""For workers that run shell jobs alone: `--count 2` runs two commands at once, not 64."""


class StartPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The workers to start. Plain data, which the command sends to the supervisor process."""

    target: str | None
    """The app; None: shell jobs alone."""
    count: int
    options: WorkerOptions
    store: str | None
    """The store to work on; None: the app's own."""
    registered_in: str | None
    """The store that holds the supervisor's entry; None when its address is not known."""
    log_format: LogFormat


def with_settings(
    options: WorkerOptions, settings: Settings, *, is_lease_given: bool
) -> WorkerOptions:
    """The options, with what the arguments left open as the store's settings have it."""
    lease_us = options.lease_us if is_lease_given else settings.lease_us
    return msgspec.structs.replace(options, lease_us=lease_us, poll_us=settings.poll_interval_us)


def whole(option: str, number: int, *, most: int = LARGEST_INT) -> int:
    """The number that this option gives. InvalidError when it is out of range."""
    if not 1 <= number <= most:
        up_to = "on" if most == LARGEST_INT else f"to {most}"
        raise InvalidError(f"{option}: {number} is not a whole number from 1 {up_to}.")
    return number
