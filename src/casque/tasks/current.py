"""Current: the job that this code runs in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from casque import checks
from casque.errors import InvalidError
from casque.job import Job
from casque.queues import lineage
from casque.system.clock import to_datetime


class RunningJob:
    """What a task can ask and report about the job it runs in."""

    __slots__ = (
        "_deadline_us",
        "_output",
        "_report",
        "is_lost",
        "is_stopping",
        "job",
        "lease_end_us",
        "when_renewed",
    )

    def __init__(
        self, job: Job, deadline_us: int | None, report: Callable[[float | None, str | None], None]
    ) -> None:
        self.job = job
        """The job as it was claimed."""
        self._deadline_us = deadline_us
        self._report = report
        self.is_lost = False
        """True if another worker may have the job by now: what this attempt does is in vain."""
        self.is_stopping = False
        """True if its worker was told to stop."""
        self._output: bytes | None = None
        self.lease_end_us: int | None = None
        """Until when it was ours for certain when it began, by the monotonic clock."""
        self.when_renewed: Callable[[int], None] | None = None
        """Told, on another thread, for how long its lease was renewed, in microseconds."""

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def entrypoint(self) -> str:
        return self.job.entrypoint

    @property
    def queue(self) -> str:
        return self.job.queue

    @property
    def attempt(self) -> int:
        """Which attempt this is: 1 is the first."""
        return self.job.attempts

    @property
    def max_attempts(self) -> int:
        return self.job.max_attempts

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the job was enqueued with. Jobs enqueued from here do not get them."""
        return self.job.headers

    @property
    def deadline(self) -> datetime | None:
        """When this attempt times out; None when it may take its time."""
        return None if self._deadline_us is None else to_datetime(self._deadline_us)

    def progress(self, fraction: float, note: str | None = None) -> None:
        """How far the work is, from 0 to 1: stored with the job, by and by."""
        self._report(checks.fraction(fraction), None if note is None else checks.text(note, "note"))

    # -- for the worker itself -------------------------------------------------

    @property
    def output(self) -> bytes | None:
        """The end of what it has written, if that is kept: stored by and by, and at its end."""
        return self._output

    @output.setter
    def output(self, output: bytes | None) -> None:
        self._output = None if output is None else checks.tail(output)

    def beat(self) -> None:
        """Have its output stored, if there is any; and learn soon whether the job was lost."""
        self._report(None, None)

    def __repr__(self) -> str:
        return f"<RunningJob {self.entrypoint} {self.id}, attempt {self.attempt}>"


def current_job() -> RunningJob:
    """The job that this code runs in. Raises InvalidError outside of one."""
    job: RunningJob | None = lineage.running.get()
    if job is None:
        raise InvalidError(
            "no job is running here: current_job() is for the code of a task, and for what that "
            "calls on its own thread. In a thread that a task starts, hand the job over."
        )
    return job


def become(job: RunningJob) -> None:
    """From here on, in this context, `job` is the current one; for a context that is its own."""
    lineage.running.set(job)


@contextmanager
def running_as(job: RunningJob) -> Iterator[None]:
    """While this holds, `job` is the current one, and jobs enqueued from here stand below it."""
    token = lineage.running.set(job)
    try:
        yield
    finally:
        lineage.running.reset(token)
