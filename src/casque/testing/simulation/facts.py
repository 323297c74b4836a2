"""Facts: events that must never be in a log, independent of what the rules decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from casque.errors import CasqueError
from casque.job import Job, JobStatus
from casque.record import SCHEDULE
from casque.rules.operations import (
    Ack,
    Added,
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
    Inserted,
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
    Request,
    Requeued,
    RequeueStale,
    Retried,
    Retry,
    Tick,
)
from casque.rules.state import State
from casque.stores.ledger.entry import Entry
from casque.testing.simulation.history import Violation

Life = tuple[str, int]
"""A job and the token of one claim on it."""


class Facts:
    """The events so far, and the checks of the next one."""

    def __init__(self) -> None:
        self.token = 0
        self.added: dict[str, list[int]] = {}
        """For each id, the entries that added a job with it."""
        self.claimed: dict[Life, int] = {}
        self.acked: dict[Life, int] = {}

    def check(
        self, state: State, entry: Entry, event: Event, operations: Sequence[Operation]
    ) -> None:
        """Raise Violation if `event` must not follow `state`, or nobody requested it."""
        wrong = self._wrong(state, entry, event, operations)
        if wrong:
            raise Violation(f"entry {entry.number}: {wrong}: {event}")

    def forget_after(self, number: int, token: int) -> None:
        """Forget the lost entries above `number`. Their tokens may come again: nobody saw them."""
        for numbers in self.added.values():
            numbers[:] = [one for one in numbers if one <= number]
        self.claimed = {life: at for life, at in self.claimed.items() if at <= number}
        self.acked = {life: at for life, at in self.acked.items() if at <= number}
        self.token = token

    def _wrong(
        self, state: State, entry: Entry, event: Event, operations: Sequence[Operation]
    ) -> str:
        match event:
            case Added():
                return self._wrong_addition(state, entry, event, operations)
            case Claimed():
                return self._wrong_claim(state, entry, event, operations)
            case RecordPut():
                return self._wrong_record(event, operations)
            case Removed():
                return self._wrong_removal(state, entry, event, operations)
            case Completed():
                self.acked[event.id, state.jobs[event.id].token] = entry.number
                return _wrong_holder(state, event.id, operations, Ack)
            case Failed():
                return _wrong_holder(state, event.id, operations, Nack, Release)
            case Died():
                return _wrong_holder(state, event.id, operations, Nack, Fail)
            case Released():
                return _wrong_holder(state, event.id, operations, Release)
            case Renewed():
                return _wrong_renewal(state, event, operations)
            case _:
                return _unasked(state, entry, event, operations)

    def _wrong_addition(
        self, state: State, entry: Entry, event: Added, operations: Sequence[Operation]
    ) -> str:
        if event.job.id in state.jobs:
            return "the job exists twice"
        asked = (request.id for one in operations for request in _requests(one))
        if event.job.id not in asked:
            return "nobody requested this job"
        self.added.setdefault(event.job.id, []).append(entry.number)
        return ""

    def _wrong_claim(
        self, state: State, entry: Entry, event: Claimed, operations: Sequence[Operation]
    ) -> str:
        if event.first_token <= self.token:
            return f"a token does not rise above {self.token}"
        for place, job_id in enumerate(event.ids):
            job = state.jobs[job_id]
            if job.status is JobStatus.IN_PROGRESS and (job.lease_until_us or 0) > entry.time_us:
                return f"two leases overlap: {job.worker} has it until {job.lease_until_us}"
            if job.due_us is None or job.due_us > entry.time_us:
                return f"a job is claimed before it is due, or after it is done: {job}"
            self.claimed[job_id, event.first_token + place] = entry.number
        self.token = event.first_token + len(event.ids) - 1
        asked = [one for one in operations if isinstance(one, Dequeue)]
        return "" if any(one.worker == event.worker for one in asked) else "nobody requested it"

    def _wrong_record(self, event: RecordPut, operations: Sequence[Operation]) -> str:
        if event.record.version <= self.token:
            return f"a version does not rise above {self.token}"
        self.token = event.record.version
        asked = [(one.kind, one.name) for one in operations if isinstance(one, PutRecord)]
        asked += [(SCHEDULE, one.name) for one in operations if isinstance(one, Tick)]
        key = event.record.kind, event.record.name
        return "" if key in asked else "nobody requested it"

    def _wrong_removal(
        self, state: State, entry: Entry, event: Removed, operations: Sequence[Operation]
    ) -> str:
        for job_id in event.ids:
            job = state.jobs.get(job_id)
            if job is None:
                return f"{job_id} does not exist"
            if job.is_gone(entry.time_us):
                continue
            wrong = _wrong_holder(state, job_id, operations, Ack)
            if wrong:
                return wrong
            if (job_id, job.token) in self.acked:
                return "one claim is acked twice"
            self.acked[job_id, job.token] = entry.number
        return ""


def _requests(operation: Operation) -> Sequence[Request]:
    """The jobs that an operation adds."""
    match operation:
        case Enqueue():
            return operation.jobs
        case Ack():
            return operation.enqueue
        case Tick():
            return (operation.job,)
        case _:
            return ()


def _wrong_holder(
    state: State, job_id: str, operations: Sequence[Operation], *kinds: type[Any]
) -> str:
    """Return what is wrong, unless the job is held under the token that an operation names."""
    job = state.jobs.get(job_id)
    if job is None or job.status is not JobStatus.IN_PROGRESS:
        return f"nobody holds {job_id}"
    for one in operations:
        if isinstance(one, kinds) and (one.id, one.token) == (job_id, job.token):
            return ""
    return f"{job_id} is held under token {job.token}, and nobody requested this with that token"


def _wrong_renewal(state: State, event: Renewed, operations: Sequence[Operation]) -> str:
    asked = [hold for one in operations if isinstance(one, Heartbeat) for hold in one.holds]
    for job_id, _ in event.leases:
        job = state.jobs.get(job_id)
        if job is None or job.status is not JobStatus.IN_PROGRESS:
            return f"nobody holds {job_id}"
        if (job_id, job.token) not in asked:
            return (
                f"{job_id} is held under token {job.token}, and nobody requested this with that "
                "token"
            )
    return ""


def _unasked(state: State, entry: Entry, event: Event, operations: Sequence[Operation]) -> str:
    kinds: tuple[type[Any], ...]
    match event:
        case Buried():
            spent = all(
                state.jobs[one].attempts >= state.jobs[one].max_attempts for one in event.ids
            )
            kinds = (Dequeue, RequeueStale, Retry, Purge) if spent else ()
        case Cancelled():
            if not _wrong_holder(state, event.id, operations, Discard):
                return ""
            kinds = (Cancel,)
        case Retried():
            kinds = (Retry,)
        case Requeued():
            kinds = (RequeueStale,)
        case Purged():
            kinds = (Purge,)
        case Dropped():
            kinds = (Drop,)
        case Inserted():
            kinds = (Insert,)
        case RecordsDeleted():
            gone = all(
                key not in state.records or state.records[key].is_gone(entry.time_us)
                for key in event.keys
            )
            if gone:
                return ""
            kinds = (DeleteRecord,)
        case _:
            raise AssertionError(event)
    return "" if any(isinstance(one, kinds) for one in operations) else "nobody requested it"


# -- equality ------------------------------------------------------------------


def same_events(one: Sequence[Event], other: Sequence[Event]) -> bool:
    return len(one) == len(other) and list(map(_plain, one)) == list(map(_plain, other))


def _plain(event: Event) -> Event:
    """Return the event without the unspecified parts: the order of lines and of lost jobs."""
    if isinstance(event, Buried):
        return replace(event, ids=tuple(sorted(event.ids)))
    if isinstance(event, Claimed):
        return replace(event, served=None)
    if isinstance(event, Added):
        return Added(replace(event.job, seq=0))
    return event


def same(one: Any, other: Any) -> bool:
    """True if two answers are equal; errors must have the same class and message."""
    if isinstance(one, CasqueError):
        return type(one) is type(other) and str(one) == str(other)
    if isinstance(one, list | tuple):
        return (
            type(one) is type(other)
            and len(one) == len(other)
            and all(same(mine, yours) for mine, yours in zip(one, other, strict=True))
        )
    return bool(one == other)


def job_line(job: Job) -> str:
    return f"{job.id[-6:]} {job.status} token {job.token}"
