"""Answers: the data stored with a remote batch, so that a repeat of it can be answered.

A client that did not get a reply sends its batch again, perhaps to a server that
started meanwhile. Most of an answer follows from the request and the time of the
commit. The store keeps the rest: the refusals, the ids that already existed, the
issued tokens, the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from casque.errors import (
    CASConflictError,
    CasqueError,
    InvalidError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
)
from casque.job import Job
from casque.record import SCHEDULE, Record
from casque.rules.additions import new_job
from casque.rules.decide import Leased
from casque.rules.operations import (
    Ack,
    Batch,
    DeleteRecord,
    Dequeue,
    Drop,
    Enqueue,
    Heartbeat,
    Hold,
    Insert,
    Operation,
    Purge,
    PutRecord,
    RequeueStale,
    Tick,
)

ANSWERS_BYTES = 4096
"""The size limit of the answers of one batch."""

_TOO_LONG = msgspec.msgpack.encode(None)
_REFUSALS: dict[str, type[CasqueError]] = {
    one.__name__: one for one in (CASConflictError, InvalidError, JobNotFoundError, LeaseLostError)
}


class JobReads(NamedTuple):
    """The reads of a store that are needed to rebuild a stored answer."""

    job: Callable[[str], Job | None]
    """Returns the job with this id, as a reader sees it now."""
    held: Callable[[Sequence[int], Sequence[int]], list[Job]]
    """Returns those jobs of these `seq` that are in progress under these tokens."""
    record: Callable[[str, str], Record | None]
    """Returns the record of this kind and name, as it is now."""


class _Kept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The stored answer to one operation: its error class if refused, else its numbers."""

    index: int
    refusal: str
    numbers: tuple[int, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Kept] | None).decode


def kept_answers(operations: Sequence[Operation], outcomes: Sequence[Any]) -> bytes:
    """Encode the part of these outcomes that must be stored."""
    kept = [
        _Kept(index, type(outcome).__name__ if isinstance(outcome, CasqueError) else "", numbers)
        for index, (operation, outcome) in enumerate(zip(operations, outcomes, strict=True))
        if (numbers := _numbers(operation, outcome)) or isinstance(outcome, CasqueError)
    ]
    content = _encode(kept)
    return content if len(content) <= ANSWERS_BYTES else _TOO_LONG


def _numbers(operation: Operation, outcome: Any) -> tuple[int, ...]:
    match operation:
        case _ if isinstance(outcome, CasqueError):
            return ()
        case Enqueue():
            return tuple(place for place, job in enumerate(outcome) if job.duplicate)
        case Dequeue():
            return tuple(number for job in outcome.jobs for number in (job.seq, job.token))
        case Heartbeat():
            return tuple(n for n, one in enumerate(outcome) if isinstance(one, CasqueError))
        case PutRecord() | Tick():
            return (outcome.version,)
        case Insert():
            return tuple(place for place, is_new in enumerate(outcome) if not is_new)
        case RequeueStale() | Purge() | Drop():
            return (outcome,)
        case _:
            return ()


def answer_again(batch: Batch, answers: bytes, time_us: int, reads: JobReads) -> list[Any]:
    """The outcomes of a stored batch, rebuilt from the `answers` that were kept at `time_us`.

    Raises StorageError if the answers were too large to keep.
    """
    kept = _decode(answers)
    if kept is None:
        raise StorageError(
            f"commit {batch.number} of writer {batch.writer} is applied, but its results were too "
            "large to keep. Look the jobs up by id.",
            outcome_unknown=True,
            is_stored=True,
        )
    by_index = {one.index: one for one in kept}
    return [
        _outcome(operation, by_index.get(index), time_us, reads)
        for index, operation in enumerate(batch.operations)
    ]


def _outcome(operation: Any, kept: _Kept | None, time_us: int, reads: JobReads) -> Any:
    numbers = () if kept is None else kept.numbers
    if kept is not None and kept.refusal:
        return _refusal(operation, kept.refusal)
    match operation:
        case Enqueue():
            return [
                _duplicate(reads.job(request.id) or new_job(request, time_us))
                if place in numbers
                else new_job(request, time_us)
                for place, request in enumerate(operation.jobs)
            ]
        case Insert():
            return [place not in numbers for place in range(len(operation.jobs))]
        case Dequeue():
            return Leased(reads.held(numbers[::2], numbers[1::2]), None)
        case Ack() | DeleteRecord():
            return None
        case RequeueStale() | Purge() | Drop():
            return numbers[0] if numbers else 0
        case PutRecord():
            return _record(operation, numbers[0], time_us, reads)
        case Tick():
            return _schedule(operation, numbers[0], reads)
        case Heartbeat():
            return [
                _beat(reads, hold, is_lost=place in numbers)
                for place, hold in enumerate(operation.holds)
            ]
        case _:
            return reads.job(operation.id) or JobNotFoundError(
                f"job {operation.id}: the operation was applied; the job is removed since.",
                job_id=operation.id,
            )


def _duplicate(job: Job) -> Job:
    return replace(job, duplicate=True)


def _beat(reads: JobReads, hold: Hold, *, is_lost: bool) -> Job | CasqueError:
    job_id, token = hold
    job = None if is_lost else reads.job(job_id)
    if job is not None and job.token == token:
        return job
    return LeaseLostError(f"job {job_id}: this caller no longer holds the job.", job_id=job_id)


def _record(operation: PutRecord, version: int, time_us: int, reads: JobReads) -> Any:
    """Return the record as it was put, or a CASConflictError if it could expire and has changed.

    A record that can expire is a claim, such as a lock: another process may hold it by now.
    """
    until = None if operation.ttl_us is None else time_us + operation.ttl_us
    record = Record(operation.kind, operation.name, operation.value, version, until)
    if until is None or reads.record(record.kind, record.name) == record:
        return record
    return CASConflictError(
        f"{record.kind} {record.name!r} was put, but has since expired or changed. Read it again."
    )


def _schedule(operation: Tick, version: int, reads: JobReads) -> Record | CasqueError:
    record = reads.record(SCHEDULE, operation.name)
    if record is not None and record.version == version:
        return record
    return CASConflictError(
        f"schedule {operation.name!r}: the tick has fired, and the schedule has changed since. "
        "Read it again."
    )


def _refusal(operation: Any, kind: str) -> CasqueError:
    job_id = getattr(operation, "id", None)
    what = type(operation).__name__.lower() if job_id is None else f"job {job_id}"
    return _REFUSALS.get(kind, CasqueError)(
        f"{what}: refused ({kind}). The reason was in a reply that was lost; read the job or the "
        "record again.",
        job_id=job_id,
    )
