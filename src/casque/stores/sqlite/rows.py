"""Rows: converts jobs and records to rows and back; and the statements, by name."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from casque.job import Attempt, HeaderPairs, Job, JobStatus
from casque.record import Record
from casque.rules.operations import Request
from casque.rules.retention import KEPT_PAYLOAD_BYTES
from casque.system.ids import order_of

COLUMNS = (
    *("seq", "id", "queue", "entrypoint", "priority", "stage", "due_us", "attempts"),
    *("max_attempts", "token", "created_us", "run_us", "updated_us", "worker", "claimed_us"),
    *("heartbeat_us", "finished_us", "expires_us", "retain_us", "timeout_us", "depth", "chain"),
    *("headers", "error", "result", "progress", "note", "output", "history", "payload"),
)

CLAIMED_COLUMNS = (
    *("token", "queue", "entrypoint", "seq", "id", "priority", "attempts", "max_attempts"),
    *("created_us", "run_us", "retain_us", "timeout_us", "depth", "chain", "headers", "error"),
    *("history", "payload"),
)
"""The columns of a claimed job that the claim itself does not set."""
_KNOWN_COLUMNS = 3
"""The fast claim knows the first of them: the token and the line."""

_LEASE = (
    "stage = CASE WHEN attempts + 1 >= max_attempts THEN 3 ELSE 2 END, attempts = attempts + 1, "
    "worker = ?3, due_us = ?5, claimed_us = ?4, heartbeat_us = ?4, updated_us = ?4, "
    "progress = NULL, note = NULL, output = NULL"
)
"""The columns that a claim changes, besides the token."""

QUEUED, TRIED, HELD, LAST_HELD, COMPLETED, DEAD, CANCELLED = range(7)
"""The stages of a job: its status, split further where a count or a claim needs it."""

_STATUSES = (
    *(JobStatus.QUEUED, JobStatus.QUEUED, JobStatus.IN_PROGRESS, JobStatus.IN_PROGRESS),
    *(JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED),
)
FINISHED = {
    JobStatus.COMPLETED: COMPLETED,
    JobStatus.DEAD: DEAD,
    JobStatus.CANCELLED: CANCELLED,
}

_FOREVER = 2**63 - 1
STORE = ""
"""The writer whose row has the counters of the store itself."""
"""The `expires_us` of a finished job that is kept for ever: NULL means that it is not finished."""

_encode = msgspec.json.Encoder().encode
_decode_history = msgspec.json.Decoder(tuple[Attempt, ...]).decode
_decode_chain = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


def encode_chain(chain: tuple[str, ...]) -> str:
    """Encode the entrypoints of the jobs that led to a job. `chain` must not be empty."""
    return _encode(chain).decode()


def encode_headers(pairs: HeaderPairs) -> str:
    """The headers of a job, encoded for the column `headers`. Not for empty headers."""
    return _encode(dict(pairs)).decode()


class Connection(Protocol):
    """The methods that we use of our connection or the caller's."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor: ...

    def executemany(self, sql: str, rows: Any, /) -> sqlite3.Cursor: ...


def _text(name: str) -> str:
    # importlib.resources would take longer to load than this whole package.
    return Path(__file__).with_name(name).read_text("utf-8")


def _load() -> dict[str, str]:
    text = _text("queries.sql")
    named = (part.partition("\n") for part in text.split("-- name: ")[1:])
    columns, claimed = ", ".join(COLUMNS), ", ".join(CLAIMED_COLUMNS)
    # The text after a statement is the comment of the next one.
    return {
        name: body.partition(";")[0]
        .strip()
        .replace("{columns}", columns)
        .replace("{claimed}", claimed)
        .replace("{claimed_fast}", ", ".join(CLAIMED_COLUMNS[_KNOWN_COLUMNS:]))
        .replace("{lease}", _LEASE)
        .replace("{kept_payload}", str(KEPT_PAYLOAD_BYTES))
        for name, _, body in named
    }


STATEMENTS = _load()


def schema() -> str:
    """The script that creates the tables of a new queue."""
    return _text("schema.sql")


def stage_of(job: Job) -> int:
    if job.status is JobStatus.QUEUED:
        return TRIED if job.attempts else QUEUED
    if job.status is JobStatus.IN_PROGRESS:
        return HELD if job.attempts < job.max_attempts else LAST_HELD
    return FINISHED[job.status]


def job_of(row: tuple[Any, ...]) -> Job:
    # fmt: off
    (
        seq, id_, queue, entrypoint, priority, stage, due_us, attempts, max_attempts, token,
        created_us, run_us, updated_us, worker, claimed_us, heartbeat_us, finished_us, expires_us,
        retain_us, timeout_us, depth, chain, headers, error, result, progress, note, output,
        history, payload,
    ) = row
    # fmt: on
    return Job(
        id=id_,
        entrypoint=entrypoint,
        payload=payload,
        queue=queue,
        priority=priority,
        status=_STATUSES[stage],
        attempts=attempts,
        max_attempts=max_attempts,
        token=token,
        worker=worker,
        error=error,
        result=result,
        progress=progress,
        note=note,
        output=output,
        history=() if history is None else _decode_history(history),
        depth=depth,
        chain=() if chain is None else _decode_chain(chain),
        header_pairs=() if headers is None else tuple(_decode_headers(headers).items()),
        seq=seq,
        created_us=created_us,
        run_us=created_us if run_us is None else run_us,
        updated_us=created_us if updated_us is None else updated_us,
        claimed_us=claimed_us,
        heartbeat_us=heartbeat_us,
        lease_until_us=due_us if stage in (HELD, LAST_HELD) else None,
        finished_us=finished_us,
        expires_us=None if expires_us == _FOREVER else expires_us,
        retain_us=retain_us,
        timeout_us=timeout_us,
    )


def claimed_of(row: tuple[Any, ...], by: tuple[str, int, int]) -> Job:
    """The job in a row of a claim. `by` is the worker, the time, and the end of the lease."""
    # fmt: off
    (
        token, queue, entrypoint, seq, id_, priority, attempts, max_attempts, created_us, run_us,
        retain_us, timeout_us, depth, chain, headers, error, history, payload,
    ) = row
    # fmt: on
    worker, now, until = by
    return Job(
        id=id_,
        queue=queue,
        entrypoint=entrypoint,
        payload=payload,
        priority=priority,
        status=JobStatus.IN_PROGRESS,
        attempts=attempts,
        max_attempts=max_attempts,
        token=token,
        worker=worker,
        error=error,
        history=() if history is None else _decode_history(history),
        depth=depth,
        chain=() if chain is None else _decode_chain(chain),
        header_pairs=() if headers is None else tuple(_decode_headers(headers).items()),
        seq=seq,
        created_us=created_us,
        run_us=created_us if run_us is None else run_us,
        updated_us=now,
        claimed_us=now,
        heartbeat_us=now,
        lease_until_us=until,
        retain_us=retain_us,
        timeout_us=timeout_us,
    )


def claimed_jobs(rows: list[tuple[Any, ...]], by: tuple[str, int, int]) -> list[Job]:
    """The jobs in the rows of a claim, in the order of their tokens."""
    if len(rows) > 1:
        rows.sort(key=_token_of)
    return [claimed_of(row, by) for row in rows]


_token_of = itemgetter(CLAIMED_COLUMNS.index("token"))


def update_of(job: Job, line: int | None) -> tuple[Any, ...]:
    """The parameters of `update_job` for this job."""
    return (
        job.seq,
        line,
        stage_of(job),
        job.due_us,
        job.attempts,
        job.token,
        job.run_us,
        job.updated_us,
        job.worker,
        job.claimed_us,
        job.heartbeat_us,
        job.finished_us,
        _FOREVER if job.expires_us is None and job.status in FINISHED else job.expires_us,
        job.error,
        job.result,
        job.progress,
        job.note,
        job.output,
        _encode(job.history).decode() if job.history else None,
        job.payload,
    )


def addition_of(
    request: Request, seq: int, *, named: bool, line: int, due: int, now: int
) -> tuple[Any, ...]:
    """The parameters of `add` for a new job."""
    return (
        seq,
        request.id,
        named,
        request.queue,
        request.entrypoint,
        line,
        request.priority,
        due,
        request.max_attempts,
        now,
        None if due == now else due,
        request.retain_us,
        request.timeout_us,
        request.depth,
        encode_chain(request.chain) if request.chain else None,
        encode_headers(request.header_pairs) if request.header_pairs else None,
        request.payload,
    )


def copy_of(job: Job, seq: int, line: int | None) -> tuple[Any, ...]:
    """The parameters of `insert_job` for a job of another store."""
    return (
        *update_of(replace(job, seq=seq), line),
        job.id,
        job.queue,
        job.entrypoint,
        job.priority,
        job.max_attempts,
        job.created_us,
        job.retain_us,
        job.timeout_us,
        job.depth,
        encode_chain(job.chain) if job.chain else None,
        encode_headers(job.header_pairs) if job.header_pairs else None,
    )


def plain_addition_of(request: Request, line: int, now: int) -> tuple[Any, ...] | None:
    """The parameters of `add_plain` for a new job; None if the job needs other columns."""
    if (
        request.minted
        and request.run_us is None
        and not request.delay_us
        and request.retain_us is None
        and request.timeout_us is None
        and not request.depth
        and not request.header_pairs
    ):
        return (
            request.order,
            request.id,
            request.queue,
            request.entrypoint,
            line,
            request.priority,
            now,
            request.max_attempts,
            request.payload,
        )
    return None


def find_job(execute: Callable[..., Any], job_id: str) -> Job | None:
    """The job with this id, whether generated or chosen by a caller."""
    row, order = None, order_of(job_id)
    if order is not None:
        row = execute(STATEMENTS["job_minted"], (job_id, order)).fetchone()
    if row is None:
        row = execute(STATEMENTS["job_named"], (job_id,)).fetchone()
    return None if row is None else job_of(row)


def record_of(row: tuple[Any, ...]) -> Record:
    return Record(*row)
