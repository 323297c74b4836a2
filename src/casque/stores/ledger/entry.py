"""Entry: encodes one commit, with its events, as bytes, and decodes it.

An entry holds the writers of its batches and its time. `previous` is the digest at the end of the
entry before it. So a log is a chain, and an entry from another log does not fit in. An entry ends
with its own digest, which detects truncated or changed bytes. A golden file in tests/ledger pins
the format.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import intern
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import astuple

from casque.job import HeaderPairs, Job, Stats
from casque.rules.operations import (
    Added,
    BatchStamp,
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
from casque.stores.ledger.apart_payload import (
    StoredReference,
    from_stored_payload,
    to_stored_payload,
)
from casque.stores.ledger.framing import NO_DIGEST, Kind, seal, unreadable, unseal
from casque.stores.ledger.stored_job import StoredJob, from_stored, packed, to_stored, unpacked
from casque.stores.ledger.summary import Summary

FORMAT = 1

_ENTRY = Kind(b"csq", FORMAT, "a casque log entry")

FIRST = NO_DIGEST
"""The `previous` of the first entry of a log."""


class Guest(NamedTuple):
    """A waiting process that the next entry is reserved for: the other processes hold back."""

    word: str
    """The id under which it waits: see `pacing`."""
    span_us: int
    """How long the others hold back."""


class Entry(NamedTuple):
    """One commit."""

    number: int
    """Its place in the log, from 1."""
    stamps: list[BatchStamp]
    """The batches that it stores."""
    time_us: int
    previous: bytes
    """The digest of the entry before it."""
    events: list[Event]
    guest: Guest | None = None
    """The process that should write the next entry. This is advice only."""
    summary: Summary | None = None
    """The counts after this entry, if the writer knows them."""


# The most frequent events are stored in fewer bytes than the others: a UUID as its 16 bytes, a
# time as its distance from the entry's time.


class _Added(msgspec.Struct, frozen=True, tag=1, array_like=True, gc=False):
    """A new job. Fields of `Job` not listed here are the default or the entry's time."""

    id: bytes
    queue: str
    entrypoint: str
    payload: bytes | StoredReference
    priority: int
    max_attempts: int
    run_in_us: int = 0
    retain_us: int | None = None
    timeout_us: int | None = None
    depth: int = 0
    chain: tuple[str, ...] = ()
    headers: HeaderPairs = ()


class _Claimed(msgspec.Struct, frozen=True, tag=2, array_like=True, gc=False):
    ids: tuple[bytes, ...]
    worker: str
    first_token: int
    lease_us: int
    served: tuple[tuple[str, str], ...] | None = None


class _Removed(msgspec.Struct, frozen=True, tag=4, array_like=True, gc=False):
    ids: tuple[bytes, ...]


class _Inserted(msgspec.Struct, frozen=True, tag=20, array_like=True, gc=False):
    jobs: tuple[StoredJob, ...]
    token: int


class _Emptied(msgspec.Struct, frozen=True, tag=3, array_like=True, gc=False):
    """A completed job without its payload, as by versions that dropped every payload.

    It is only written: it is read as `Completed`.
    """

    id: str
    result: bytes | None
    expires_us: int


_Stored = (
    _Added
    | _Claimed
    | Completed
    | _Removed
    | Failed
    | Died
    | Buried
    | Requeued
    | Released
    | Renewed
    | Cancelled
    | Retried
    | Purged
    | Dropped
    | RecordPut
    | RecordsDeleted
    | _Inserted
)


class _StoredStamp(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    writer: bytes
    number: int
    answers: bytes = b""


class _Body(msgspec.Struct, array_like=True):
    number: int
    stamps: list[_StoredStamp]
    time_us: int
    previous: bytes
    events: list[_Stored]
    guest: tuple[bytes, int] | None = None


class _WholeBody(_Body, array_like=True):
    summary: tuple[tuple[int, int, int, int, int, int, int], int] | None = None


_encode = msgspec.msgpack.Encoder(enc_hook=to_stored_payload).encode
_decoder = msgspec.msgpack.Decoder(_WholeBody)


def encode(entry: Entry) -> bytes:
    time = entry.time_us
    body = _Body(
        entry.number,
        [_StoredStamp(packed(one.writer), one.number, one.answers) for one in entry.stamps],
        time,
        entry.previous,
        cast("list[_Stored]", [_to_stored(event, time) for event in entry.events]),
        None if entry.guest is None else (packed(entry.guest.word), entry.guest.span_us),
    )
    if entry.summary is not None:
        stats, until_us = entry.summary
        return seal(_ENTRY, _encode((*astuple(body), (astuple(stats), until_us))))
    return seal(_ENTRY, _encode(body))


def decode(content: bytes, name: str) -> Entry:
    """Return the entry in `content`. Raises CorruptError, with the object's name, if invalid."""
    framed = unseal(_ENTRY, content, name)
    try:
        body = _decoder.decode(framed)
        time = body.time_us
        events = [_from_stored(event, time) for event in body.events]
        stamps = [BatchStamp(unpacked(one.writer), one.number, one.answers) for one in body.stamps]
        guest = None if body.guest is None else Guest(unpacked(body.guest[0]), body.guest[1])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise unreadable(name, str(error)) from error
    summary = None
    if body.summary is not None:
        summary = Summary(Stats(*body.summary[0]), body.summary[1])
    return Entry(body.number, stamps, time, body.previous, events, guest, summary)


def _to_stored(event: Event, time: int) -> _Stored | _Emptied:
    shorten = _SHORTEN.get(type(event))
    return cast("_Stored", event) if shorten is None else shorten(event, time)


def _added(event: Added, time: int) -> _Added:
    job = event.job
    return _Added(
        packed(job.id),
        job.queue,
        job.entrypoint,
        job.payload,
        job.priority,
        job.max_attempts,
        job.run_us - time,
        job.retain_us,
        job.timeout_us,
        job.depth,
        job.chain,
        job.header_pairs,
    )


def _claimed(event: Claimed, time: int) -> _Claimed:
    return _Claimed(
        tuple([packed(id) for id in event.ids]),
        event.worker,
        event.first_token,
        event.lease_until_us - time,
        event.served,
    )


def _completed(event: Completed, _: int) -> Completed | _Emptied:
    if event.keeps_payload:
        return event
    return _Emptied(event.id, event.result, event.expires_us)


def _removed(event: Removed, _: int) -> _Removed:
    return _Removed(tuple([packed(id) for id in event.ids]))


def _inserted(event: Inserted, _: int) -> _Inserted:
    return _Inserted(tuple(map(to_stored, event.jobs)), event.token)


_SHORTEN: dict[type[Event], Callable[[Any, int], _Stored | _Emptied]] = {
    Added: _added,
    Claimed: _claimed,
    Completed: _completed,
    Removed: _removed,
    Inserted: _inserted,
}
"""The events that are stored in another form. The others are stored as they are."""


def _from_stored(stored: _Stored, time: int) -> Event:
    if isinstance(stored, _Added):
        job = Job(
            id=unpacked(stored.id),
            queue=intern(stored.queue),  # one object for all jobs of a queue
            entrypoint=intern(stored.entrypoint),
            payload=from_stored_payload(stored.payload),
            priority=stored.priority,
            max_attempts=stored.max_attempts,
            created_us=time,
            updated_us=time,
            run_us=time + stored.run_in_us if stored.run_in_us else time,
            retain_us=stored.retain_us,
            timeout_us=stored.timeout_us,
            depth=stored.depth,
            chain=stored.chain,
            header_pairs=stored.headers,
        )
        return Added(job)
    if isinstance(stored, _Claimed):
        ids = tuple(map(unpacked, stored.ids))
        until = time + stored.lease_us
        return Claimed(ids, intern(stored.worker), stored.first_token, until, stored.served)
    if isinstance(stored, _Removed):
        return Removed(tuple(map(unpacked, stored.ids)))
    if isinstance(stored, _Inserted):
        return Inserted(tuple(map(from_stored, stored.jobs)), stored.token)
    return stored
