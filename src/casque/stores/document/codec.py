"""codec: a whole state as one readable JSON document, and back.

The format is jqueue's: `version`, and `jobs` with its seven fields. Fields of
casque are added to a job when they are not the default, and all other data is
under `casque`. A file made by jqueue can be opened: missing fields get their
defaults. A golden file in tests/document keeps the format from changing.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from casque.errors import CorruptError
from casque.job import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_QUEUE,
    Attempt,
    Failure,
    Job,
    JobStatus,
)
from casque.record import Record
from casque.rules.state import State, WriterRow
from casque.system.clock import MINUTE_US, to_datetime, to_us

FORMAT = 1
JQUEUE_LEASE_US = 5 * MINUTE_US
"""jqueue stores no lease; it takes a job back this long after its last heartbeat."""

_JQUEUE_WORKER = "jqueue"
_JQUEUE_FIELDS = (
    *("id", "entrypoint", "payload", "status", "priority", "created_at", "heartbeat_at"),
)


class _Attempt(msgspec.Struct, omit_defaults=True):
    number: int
    worker: str
    started_at: str
    ended_at: str
    failure: Failure | None = None


class _Job(msgspec.Struct, omit_defaults=True):
    id: str
    entrypoint: str
    payload: bytes
    status: JobStatus
    priority: int
    created_at: str
    heartbeat_at: str | None
    queue: str = DEFAULT_QUEUE
    seq: int = 0
    run_at: str | None = None
    updated_at: str | None = None
    attempts: int = 0
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    token: int = 0
    worker: str | None = None
    claimed_at: str | None = None
    lease_until: str | None = None
    finished_at: str | None = None
    expires_at: str | None = None
    retain_us: int | None = None
    timeout_us: int | None = None
    error: str | None = None
    result: bytes | None = None
    progress: float | None = None
    note: str | None = None
    output: bytes | None = None
    depth: int = 0
    chain: tuple[str, ...] = ()
    headers: dict[str, str] | None = None
    history: tuple[_Attempt, ...] = ()


class _Record(msgspec.Struct, omit_defaults=True):
    kind: str
    name: str
    value: bytes
    version: int
    expires_at: str | None = None


class _Line(msgspec.Struct):
    queue: str
    entrypoint: str
    turn: int


class _Writer(msgspec.Struct, omit_defaults=True):
    writer: str
    number: int
    at: str
    answers: bytes = b""


class _Ours(msgspec.Struct):
    format: int
    identity: str
    token: int
    seq: int
    turn: int
    time: str
    lines: list[_Line]
    records: list[_Record]
    writers: list[_Writer]


class _Document(msgspec.Struct):
    version: int
    jobs: list[_Job]
    casque: _Ours | None = None


class _Header(msgspec.Struct):
    casque: dict[str, object] | None = None


_decoder = msgspec.json.Decoder(_Document)
_header_decoder = msgspec.json.Decoder(_Header)
_job_decoder = msgspec.json.Decoder(_Job)
_encoder = msgspec.json.Encoder()


def encode(state: State) -> bytes:
    """The state as indented JSON, jobs in enqueue order."""
    document = _Document(
        version=state.version,
        jobs=[_from_job(job) for job in sorted(state.jobs.values(), key=lambda job: job.seq)],
        casque=_Ours(
            format=FORMAT,
            identity=state.identity,
            token=state.token,
            seq=state.seq,
            turn=state.turn,
            time=_text(state.time_us),
            lines=[_Line(line.queue, line.entrypoint, line.turn) for line in state.lines()],
            records=[_from_record(record) for record in state.records.values()],
            writers=[
                _Writer(name, row.number, _text(row.seen_us), row.answers)
                for name, row in state.writers.items()
            ],
        ),
    )
    return msgspec.json.format(_encoder.encode(document), indent=2)


def decode(content: bytes, name: str) -> State:
    """The state in `content`. Raises CorruptError, with the object's name, if it is invalid."""
    if not content:
        raise CorruptError(
            f"{name} exists but is empty, and a queue never is: it was truncated, or another "
            "program made it. Nothing was overwritten. Restore it from a backup, or delete it to "
            "start a new queue."
        )
    try:
        _check_format(content, name)
        document = _decoder.decode(content)
        return _to_state(document)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        # An invalid date raises ValueError; too deeply nested brackets raise RecursionError.
        raise CorruptError(
            f"{name} does not contain a casque queue: {error}. Nothing was overwritten. If the "
            "file belongs to another program, choose another path; if it is damaged, move it away "
            "and restore it from a backup.",
            cause=error,
        ) from error


def encode_job(job: Job) -> bytes:
    """One job on one line, with the fields that it has in a document."""
    return _encoder.encode(_from_job(job))


def encode_job_for_jqueue(job: Job) -> bytes:
    """One job on one line, with the seven fields that jqueue knows."""
    whole = _from_job(job)
    return _encoder.encode({name: getattr(whole, name) for name in _JQUEUE_FIELDS})


def decode_job(line: bytes) -> Job:
    """The job in a line. Raises CorruptError if it is invalid."""
    try:
        return _to_job(_job_decoder.decode(line))
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise CorruptError(f"it is not a job: {error}", cause=error) from error


def _check_format(content: bytes, name: str) -> None:
    ours = _header_decoder.decode(content).casque
    found = FORMAT if ours is None else ours.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise CorruptError(
            f"{name} was written by a newer casque: it has format {found}, and this version reads "
            f"up to {FORMAT}. Nothing was overwritten. Upgrade casque here."
        )


def _to_state(document: _Document) -> State:
    state = State()
    ours = document.casque
    if ours is not None:
        state.identity = ours.identity
        state.token, state.seq, state.turn = ours.token, ours.seq, ours.turn
        state.time_us = _instant(ours.time)
    state.version = document.version
    given = state.token
    for place, stored in enumerate(document.jobs, start=1):
        if stored.id in state.jobs:
            raise ValueError(f"job id {stored.id!r} occurs twice")
        job = _to_job(stored)
        if not job.seq:
            job = msgspec.structs.replace(job, seq=place)
        if job.status is JobStatus.IN_PROGRESS and not job.token:
            given += 1
            job = msgspec.structs.replace(job, token=given)
        state.seq = max(state.seq, job.seq)
        given = max(given, job.token)
        state.put(job)
    if ours is not None:  # otherwise the first token comes later, above those of jqueue's claims
        state.token = given
    state.settle()
    if ours is not None:
        for record in ours.records:
            state.put_record(_to_record(record))
        for line in ours.lines:
            state.restore_line(line.queue, line.entrypoint, line.turn)
        state.turn = ours.turn
        for row in ours.writers:
            last = WriterRow(row.number, _instant(row.at), row.answers)
            state.restore_writer(row.writer, last)
    state.begin(state.time_us)
    state.end()
    return state


def _from_job(job: Job) -> _Job:
    return _Job(
        id=job.id,
        entrypoint=job.entrypoint,
        payload=job.payload,
        status=job.status,
        priority=job.priority,
        created_at=_text(job.created_us),
        heartbeat_at=_maybe_text(job.heartbeat_us),
        queue=job.queue,
        seq=job.seq,
        run_at=None if job.run_us == job.created_us else _text(job.run_us),
        updated_at=None if job.updated_us == job.created_us else _text(job.updated_us),
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        token=job.token,
        worker=job.worker,
        claimed_at=_maybe_text(job.claimed_us),
        lease_until=_maybe_text(job.lease_until_us),
        finished_at=_maybe_text(job.finished_us),
        expires_at=_maybe_text(job.expires_us),
        retain_us=job.retain_us,
        timeout_us=job.timeout_us,
        error=job.error,
        result=job.result,
        progress=job.progress,
        note=job.note,
        output=job.output,
        depth=job.depth,
        chain=job.chain,
        headers=dict(job.header_pairs) if job.header_pairs else None,
        history=tuple(
            _Attempt(
                one.number, one.worker, _text(one.started_us), _text(one.ended_us), one.failure
            )
            for one in job.history
        ),
    )


def _to_job(stored: _Job) -> Job:
    created = _instant(stored.created_at)
    heartbeat = _maybe_instant(stored.heartbeat_at)
    claimed = _maybe_instant(stored.claimed_at)
    lease_until = _maybe_instant(stored.lease_until)
    finished = _maybe_instant(stored.finished_at)
    attempts, worker = stored.attempts, stored.worker
    if stored.status is JobStatus.IN_PROGRESS:
        heartbeat = created if heartbeat is None else heartbeat
        lease_until = heartbeat + JQUEUE_LEASE_US if lease_until is None else lease_until
        claimed = heartbeat if claimed is None else claimed
        attempts, worker = max(attempts, 1), worker or _JQUEUE_WORKER
    elif stored.status is not JobStatus.QUEUED and finished is None:
        finished = created
    return Job(
        id=stored.id,
        entrypoint=stored.entrypoint,
        payload=stored.payload,
        status=stored.status,
        priority=stored.priority,
        created_us=created,
        heartbeat_us=heartbeat,
        queue=stored.queue,
        seq=stored.seq,
        run_us=created if stored.run_at is None else _instant(stored.run_at),
        updated_us=created if stored.updated_at is None else _instant(stored.updated_at),
        attempts=attempts,
        max_attempts=stored.max_attempts,
        token=stored.token,
        worker=worker,
        claimed_us=claimed,
        lease_until_us=lease_until,
        finished_us=finished,
        expires_us=_maybe_instant(stored.expires_at),
        retain_us=stored.retain_us,
        timeout_us=stored.timeout_us,
        error=stored.error,
        result=stored.result,
        progress=stored.progress,
        note=stored.note,
        output=stored.output,
        depth=stored.depth,
        chain=stored.chain,
        header_pairs=tuple(stored.headers.items()) if stored.headers else (),
        history=tuple(
            Attempt(
                one.number,
                one.worker,
                _instant(one.started_at),
                _instant(one.ended_at),
                one.failure,
            )
            for one in stored.history
        ),
    )


def _from_record(record: Record) -> _Record:
    return _Record(
        record.kind, record.name, record.value, record.version, _maybe_text(record.expires_us)
    )


def _to_record(stored: _Record) -> Record:
    return Record(
        stored.kind, stored.name, stored.value, stored.version, _maybe_instant(stored.expires_at)
    )


def _text(us: int) -> str:
    return to_datetime(us).isoformat()


def _maybe_text(us: int | None) -> str | None:
    return None if us is None else _text(us)


def _instant(text: str) -> int:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f"the time {text!r} has no time zone")
    return to_us(instant)


def _maybe_instant(text: str | None) -> int | None:
    return None if text is None else _instant(text)
