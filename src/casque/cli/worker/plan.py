"""Plan: the arguments of `worker start`, checked; and the plan that its supervisor process gets."""

from __future__ import annotations

from typing import Literal

import msgspec

from casque.checks import LARGEST_INT, name
from casque.errors import InvalidError
from casque.system.durations import duration_us
from casque.tasks.worker_options import DEFAULT_CONCURRENCY, SHORTEST_LEASE_US, WorkerOptions
from casque.worker.shell.settings import Settings

LogFormat = Literal["console", "text", "json"]
_MOST_WORKERS = 1_000
SHELL_CONCURRENCY = 1
"""For workers that run shell jobs alone: `--count 2` runs two commands at once, not 64."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
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


class StartArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `worker start`. InvalidError when a value is out of range."""

    count: int
    target: str | None
    concurrency: int | None
    queues: tuple[str, ...] | None
    grace: str
    lease: str | None
    until_idle: bool
    max_jobs: int | None
    max_mib: int | None
    log_format: LogFormat

    def __post_init__(self) -> None:
        for queue in self.queues or ():
            name(queue, "queue")
        numbers = {
            "--count": (self.count, _MOST_WORKERS),
            "--concurrency": (self.concurrency, LARGEST_INT),
            "--max-jobs": (self.max_jobs, LARGEST_INT),
            "--max-mib": (self.max_mib, LARGEST_INT),
        }
        for option, (number, most) in numbers.items():
            if number is not None and not 1 <= number <= most:
                up_to = f"to {most}" if most == _MOST_WORKERS else "on"
                raise InvalidError(f"{option}: {number} is not a whole number from 1 {up_to}.")
        self.options(Settings())

    def options(self, settings: Settings) -> WorkerOptions:
        """The options of the workers; values that were not given come from the settings."""
        usual = SHELL_CONCURRENCY if self.target is None else DEFAULT_CONCURRENCY
        lease_us = settings.lease_us
        if self.lease is not None:
            lease_us = span_us("--lease", self.lease, at_least_us=SHORTEST_LEASE_US)
        return WorkerOptions(
            concurrency=self.concurrency or usual,
            queues=self.queues,
            lease_us=lease_us,
            grace_us=span_us("--grace", self.grace),
            until_idle=self.until_idle,
            max_jobs=self.max_jobs,
            max_mib=self.max_mib,
            poll_us=settings.poll_interval_us,
        )

    def plan(self, settings: Settings, store: str | None, registered_in: str | None) -> Plan:
        return Plan(
            target=self.target,
            count=self.count,
            options=self.options(settings),
            store=store,
            registered_in=registered_in,
            log_format=self.log_format,
        )


def span_us(option: str, text: str, *, at_least_us: int = 0) -> int:
    """The duration that this option gives. InvalidError when it is none."""
    try:
        return duration_us(text, at_least_us=at_least_us)
    except InvalidError as error:
        raise InvalidError(f"{option}: {error}") from None
