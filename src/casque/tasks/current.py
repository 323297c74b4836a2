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
    """The job that a task runs in: its fields, and its progress."""

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
        """True if another worker may have the job: the result of this attempt will be rejected."""
        self.is_stopping = False
        """True if its worker is stopping."""
        self._output: bytes | None = None
        self.lease_end_us: int | None = None
        """The end of its lease as of the start of the attempt, by the monotonic clock."""
        self.when_renewed: Callable[[int], None] | None = None
        """Called on another thread after a renewal, with the new lease in microseconds."""

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
        """The number of this attempt, from 1."""
        return self.job.attempts

    @property
    def max_attempts(self) -> int:
        return self.job.max_attempts

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the job was enqueued with. Jobs that it enqueues do not inherit them."""
        return self.job.headers

    @property
    def deadline(self) -> datetime | None:
        """When this attempt times out; None if it has no timeout."""
        return None if self._deadline_us is None else to_datetime(self._deadline_us)

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Report the progress of the work, from 0 to 1. It is stored soon, not at once."""
        self._report(checks.fraction(fraction), None if note is None else checks.text(note, "note"))

    # -- for the worker itself -------------------------------------------------

    @property
    def output(self) -> bytes | None:
        """The end of the job's output, or None. Heartbeats and the end of the attempt store it."""
        return self._output

    @output.setter
    def output(self, output: bytes | None) -> None:
        self._output = None if output is None else checks.tail(output)

    def beat(self) -> None:
        """Send a heartbeat soon, which stores the output, if any, and notices a lost job."""
        self._report(None, None)

    def __repr__(self) -> str:
        return f"<RunningJob {self.entrypoint} {self.id}, attempt {self.attempt}>"


def current_job() -> RunningJob:
    """The job that this code runs in. Raises InvalidError outside a job."""
    job: RunningJob | None = lineage.running.get()
    if job is None:
        raise InvalidError(
            "no job is running here: current_job() works in a task, and in functions that it "
            "calls on the same thread. If a task starts a thread, pass the job to it."
        )
    return job


def become(job: RunningJob) -> None:
    """Make `job` the current job of this context, which must be used for this job only."""
    lineage.running.set(job)


@contextmanager
def running_as(job: RunningJob) -> Iterator[None]:
    """In this context, `job` is the current job, and the parent of jobs that are enqueued."""
    token = lineage.running.set(job)
    try:
        yield
    finally:
        lineage.running.reset(token)
