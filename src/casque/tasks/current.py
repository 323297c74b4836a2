"""Current: the job that this code runs in."""

from __future__ import annotations

from casque.errors import InvalidError
from casque.queues import lineage
from casque.queues.running_job import RunningJob


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
