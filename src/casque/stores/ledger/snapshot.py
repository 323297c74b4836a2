"""Snapshot: the whole state after one entry, as a manifest and parts.

A part is a sequence of slices, each with the length of its bytes before it. Slices are small, so
that a process can encode one between two commits. The manifest names the parts, with their sizes
and digests, and has the counters of the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import msgspec

from casque.job import Job
from casque.record import Record
from casque.rules.state import State, WriterRow
from casque.stores.ledger.apart_payload import to_stored_payload
from casque.stores.ledger.framing import Kind, digest_of, seal, unreadable, unseal
from casque.stores.ledger.stored_job import StoredJob, from_stored, packed, to_stored, unpacked

PART_BYTES = 4 * 1024 * 1024
"""A part is ended once it has this size."""
_SLICE = 200
"""How many jobs, records, writers or lines are encoded at once: in less than a millisecond."""

_MANIFEST = Kind(b"csm", 1, "the manifest of a casque snapshot")
_PART = Kind(b"csp", 1, "a part of a casque snapshot")
_LENGTH_BYTES = 4

T = TypeVar("T")


class Part(msgspec.Struct, frozen=True, array_like=True):
    """An object that belongs to a snapshot, as its manifest names it."""

    name: str
    size: int
    digest: bytes

    @classmethod
    def of(cls, name: str, content: bytes) -> Part:
        return cls(name, len(content), digest_of(content))

    def check(self, content: bytes, name: str) -> None:
        """Raise CorruptError if the object `name` is not the one that was written."""
        if (len(content), digest_of(content)) != (self.size, self.digest):
            raise unreadable(name, "it is not the part that the manifest names")
        unseal(_PART, content, name)


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """The counters of a state. Two processes with the same log have the same."""

    version: int
    token: int
    seq: int
    turn: int

    @classmethod
    def of(cls, state: State) -> Counters:
        return cls(state.version, state.token, state.seq, state.turn)


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The object that makes a snapshot: without it, the parts are nothing."""

    number: int
    """The last entry that the snapshot includes."""
    entry_digest: bytes
    time_us: int
    """The time of that entry."""
    counters: Counters
    counts: list[int]
    """How many jobs are in each state: see `casque.rules.counts`."""
    writer: str
    """Identifies the process that wrote the snapshot."""
    parts: list[Part]


class _Writer(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    writer: bytes
    number: int
    seen_us: int
    answers: bytes = b""


class _Line(msgspec.Struct, frozen=True, array_like=True, gc=False):
    queue: str
    entrypoint: str
    turn: int


class _Slice(msgspec.Struct, array_like=True, omit_defaults=True):
    jobs: Sequence[StoredJob] = ()
    lines: Sequence[_Line] = ()
    writers: Sequence[_Writer] = ()
    records: Sequence[Record] = ()


_encode = msgspec.msgpack.Encoder(enc_hook=to_stored_payload).encode
_decode_slice = msgspec.msgpack.Decoder(_Slice).decode
_decode_manifest = msgspec.msgpack.Decoder(Manifest).decode


class Frozen(NamedTuple):
    """A state as it was after one entry. Jobs are immutable, so the copy is shallow and fast."""

    number: int
    entry_digest: bytes
    time_us: int
    counters: Counters
    counts: list[int]
    jobs: list[Job]
    lines: list[_Line]
    writers: list[tuple[str, WriterRow]]
    records: list[Record]

    @classmethod
    def of(cls, state: State, number: int, entry_digest: bytes) -> Frozen:
        return cls(
            number,
            entry_digest,
            state.time_us,
            Counters.of(state),
            list(state.tally.counts),
            list(state.jobs.values()),
            [_Line(line.queue, line.entrypoint, line.turn) for line in state.lines()],
            list(state.writers.items()),
            list(state.records.values()),
        )

    def manifest(self, writer: str, parts: list[Part]) -> Manifest:
        return Manifest(
            self.number,
            self.entry_digest,
            self.time_us,
            self.counters,
            self.counts,
            writer,
            parts,
        )


def encode_manifest(manifest: Manifest) -> bytes:
    return seal(_MANIFEST, _encode(manifest))


def decode_manifest(content: bytes, name: str) -> Manifest:
    """Return the manifest in `content`. Raises CorruptError, with the object's name, if invalid."""
    body = unseal(_MANIFEST, content, name)
    try:
        return _decode_manifest(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise unreadable(name, str(error)) from error


def encode_parts(frozen: Frozen) -> Iterator[bytes | None]:
    """Yield the parts of a snapshot; and None after each slice, for the caller to pause."""
    slices: list[bytes] = []
    size = 0
    for one in _slices(frozen):
        content = _encode(one)
        slices += len(content).to_bytes(_LENGTH_BYTES), content
        size += len(content)
        yield None
        if size >= PART_BYTES:
            yield seal(_PART, b"".join(slices))
            slices.clear()
            size = 0
    if slices:
        yield seal(_PART, b"".join(slices))


def _slices(frozen: Frozen) -> Iterator[_Slice]:
    for records in _chunks(frozen.records):
        yield _Slice(records=records)
    for writers in _chunks(frozen.writers):
        rows = [_Writer(packed(name), *row) for name, row in writers]
        yield _Slice(writers=rows)
    for jobs in _chunks(frozen.jobs):
        yield _Slice(jobs=[to_stored(job) for job in jobs])
    for lines in _chunks(frozen.lines):
        yield _Slice(lines=lines)


def _chunks(values: list[T]) -> Iterator[list[T]]:
    return (values[place : place + _SLICE] for place in range(0, len(values), _SLICE))


class Builder:
    """Builds a state from the parts of a snapshot, in their order."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._unread = iter(manifest.parts)
        self._state = State()
        self._lines: list[Sequence[_Line]] = []

    def add(self, content: bytes, name: str) -> None:
        """Take the next part. Raises CorruptError if it is not the one that was written."""
        next(self._unread).check(content, name)
        try:
            for one in _read_slices(content, name):
                self._take(one)
        except (msgspec.DecodeError, ValueError) as error:
            raise unreadable(name, str(error)) from error

    def finish(self) -> State:
        """Return the state after the entry of the snapshot."""
        state, counters = self._state, self._manifest.counters
        state.settle()
        for line in chain.from_iterable(self._lines):
            state.restore_line(line.queue, line.entrypoint, line.turn)
        state.version, state.token = counters.version, counters.token
        state.seq, state.turn = counters.seq, counters.turn
        state.begin(self._manifest.time_us)
        state.end()
        return state

    def _take(self, one: _Slice) -> None:
        state = self._state
        state.begin(self._manifest.time_us)  # so that it remembers no more than this slice
        for record in one.records:
            state.put_record(record)
        for row in one.writers:
            state.restore_writer(
                unpacked(row.writer), WriterRow(row.number, row.seen_us, row.answers)
            )
        for job in one.jobs:
            state.put(from_stored(job))
        self._lines.append(one.lines)


def _read_slices(content: bytes, name: str) -> Iterator[_Slice]:
    body = unseal(_PART, content, name)
    place = 0
    while place < len(body):
        begin = place + _LENGTH_BYTES
        place = begin + int.from_bytes(body[place:begin])
        yield _decode_slice(body[begin:place])
