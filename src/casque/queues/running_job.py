"""RunningJob: the job that this code runs in, for tasks and for consumers of a queue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from casque import checks
from casque.errors import InvalidError
from casque.job import Job, JobStatus
from casque.queues import lineage
from casque.system.clock import to_datetime


class RunningJob:
    """The job that a task runs in: its fields, its progress, the environment of its programs."""

    __slots__ = (
        "_deadline_us",
        "_output",
        "_report",
        "_store",
        "is_lost",
        "is_stopping",
        "job",
        "lease_end_us",
        "when_renewed",
    )

    def __init__(
        self,
        job: Job,
        deadline_us: int | None,
        report: Callable[[float | None, str | None], None],
        *,
        store: str | None = None,
    ) -> None:
        self.job = job
        """The job as it was claimed."""
        self._store = store
        """The address of the job's store for other processes; None if it has none."""
        self._deadline_us = deadline_us
        self._report = report
        self.is_lost = False
        """True if another worker may have the job: the result of this attempt will be rejected."""
        self.is_stopping = False
        """True if its worker is stopping."""
        self._output: bytes | None = None
        self.lease_end_us: int | None = None
        """The end of the lease on the monotonic clock. Each renewal moves it."""
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

    def environ(self) -> dict[str, str]:
        """The environment for a program that this job starts: pass it as `env`.

        It is a copy of `os.environ` with `CASQUE_JOB_ID`, `CASQUE_ATTEMPT`, `CASQUE_DEPTH` and
        `CASQUE_STORE` of this job. So `queuectl` and casque in that program know that they run
        inside this job, and `max_depth` applies. A store in memory has no address, so
        `CASQUE_STORE` is left out.
        """
        environment = {
            name: value for name, value in os.environ.items() if name not in lineage.VARIABLES
        }
        return environment | lineage.variables(self.job, self._store)

    # -- for the worker itself -------------------------------------------------

    @property
    def output(self) -> bytes | None:
        """The end of the job's output, or None. Heartbeats and the end of the attempt store it."""
        return self._output

    @output.setter
    def output(self, output: bytes | None) -> None:
        self._output = None if output is None else checks.tail(output)

    def beat(self) -> None:
        """Send a heartbeat soon. It stores any output, and notices a lost job."""
        self._report(None, None)

    def __repr__(self) -> str:
        return f"<RunningJob {self.entrypoint} {self.id}, attempt {self.attempt}>"


@contextmanager
def running_as(job: RunningJob) -> Iterator[None]:
    """In this context, `job` is the current job, and the parent of jobs that are enqueued."""
    token = lineage.running.set(job)
    try:
        yield
    finally:
        lineage.running.reset(token)


@contextmanager
def consuming(job: Job, store: str | None) -> Iterator[RunningJob]:
    """Make `job` the current job in a program that has no worker."""
    if not isinstance(job, Job):
        raise InvalidError(f"expected a Job, as `dequeue` returns it; got {type(job).__name__}.")
    if job.status is not JobStatus.IN_PROGRESS:
        raise InvalidError(
            f"job {job.id} is {job.status.value}: pass a job that `dequeue` returned.",
            job_id=job.id,
        )
    running = RunningJob(job, None, _refuse_progress, store=store)
    with running_as(running):
        yield running


def _refuse_progress(fraction: float | None, note: str | None) -> None:  # noqa: ARG001
    raise InvalidError(
        "only a worker stores the progress of its tasks; call `queue.heartbeat(job, progress=…)`."
    )
