"""Transitions: pure functions that apply an event to one job."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from casque.job import Attempt, Failure, Job, JobStatus
from casque.rules.operations import (
    Cancelled,
    Completed,
    Died,
    Failed,
    Released,
    Renewed,
    Retried,
)
from casque.system.clock import to_datetime

HISTORY_LIMIT = 10
LOST = "lost"
MISMATCH = "mismatch"
"""The arguments of a job did not fit the worker, which gave it back for another worker."""
_MISMATCH_PREFIX = f"{MISMATCH}: "
CANCELLED = "cancelled"


def claimed(job: Job, *, worker: str, token: int, now: int, lease_until: int) -> Job:
    # Counted on claim, not on finish: a job that kills its worker never
    # reports back, and it must still run out of attempts.
    return replace(
        job,
        status=JobStatus.IN_PROGRESS,
        attempts=job.attempts + 1,
        token=token,
        worker=worker,
        claimed_us=now,
        heartbeat_us=now,
        lease_until_us=lease_until,
        updated_us=now,
        progress=None,
        note=None,
        output=None,
        history=_with_lost(job, now) if job.status is JobStatus.IN_PROGRESS else job.history,
    )


def renewed(job: Job, event: Renewed, *, now: int, lease_until: int) -> Job:
    """Renew the lease. Fields that the heartbeat does not set stay unchanged."""
    return replace(
        job,
        heartbeat_us=now,
        lease_until_us=lease_until,
        updated_us=now,
        progress=job.progress if event.progress is None else event.progress,
        note=job.note if event.note is None else event.note,
        output=job.output if event.output is None else event.output,
    )


def completed(job: Job, event: Completed, now: int) -> Job:
    return replace(
        job,
        status=JobStatus.COMPLETED,
        payload=job.payload if event.keeps_payload else b"",
        result=event.result,
        error=None,
        finished_us=now,
        expires_us=event.expires_us,
        lease_until_us=None,
        updated_us=now,
        history=_with(job, now, None),
    )


def failed(job: Job, event: Failed, now: int) -> Job:
    failure = event.failure or Failure()
    changes = {"error": describe(failure), "history": _with(job, now, failure)}
    return _let_go(job, JobStatus.QUEUED, now, run_us=event.run_us, **changes)


def died(job: Job, event: Died, now: int) -> Job:
    failure = event.failure or Failure()
    changes = {"error": describe(failure), "history": _with(job, now, failure)}
    return _let_go(
        job, JobStatus.DEAD, now, finished_us=now, expires_us=event.expires_us, **changes
    )


def buried(job: Job, *, now: int, expires: int | None) -> Job:
    """Mark a job dead whose last attempt sent no report. It finished when its lease ended."""
    assert job.lease_until_us is not None
    finished = min(job.lease_until_us, now)
    changes = {"error": describe(lost(job)), "history": _with_lost(job, now)}
    return _let_go(job, JobStatus.DEAD, now, finished_us=finished, expires_us=expires, **changes)


def requeued(job: Job, *, now: int) -> Job:
    """Take a job back from a holder that sent no heartbeat. The attempt counts."""
    changes = {"error": describe(lost(job)), "history": _with_lost(job, now)}
    return _let_go(job, JobStatus.QUEUED, now, run_us=now, **changes)


def released(job: Job, event: Released, now: int) -> Job:
    return _let_go(job, JobStatus.QUEUED, now, run_us=event.run_us, attempts=job.attempts - 1)


def cancelled(job: Job, event: Cancelled, now: int) -> Job:
    changes: dict[str, Any] = {"error": event.reason or None}
    if job.status is JobStatus.IN_PROGRESS:
        changes["history"] = _with(job, now, Failure(CANCELLED, event.reason))
    return _let_go(
        job, JobStatus.CANCELLED, now, finished_us=now, expires_us=event.expires_us, **changes
    )


def retried(job: Job, _: Retried, now: int) -> Job:
    return _let_go(
        job, JobStatus.QUEUED, now, run_us=now, attempts=0, finished_us=None, expires_us=None
    )


def _let_go(job: Job, status: JobStatus, now: int, **changes: Any) -> Job:
    """Return the job without a holder, with `status` and `changes` applied."""
    return replace(
        job, status=status, lease_until_us=None, heartbeat_us=None, updated_us=now, **changes
    )


def lost(job: Job) -> Failure:
    """Return the failure of an attempt whose worker sends no more heartbeats."""
    assert job.heartbeat_us is not None
    heard = to_datetime(job.heartbeat_us)
    return Failure(
        LOST, f"worker {job.worker} was lost; last heartbeat at {heard:%Y-%m-%d %H:%M:%S}Z"
    )


def describe(failure: Failure) -> str:
    """Return the failure as one line of text."""
    return (
        f"{failure.kind}: {failure.text}"
        if failure.kind and failure.text
        else (failure.text or failure.kind)
    )


def is_mismatched(job: Job) -> bool:
    """True if the job is queued for a newer worker: it did not fit the one that had it last."""
    error = job.error
    return (
        error is not None and job.status is JobStatus.QUEUED and error.startswith(_MISMATCH_PREFIX)
    )


def _with_lost(job: Job, now: int) -> tuple[Attempt, ...]:
    assert job.lease_until_us is not None
    # It ended with its lease; or now, if it was taken back before that.
    return _with(job, min(job.lease_until_us, now), lost(job))


def _with(job: Job, ended: int, failure: Failure | None) -> tuple[Attempt, ...]:
    assert job.claimed_us is not None
    assert job.worker is not None
    history, started = job.history, job.claimed_us
    if failure is not None and failure.kind == MISMATCH and _ends_in_mismatch(job):
        # One entry for all mismatches in a row: it keeps the time of the first claim, and leaves
        # room for the other attempts.
        started, history = history[-1].started_us, history[:-1]
    over = Attempt(job.attempts, job.worker, started, ended, failure)
    return (*history, over)[-HISTORY_LIMIT:]


def _ends_in_mismatch(job: Job) -> bool:
    """True if the last entry in the history is a mismatch at this same, uncounted attempt."""
    last = job.history[-1] if job.history else None
    return (
        last is not None
        and last.number == job.attempts
        and last.failure is not None
        and last.failure.kind == MISMATCH
    )
