"""What an event makes of one job: pure steps from Job to Job."""

from __future__ import annotations

from msgspec.structs import replace

from casque.job import Attempt, Failure, Job, JobStatus
from casque.system.clock import to_datetime

HISTORY_LIMIT = 10
LOST = "lost"
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


def renewed(job: Job, *, now: int, lease_until: int) -> Job:
    return replace(job, heartbeat_us=now, lease_until_us=lease_until, updated_us=now)


def reported(job: Job, *, progress: float | None, note: str | None, output: bytes | None) -> Job:
    """What the holder tells beside being alive; what it leaves out stays as it was."""
    return replace(
        job,
        progress=job.progress if progress is None else progress,
        note=job.note if note is None else note,
        output=job.output if output is None else output,
    )


def completed(job: Job, *, result: bytes | None, now: int, expires: int) -> Job:
    return replace(
        job,
        status=JobStatus.COMPLETED,
        payload=b"",
        result=result,
        error=None,
        finished_us=now,
        expires_us=expires,
        lease_until_us=None,
        updated_us=now,
        history=_with(job, now, None),
    )


def failed(job: Job, *, failure: Failure | None, now: int, run_at: int) -> Job:
    failure = failure or Failure()
    return replace(
        job,
        status=JobStatus.QUEUED,
        run_us=run_at,
        error=describe(failure),
        lease_until_us=None,
        heartbeat_us=None,
        updated_us=now,
        history=_with(job, now, failure),
    )


def died(job: Job, *, failure: Failure | None, now: int, expires: int) -> Job:
    failure = failure or Failure()
    return replace(
        job,
        status=JobStatus.DEAD,
        error=describe(failure),
        finished_us=now,
        expires_us=expires,
        lease_until_us=None,
        heartbeat_us=None,
        updated_us=now,
        history=_with(job, now, failure),
    )


def buried(job: Job, *, now: int, expires: int) -> Job:
    """Dead because nobody reported back from the last attempt: since its lease ended."""
    assert job.lease_until_us is not None
    return replace(
        job,
        status=JobStatus.DEAD,
        error=describe(lost(job)),
        finished_us=min(job.lease_until_us, now),
        expires_us=expires,
        lease_until_us=None,
        heartbeat_us=None,
        updated_us=now,
        history=_with_lost(job, now),
    )


def requeued(job: Job, *, now: int) -> Job:
    """Taken back from a holder that was not heard of; the attempt counts."""
    return replace(
        job,
        status=JobStatus.QUEUED,
        run_us=now,
        error=describe(lost(job)),
        lease_until_us=None,
        heartbeat_us=None,
        updated_us=now,
        history=_with_lost(job, now),
    )


def released(job: Job, *, now: int, run_at: int) -> Job:
    return replace(
        job,
        status=JobStatus.QUEUED,
        attempts=job.attempts - 1,
        run_us=run_at,
        lease_until_us=None,
        heartbeat_us=None,
        updated_us=now,
    )


def cancelled(job: Job, *, reason: str, now: int, expires: int) -> Job:
    ran = job.status is JobStatus.IN_PROGRESS
    return replace(
        job,
        status=JobStatus.CANCELLED,
        error=reason or None,
        finished_us=now,
        expires_us=expires,
        lease_until_us=None,
        heartbeat_us=None,
        updated_us=now,
        history=_with(job, now, Failure(CANCELLED, reason)) if ran else job.history,
    )


def retried(job: Job, *, now: int) -> Job:
    return replace(
        job,
        status=JobStatus.QUEUED,
        attempts=0,
        run_us=now,
        finished_us=None,
        expires_us=None,
        lease_until_us=None,
        heartbeat_us=None,
        updated_us=now,
    )


def lost(job: Job) -> Failure:
    """The failure of an attempt whose worker went silent."""
    assert job.heartbeat_us is not None
    heard = to_datetime(job.heartbeat_us)
    return Failure(
        LOST, f"worker {job.worker} was lost; last heard of at {heard:%Y-%m-%d %H:%M:%S}Z"
    )


def describe(failure: Failure) -> str:
    """One line of what went wrong."""
    return (
        f"{failure.kind}: {failure.text}"
        if failure.kind and failure.text
        else (failure.text or failure.kind)
    )


def _with_lost(job: Job, now: int) -> tuple[Attempt, ...]:
    assert job.lease_until_us is not None
    # With its lease; or now, when it was taken back before that.
    return _with(job, min(job.lease_until_us, now), lost(job))


def _with(job: Job, ended: int, failure: Failure | None) -> tuple[Attempt, ...]:
    assert job.claimed_us is not None
    assert job.worker is not None
    over = Attempt(job.attempts, job.worker, job.claimed_us, ended, failure)
    return (*job.history, over)[-HISTORY_LIMIT:]
