"""Stored job: a whole job as a snapshot and the event `Inserted` store it."""

from __future__ import annotations

import re
from operator import attrgetter
from sys import intern

import msgspec

from casque.job import Attempt, HeaderPairs, Job, JobStatus
from casque.stores.ledger.apart_payload import StoredReference, from_stored_payload

_is_uuid = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
"""True for a canonical UUID: neither capitals nor spaces."""


class StoredJob(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The fields of a job. Those that have a default may be missing at the end of the array."""

    id: bytes
    entrypoint: str
    payload: bytes | StoredReference
    queue: str
    priority: int
    status: JobStatus
    attempts: int
    max_attempts: int
    token: int
    created_us: int
    run_us: int
    updated_us: int
    seq: int = 0
    """0 in an event: the job gets its place when it is inserted."""
    retain_us: int | None = None
    timeout_us: int | None = None
    worker: str | None = None
    claimed_us: int | None = None
    heartbeat_us: int | None = None
    lease_until_us: int | None = None
    finished_us: int | None = None
    expires_us: int | None = None
    error: str | None = None
    result: bytes | None = None
    progress: float | None = None
    note: str | None = None
    output: bytes | None = None
    history: tuple[Attempt, ...] = ()
    depth: int = 0
    chain: tuple[str, ...] = ()
    header_pairs: HeaderPairs = ()


_FIELDS = StoredJob.__struct_fields__[1:]
_values_of = attrgetter(*_FIELDS)


def to_stored(job: Job) -> StoredJob:
    return StoredJob(packed(job.id), *_values_of(job))


def from_stored(stored: StoredJob) -> Job:
    values = dict(zip(_FIELDS, _values_of(stored), strict=True))
    # One object for all jobs of a queue, and for equal times of a job.
    values["queue"], values["entrypoint"] = intern(stored.queue), intern(stored.entrypoint)
    values["payload"] = from_stored_payload(stored.payload)
    for name in ("run_us", "updated_us"):
        if values[name] == stored.created_us:
            values[name] = stored.created_us
    return Job(id=unpacked(stored.id), **values)


def packed(id: str) -> bytes:
    """Encode an id. A canonical UUID becomes a NUL, which no other id contains, and 16 bytes."""
    return b"\0" + bytes.fromhex(id.replace("-", "")) if _is_uuid(id) else id.encode()


def unpacked(id: bytes) -> str:
    if id[:1] != b"\0":
        return id.decode()
    digits = id[1:].hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
