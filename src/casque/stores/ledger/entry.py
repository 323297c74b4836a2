"""Entry: one committed batch of events as bytes, and back.

An entry says who wrote it, when, and which entry it follows: `previous` is the
digest that the one before it ends with, so a log is a chain, and a page from
another log does not fit in. It ends with its own digest: what was cut short or
changed is told from what was written. A golden file in tests/ledger holds the
format still.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from casque.errors import CorruptError
from casque.job import Job
from casque.operations import (
    Added,
    Buried,
    Cancelled,
    Claimed,
    Completed,
    Died,
    Dropped,
    Event,
    Failed,
    Purged,
    RecordPut,
    RecordsDeleted,
    Released,
    Removed,
    Renewed,
    Requeued,
    Retried,
)

FORMAT = 1

FIRST = bytes(16)
"""What the first entry of a log follows."""

_MAGIC = b"casque "
_HEAD = _MAGIC + b"%d\n"
_DIGEST_BYTES = 16


class Entry(NamedTuple):
    """One committed batch."""

    number: int
    """Its place in the log, from 1."""
    writer: str
    commit: int
    """Which of its writer's commits it is."""
    time_us: int
    previous: bytes
    """The digest of the entry before it."""
    events: list[Event]


class _Added(msgspec.Struct, frozen=True, tag="Added", array_like=True, gc=False):
    """A job as it is when it is new: all else is empty, and its times are the entry's."""

    id: str
    queue: str
    entrypoint: str
    payload: bytes
    priority: int
    max_attempts: int
    run_us: int | None = None
    retain_us: int | None = None
    timeout_us: int | None = None
    depth: int = 0
    chain: tuple[str, ...] = ()


_Stored = (
    _Added
    | Claimed
    | Completed
    | Removed
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
)


class _Body(msgspec.Struct, array_like=True):
    number: int
    writer: str
    commit: int
    time_us: int
    previous: bytes
    events: list[_Stored]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Body)


def encode(entry: Entry) -> bytes:
    time = entry.time_us
    body = _Body(
        entry.number,
        entry.writer,
        entry.commit,
        time,
        entry.previous,
        [_to_stored(event, time) for event in entry.events],
    )
    content = _HEAD % FORMAT + _encode(body)
    return content + _digest(content)


def decode(content: bytes, name: str) -> Entry:
    """The entry in `content`. Raises CorruptError, naming the object, when it is not one."""
    _check_head(content, name)
    head = len(_HEAD % FORMAT)
    if _digest(content[:-_DIGEST_BYTES]) != digest_of(content):
        raise _corrupt(name, "it was cut short or changed")
    try:
        body = _decoder.decode(content[head:-_DIGEST_BYTES])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _corrupt(name, str(error)) from error
    time = body.time_us
    events = [_from_stored(event, time) for event in body.events]
    return Entry(body.number, body.writer, body.commit, time, body.previous, events)


def digest_of(content: bytes) -> bytes:
    """What tells this entry from every other."""
    return content[-_DIGEST_BYTES:]


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _check_head(content: bytes, name: str) -> None:
    if not content.startswith(_MAGIC):
        raise _corrupt(name, "it is not an entry of a log of ours")
    number = content[len(_MAGIC) :].partition(b"\n")[0]
    if number.isdigit() and int(number) > FORMAT:
        raise CorruptError(
            f"{name} was written by a newer casque: format {int(number)}, and this one reads up to "
            f"{FORMAT}. Nothing was overwritten. Upgrade casque here."
        )
    if number != b"%d" % FORMAT:
        raise _corrupt(name, "its first line is damaged")


def _corrupt(name: str, what: str) -> CorruptError:
    return CorruptError(
        f"{name} cannot be read: {what}. Nothing was overwritten. If another program writes there, "
        "give it another prefix; if the object was damaged, restore it from a copy."
    )


def _to_stored(event: Event, time: int) -> _Stored:
    if not isinstance(event, Added):
        return event
    job = event.job
    return _Added(
        job.id,
        job.queue,
        job.entrypoint,
        job.payload,
        job.priority,
        job.max_attempts,
        None if job.run_us == time else job.run_us,
        job.retain_us,
        job.timeout_us,
        job.depth,
        job.chain,
    )


def _from_stored(stored: _Stored, time: int) -> Event:
    if not isinstance(stored, _Added):
        return stored
    return Added(
        Job(
            id=stored.id,
            queue=stored.queue,
            entrypoint=stored.entrypoint,
            payload=stored.payload,
            priority=stored.priority,
            max_attempts=stored.max_attempts,
            created_us=time,
            updated_us=time,
            run_us=time if stored.run_us is None else stored.run_us,
            retain_us=stored.retain_us,
            timeout_us=stored.timeout_us,
            depth=stored.depth,
            chain=stored.chain,
        )
    )
