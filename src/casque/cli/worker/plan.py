"""Plans: what `worker start` was asked for, checked; as options of workers, or as arguments again.

The arguments are for the process in the background, which is the same command once more.
"""

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
"""Of workers that run commands alone: one that starts `--count 2` has two at work, not 64."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which workers to start."""

    count: int
    target: str | None
    """The app; None: shell jobs alone."""
    concurrency: int | None
    queues: tuple[str, ...] | None
    grace: str
    lease: str | None
    until_idle: bool
    max_jobs: int | None
    max_mib: int | None
    log_format: LogFormat

    def options(self, settings: Settings) -> WorkerOptions:
        """InvalidError when something cannot be."""
        self._check()
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

    def _check(self) -> None:
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

    def arguments(self) -> list[str]:
        """What `queuectl` is to be given to do this in the foreground. No store: see there."""
        given = {
            "--count": self.count,
            "--app": self.target,
            "--concurrency": self.concurrency,
            "--grace": self.grace,
            "--lease": self.lease,
            "--max-jobs": self.max_jobs,
            "--max-mib": self.max_mib,
            "--log-format": self.log_format,
        }
        options = [f"{option}={value}" for option, value in given.items() if value is not None]
        options += [f"--queue={queue}" for queue in self.queues or ()]
        options += ["--until-idle"] if self.until_idle else []
        return ["worker", "start", "--foreground", *options]


def span_us(option: str, text: str, *, at_least_us: int = 0) -> int:
    """A duration that was given by this option. InvalidError when it is none."""
    try:
        return duration_us(text, at_least_us=at_least_us)
    except InvalidError as error:
        raise InvalidError(f"{option}: {error}") from None
