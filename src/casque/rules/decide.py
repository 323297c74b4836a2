"""decide: all queue semantics, as one pure function. The specification; SQL is tested against it.

`decide(state, operation, now)` returns the events that must happen, and a function that reads the
result from the state after these events. To refuse the operation, it raises a `CasqueError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from casque.errors import (
    CasqueError,
    InvalidError,
    JobNotFoundError,
    LeaseLostError,
)
from casque.job import Job, JobStatus
from casque.record import SCHEDULE, Record
from casque.rules import ticks, transitions
from casque.rules.additions import additions
from casque.rules.insertion import insertion
from casque.rules.lines import LOOK
from casque.rules.operations import (
    Ack,
    Buried,
    Cancel,
    Cancelled,
    Claimed,
    Completed,
    DeleteRecord,
    Dequeue,
    Died,
    Discard,
    Drop,
    Dropped,
    Enqueue,
    Event,
    Fail,
    Failed,
    Heartbeat,
    Insert,
    Nack,
    Operation,
    Purge,
    Purged,
    PutRecord,
    RecordPut,
    RecordsDeleted,
    Release,
    Released,
    Removed,
    Renewed,
    Requeued,
    RequeueStale,
    Retried,
    Retry,
    Tick,
)
from casque.rules.picking import Pick, is_another_due, next_due, pick, pick_one
from casque.rules.records import expected, present
from casque.rules.retention import KEPT_PAYLOAD_BYTES, dead_expiry
from casque.rules.state import State
from casque.schedule import decode, encode
from casque.system.clock import LOOK_US

Answer = Callable[[State], Any]
"""Reads the operation's result from the state after its events."""


class Leased(msgspec.Struct, frozen=True, gc=False):
    """The answer to a dequeue: jobs; or none, and the time until one may be due, if known."""

    jobs: list[Job]
    next_in_us: int | None


class Decision(msgspec.Struct, gc=False):
    events: list[Event]
    answer: Answer


def decide(state: State, operation: Operation, now: int) -> Decision:
    """Decide `operation` on `state` at `now`. Raises a CasqueError to refuse it."""
    return _DECIDE[type(operation)](state, operation, now)


def shown(job: Job, now: int) -> Job:
    """Return the job as readers see it: a spent job is dead, even if not stored as dead yet.

    Its retention begins when it is stored as dead. Until then it keeps `lease_until_us`, because
    the holder of that lease may still end it.
    """
    until = job.lease_until_us
    if until is None or not job.is_spent(now):
        return job
    return replace(transitions.buried(job, now=until, expires=None), lease_until_us=until)


def _job_now(job_id: str, now: int) -> Answer:
    return lambda state: shown(state.jobs[job_id], state.judged_us(now))


def _one(event: Died | Failed | Cancelled, now: int) -> Decision:
    """Return a decision with one event of one job. Its result is that job."""
    return Decision([event], _job_now(event.id, now))


def _held(state: State, job_id: str, token: int, now: int) -> Job:
    """Return the job if `token` is the token of its current claim; raise otherwise."""
    job = state.find(job_id, now)
    if job is None:
        raise JobNotFoundError(
            f"job {job_id}: there is no such job; it was acknowledged or purged, or never existed.",
            job_id=job_id,
        )
    if job.status is not JobStatus.IN_PROGRESS or job.token != token or not token:
        raise LeaseLostError(
            f"job {job_id}: this caller does not hold the job (it is {_whereabouts(job)}); nothing "
            "was saved. Use a longer lease or heartbeats, and make the work safe to run twice.",
            job_id=job_id,
        )
    return job


def _whereabouts(job: Job) -> str:
    if job.status is JobStatus.IN_PROGRESS:
        return f"in progress at {job.worker}"
    return job.status.value.replace("_", " ")


def _known(state: State, job_id: str, now: int) -> Job:
    job = state.find(job_id, now)
    if job is None:
        raise JobNotFoundError(f"job {job_id}: there is no such job.", job_id=job_id)
    return job


# -- enqueue -------------------------------------------------------------------


def _enqueue(state: State, operation: Enqueue, now: int) -> Decision:
    events, answers = additions(
        state, operation.jobs, operation.max_depth, now, replaces=operation.replace
    )

    def answer(after: State) -> list[Job]:
        return [
            replace(shown(after.jobs[job_id], after.judged_us(now)), duplicate=True)
            if seen
            else after.jobs[job_id]
            for job_id, seen in answers
        ]

    return Decision(events, answer)


# -- dequeue -------------------------------------------------------------------


def _dequeue(state: State, operation: Dequeue, now: int) -> Decision:
    judged_us = state.judged_us(now, operation.lease_us)
    if operation.id is not None:
        picked = pick_one(state, operation.id, now, judged_us)
        picked.jobs = [job for job in picked.jobs if _is_asked_for(job, operation)]
        picked.spent = [job for job in picked.spent if _is_asked_for(job, operation)]
    else:
        wanted = operation.entrypoints, operation.queue, operation.limit
        picked = pick(state, *wanted, now, judged_us=judged_us)
        state.put_right(picked.early[:LOOK])
    events: list[Event] = []
    if picked.spent:
        ids = tuple(job.id for job in picked.spent)
        events.append(Buried(ids, dead_expiry(state, now)))
    if not picked.jobs:
        next_in = LOOK_US if picked.is_held else _next_in(state, operation, now)
        return Decision(events, lambda _: Leased([], next_in))
    ids = tuple([job.id for job in picked.jobs])
    events.append(
        Claimed(
            ids,
            operation.worker,
            next_token(state.token, now),
            now + operation.lease_us,
            _served(state, picked, now),
        )
    )
    return Decision(events, lambda after: Leased([after.jobs[job_id] for job_id in ids], None))


def next_token(last: int, now: int) -> int:
    """Return the next token, which is higher than `last` and than all tokens issued before `now`.

    So no token is issued twice, even if the store is restored from a backup or made again.
    """
    return max(last, now) + 1


def _next_in(state: State, operation: Dequeue, now: int) -> int | None:
    if operation.id is not None:
        job = state.find(operation.id, now)
        due = None if job is None or state.is_paused(job.queue) else job.due_us
    else:
        due = next_due(state, operation.entrypoints, operation.queue)
    return None if due is None else max(due - now, 0)


def _is_asked_for(job: Job, operation: Dequeue) -> bool:
    return operation.queue in (None, job.queue) and (
        operation.entrypoints is None or job.entrypoint in operation.entrypoints
    )


def _served(state: State, picked: Pick, now: int) -> tuple[tuple[str, str], ...] | None:
    """Return the lines to move to the end of the rotation; None: those of the picked jobs.

    No line moves if no other queue has a due line.
    """
    if not picked.visited or not is_another_due(state, picked.visited, now):
        return ()
    implied = list(dict.fromkeys((job.queue, job.entrypoint) for job in picked.jobs))
    return None if implied == picked.visited else tuple(picked.visited)


# -- operations by a holder ----------------------------------------------------


def _ack(state: State, operation: Ack, now: int) -> Decision:
    job = _held(state, operation.id, operation.token, now)
    requests = [
        replace(request, depth=job.depth + 1, chain=(*job.chain, job.entrypoint))
        for request in operation.enqueue
    ]
    leaves = not job.retain_us  # a retention of zero keeps nothing: the id is free from here on
    added, _ = additions(
        state, requests, operation.max_depth, now, leaving=job.id if leaves else None
    )
    done: Event
    if job.retain_us:
        keeps_payload = len(job.payload) <= KEPT_PAYLOAD_BYTES
        done = Completed(job.id, operation.result, now + job.retain_us, keeps_payload)
    else:
        done = Removed((job.id,))
    return Decision([done, *added], lambda _: None)


def _nack(state: State, operation: Nack, now: int) -> Decision:
    job = _held(state, operation.id, operation.token, now)
    if job.attempts >= job.max_attempts:
        return _one(Died(job.id, operation.failure, dead_expiry(state, now)), now)
    return _one(Failed(job.id, operation.failure, now + operation.delay_us), now)


def _fail(state: State, operation: Fail, now: int) -> Decision:
    job = _held(state, operation.id, operation.token, now)
    return _one(Died(job.id, operation.failure, dead_expiry(state, now)), now)


def _discard(state: State, operation: Discard, now: int) -> Decision:
    job = _held(state, operation.id, operation.token, now)
    return _one(Cancelled(job.id, operation.reason, dead_expiry(state, now)), now)


def _heartbeat(state: State, operation: Heartbeat, now: int) -> Decision:
    leases: list[tuple[str, int]] = []
    refusals: list[CasqueError | None] = []
    for job_id, token in operation.holds:
        try:
            job = _held(state, job_id, token, now)
        except CasqueError as refusal:
            refusals.append(refusal)
            continue
        refusals.append(None)
        span = operation.lease_us if operation.lease_us is not None else job.lease_span_us
        assert span is not None
        leases.append((job_id, now + span))

    def answer(after: State) -> list[Job | CasqueError]:
        asked = zip(operation.holds, refusals, strict=True)
        return [refusal or after.jobs[job_id] for (job_id, _), refusal in asked]

    if not leases:
        return Decision([], answer)
    renewed = Renewed(tuple(leases), operation.progress, operation.note, operation.output)
    return Decision([renewed], answer)


def _release(state: State, operation: Release, now: int) -> Decision:
    job = _held(state, operation.id, operation.token, now)
    run_us = now + operation.delay_us
    events: list[Event] = [Released(job.id, run_us)]
    if operation.failure is not None:  # first: `Released` then takes its attempt back
        events.insert(0, Failed(job.id, operation.failure, run_us))
    return Decision(events, _job_now(job.id, now))


# -- operations by any caller --------------------------------------------------


def _cancel(state: State, operation: Cancel, now: int) -> Decision:
    job = _known(state, operation.id, now)
    if job.status is JobStatus.CANCELLED:
        return Decision([], _job_now(job.id, now))
    status = shown(job, state.judged_us(now)).status
    if status not in (JobStatus.QUEUED, JobStatus.IN_PROGRESS):
        raise InvalidError(
            f"job {job.id} is {status.value} already; only a job that is queued or in progress "
            "can be cancelled.",
            job_id=job.id,
        )
    return _one(Cancelled(job.id, operation.reason, dead_expiry(state, now)), now)


def _retry(state: State, operation: Retry, now: int) -> Decision:
    job = _known(state, operation.id, now)
    events: list[Event] = []
    if job.is_spent(state.judged_us(now)):
        events.append(Buried((job.id,), dead_expiry(state, now)))
    elif job.status is not JobStatus.DEAD:
        raise InvalidError(
            f"job {job.id} is {_whereabouts(job)}; only a dead job can be retried.", job_id=job.id
        )
    events.append(Retried(job.id))
    return Decision(events, _job_now(job.id, now))


def _requeue_stale(state: State, operation: RequeueStale, now: int) -> Decision:
    unheard = state.judged_us(now, operation.timeout_us) - operation.timeout_us
    again: list[str] = []
    spent: list[str] = []
    for job in sorted(map(state.jobs.__getitem__, state.in_progress), key=lambda job: job.seq):
        assert job.heartbeat_us is not None
        if job.heartbeat_us <= unheard:
            (spent if job.attempts >= job.max_attempts else again).append(job.id)
    events: list[Event] = []
    if again:
        events.append(Requeued(tuple(again)))
    if spent:
        events.append(Buried(tuple(spent), dead_expiry(state, now)))
    count = len(again) + len(spent)
    return Decision(events, lambda _: count)


def _purge(state: State, operation: Purge, now: int) -> Decision:
    before, judged_us = operation.before_us(now), state.judged_us(now)

    def is_meant(finished_us: int | None, queue: str, status: JobStatus) -> bool:
        return (
            finished_us is not None
            and finished_us <= before
            and operation.queue in (None, queue)
            and operation.status in (None, status)
        )

    held, finished = _purgeable(state, operation)
    spent = tuple(
        job.id
        for job in held
        if job.is_spent(judged_us) and is_meant(job.lease_until_us, job.queue, JobStatus.DEAD)
    )
    over = tuple(
        job.id
        for job in finished
        if is_meant(job.finished_us, job.queue, job.status) and not job.is_gone(now)
    )
    count = len(spent) + len(over)
    events: list[Event] = []
    if spent:
        events.append(Buried(spent, dead_expiry(state, now)))
    if count:
        is_by_age = operation.status is None and operation.only is None
        events.append(Purged(before, operation.queue) if is_by_age else Removed((*spent, *over)))
    return Decision(events, lambda _: count)


def _purgeable(state: State, operation: Purge) -> tuple[list[Job], Iterable[Job]]:
    """Return the jobs in progress and the finished jobs that a purge has to look at."""
    if operation.only is None:
        return [state.jobs[job_id] for job_id in state.in_progress], state.finished_jobs()
    named = [
        job
        for job_id, token in dict(operation.only).items()
        if (job := state.jobs.get(job_id)) is not None and job.token == token
    ]
    held = [job for job in named if job.status is JobStatus.IN_PROGRESS]
    return held, [job for job in named if job.finished_us is not None]


def _drop(state: State, operation: Drop, now: int) -> Decision:
    stats = state.stats(operation.queue, now)
    return Decision(
        [Dropped(operation.queue)] if operation.queue in state.queues else [],
        lambda _: stats.total,
    )


def _insert(state: State, operation: Insert, now: int) -> Decision:
    events, is_new = insertion(state, operation, now)
    return Decision(events, lambda _: is_new)


# -- records -------------------------------------------------------------------


def _put_record(state: State, operation: PutRecord, now: int) -> Decision:
    expected(state, (operation.kind, operation.name), operation.expect, now)
    record = Record(
        operation.kind,
        operation.name,
        operation.value,
        next_token(state.token, now),
        None if operation.ttl_us is None else now + operation.ttl_us,
    )
    return Decision([RecordPut(record)], lambda _: record)


def _delete_record(state: State, operation: DeleteRecord, now: int) -> Decision:
    key = operation.kind, operation.name
    if expected(state, key, operation.expect, now) is None:
        return Decision([], lambda _: None)
    return Decision([RecordsDeleted((key,))], lambda _: None)


# -- schedules -----------------------------------------------------------------


def _tick(state: State, operation: Tick, now: int) -> Decision:
    record = present(state, (SCHEDULE, operation.name), operation.expect, now)
    schedule = decode(record)
    ticks.check_tick(schedule, operation, now)
    last = [state.find(one, now) for one in (schedule.last_job, schedule.last_tick_job)]
    is_open = any(
        one is not None and shown(one, state.judged_us(now)).finished_us is None for one in last
    )
    is_skipped = ticks.skips(schedule, operation, is_last_job_open=is_open)
    events, _ = additions(state, () if is_skipped else (operation.job,), operation.job.depth, now)
    after = ticks.advanced(schedule, operation, is_skipped=is_skipped)
    new = replace(record, value=encode(after), version=next_token(state.token, now))
    return Decision([*events, RecordPut(new)], lambda _: new)


_DECIDE: dict[type[Operation], Callable[[State, Any, int], Decision]] = {
    Enqueue: _enqueue,
    Dequeue: _dequeue,
    Ack: _ack,
    Nack: _nack,
    Fail: _fail,
    Discard: _discard,
    Heartbeat: _heartbeat,
    Release: _release,
    Cancel: _cancel,
    Retry: _retry,
    RequeueStale: _requeue_stale,
    Purge: _purge,
    Drop: _drop,
    Insert: _insert,
    PutRecord: _put_record,
    DeleteRecord: _delete_record,
    Tick: _tick,
}
