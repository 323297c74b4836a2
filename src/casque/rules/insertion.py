"""insertion: which jobs of another store an `Insert` adds."""

from __future__ import annotations

from casque.errors import InvalidError
from casque.job import Job, JobStatus
from casque.record import ABSENT, TRANSFER
from casque.rules.operations import Event, Insert, Inserted, Removed
from casque.rules.records import expected
from casque.rules.state import State


def insertion(state: State, operation: Insert, now: int) -> tuple[list[Event], list[bool]]:
    """The events that add the jobs; and for each job, True if it is added.

    Raises InvalidError for a job in progress: its holder is a worker of the other store. Raises
    CASConflictError if there is the record `operation.unless`.
    """
    if operation.unless is not None:
        expected(state, (TRANSFER, operation.unless), ABSENT, now)
    new: dict[str, Job] = {}
    is_new: list[bool] = []
    for job in operation.jobs:
        if job.status is JobStatus.IN_PROGRESS:
            raise InvalidError(
                f"job {job.id} is in progress, and a claim cannot be copied. Requeue it first.",
                job_id=job.id,
            )
        is_new.append(job.id not in new and state.find(job.id, now) is None)
        if is_new[-1]:
            new[job.id] = job
    events: list[Event] = []
    if gone := tuple(job_id for job_id in new if job_id in state.jobs):
        events.append(Removed(gone))  # expired, but not pruned yet
    token = max((operation.token, *(job.token for job in new.values())))
    if new or token > state.token:
        events.append(Inserted(tuple(new.values()), token))
    return events, is_new
