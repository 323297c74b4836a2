"""Mismatches: jobs whose arguments do not fit this worker's version of the task.

During a deploy, old and new workers run side by side. A job that does not fit one of them may fit
another. So it is given back, without counting the attempt, until an hour has passed since its first
claim; then it is dead. The history of the job keeps the time of that claim, in every store and
whichever workers claim the job.
"""

from __future__ import annotations

from casque.errors import InvalidError
from casque.job import Failure, Job
from casque.rules.operations import Fail, Operation, Release
from casque.rules.transitions import MISMATCH
from casque.system.clock import MINUTE_US, SECOND_US

PATIENCE_US = 60 * MINUTE_US
"""How long a job waits for a worker that it fits."""
_SHORTEST_US = 5 * SECOND_US
_LONGEST_US = 300 * SECOND_US


def settlement(job: Job, error: InvalidError) -> Operation:
    """Give back a claimed job that does not fit; if it has waited for an hour, it is dead."""
    assert job.claimed_us is not None
    waited = job.claimed_us - first_claim_us(job)
    if waited >= PATIENCE_US:
        text = f"{error} No worker that it fits has claimed it for an hour."
        return Fail(job.id, job.token, Failure(type(error).__name__, text))
    # As long again as it has waited, so that the pauses double.
    pause = min(max(waited, _SHORTEST_US), _LONGEST_US, PATIENCE_US - waited)
    return Release(job.id, job.token, pause, Failure(MISMATCH, str(error)))


def first_claim_us(job: Job) -> int:
    """Return when a worker that the job does not fit claimed it first, since its last `retry`."""
    assert job.claimed_us is not None
    first, number = job.claimed_us, job.attempts
    for one in reversed(job.history):
        is_mismatch = one.failure is not None and one.failure.kind == MISMATCH
        # Attempts count from 1 again after a `retry`. A mismatch has the number of the attempt
        # after it, because it was not counted.
        if one.number > number or (one.number == number and not is_mismatch):
            break
        number = one.number
        if is_mismatch:
            first = one.started_us
    return first
