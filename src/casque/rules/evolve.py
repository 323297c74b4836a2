"""evolve: applies an event to the state. It decides nothing; `decide` made every choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from casque.job import Job
from casque.rules import transitions
from casque.rules.operations import (
    Added,
    Buried,
    Cancelled,
    Claimed,
    Completed,
    Died,
    Dropped,
    Event,
    Failed,
    Inserted,
    Purged,
    RecordPut,
    RecordsDeleted,
    Released,
    Removed,
    Renewed,
    Requeued,
    Retried,
)
from casque.rules.state import LineKey, State

_OfOneJob = Completed | Failed | Died | Released | Cancelled | Retried


def evolve(state: State, event: Event) -> None:
    """Apply one event, at the instant that was passed to `state.begin`."""
    served = _EVOLVE[type(event)](state, event)
    state.settle(served or ())


def _one_changed(state: State, event: _OfOneJob) -> None:
    change = _OF_ONE_JOB[type(event)]
    state.put(change(state.jobs[event.id], event, state.time_us))


def _added(state: State, event: Added) -> None:
    state.seq += 1
    state.put(replace(event.job, seq=state.seq))


def _inserted(state: State, event: Inserted) -> None:
    state.token = max(state.token, event.token)
    for job in event.jobs:
        state.seq += 1
        state.put(replace(job, seq=state.seq, duplicate=False))


def _claimed(state: State, event: Claimed) -> tuple[LineKey, ...]:
    """Lease the jobs of the event. Returns the lines that were served, which go to the back."""
    now, token = state.time_us, event.first_token
    lines: dict[LineKey, None] = {}
    for job_id in event.ids:
        job = state.jobs[job_id]
        lines[job.queue, job.entrypoint] = None
        state.put(
            transitions.claimed(
                job, worker=event.worker, token=token, now=now, lease_until=event.lease_until_us
            )
        )
        token += 1
    state.token = max(state.token, token - 1)
    return tuple(lines) if event.served is None else event.served


def _removed(state: State, event: Removed) -> None:
    for job_id in event.ids:
        state.remove(job_id)


def _buried(state: State, event: Buried) -> None:
    for job_id in event.ids:
        job = state.jobs[job_id]
        state.put(transitions.buried(job, now=state.time_us, expires=event.expires_us))


def _requeued(state: State, event: Requeued) -> None:
    for job_id in event.ids:
        state.put(transitions.requeued(state.jobs[job_id], now=state.time_us))


def _renewed(state: State, event: Renewed) -> None:
    for job_id, lease_until in event.leases:
        job = state.jobs[job_id]
        state.put(transitions.renewed(job, event, now=state.time_us, lease_until=lease_until))


def _purged(state: State, event: Purged) -> None:
    for job in list(state.finished_jobs()):
        assert job.finished_us is not None
        if job.finished_us <= event.before_us and event.queue in (None, job.queue):
            state.remove(job.id)


def _dropped(state: State, event: Dropped) -> None:
    index = state.queues.get(event.queue)
    ids = [job_id for line in index.lines.values() for job_id in line.ids()] if index else []
    ids.extend(job.id for job in state.finished_jobs() if job.queue == event.queue)
    for job_id in ids:
        state.remove(job_id)


def _record_put(state: State, event: RecordPut) -> None:
    state.token = max(state.token, event.record.version)
    state.put_record(event.record)


def _records_deleted(state: State, event: RecordsDeleted) -> None:
    for key in event.keys:
        state.delete_record(key)


_OF_ONE_JOB: dict[type[_OfOneJob], Callable[[Job, Any, int], Job]] = {
    Completed: transitions.completed,
    Failed: transitions.failed,
    Died: transitions.died,
    Released: transitions.released,
    Cancelled: transitions.cancelled,
    Retried: transitions.retried,
}

_EVOLVE: dict[type[Event], Callable[[State, Any], tuple[LineKey, ...] | None]] = {
    Added: _added,
    Inserted: _inserted,
    Claimed: _claimed,
    Removed: _removed,
    Buried: _buried,
    Requeued: _requeued,
    Renewed: _renewed,
    Purged: _purged,
    Dropped: _dropped,
    RecordPut: _record_put,
    RecordsDeleted: _records_deleted,
    **dict.fromkeys(_OF_ONE_JOB, _one_changed),
}
