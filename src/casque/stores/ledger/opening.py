"""Opening: whether a place is a ledger, or may become one, and its bucket keeps its promises.

A bucket that ignores conditions would let two writers overwrite each other's
jobs without either being told, so every process that writes to a ledger tries
it out first. What it writes for that also tells it the bucket's time. Who only
looks needs no more than the time, and where that can be read it writes nothing:
a folder on a full disk can be looked at.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

import msgspec

from casque.buckets.port import ABSENT, Expect, Found, Timed, Version
from casque.clock import SECOND_US, Stopwatch
from casque.errors import (
    CASConflictError,
    CasqueError,
    CorruptError,
    StorageError,
)
from casque.stores.ledger.asking import Asking
from casque.stores.ledger.buckettime import BucketTime
from casque.stores.ledger.foreign import ForeignError
from casque.stores.ledger.log import number_in
from casque.stores.ledger.pacing import WAITING
from casque.stores.port import COMMIT_DEADLINE_US

FORMAT = 1
MARKER = "format"
PROBES = "probe/"

_SURE_US = SECOND_US
"""A stamp is believed if its object was written within this: who knows when, else?"""
_TRIES = 2
"""Where nothing is written as quickly as that, the quicker of so many is believed."""


_PROBE = re.compile(PROBES + r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def _is_ours(key: str) -> bool:
    return key in (MARKER, WAITING) or bool(number_in(key) or _PROBE.fullmatch(key))


class _Marker(msgspec.Struct):
    casque: str
    format: int


_decode = msgspec.json.Decoder(_Marker).decode
_CONTENT = msgspec.json.encode(_Marker("ledger", FORMAT)) + b"\n"


async def is_ledger(asking: Asking, watch: Stopwatch) -> bool:
    """Whether this is one; False: it may become one. Raises, naming the object, if neither."""
    marker = await asking.get(MARKER, watch)
    if marker is None:
        await _check_is_free(asking, watch)
        return False
    _check_marker(asking, marker)
    return True


async def open_place(asking: Asking, time: BucketTime, watch: Stopwatch) -> None:
    """Make sure that this is a ledger, or make it one. Raises, naming the object, if neither."""
    is_made = await is_ledger(asking, watch)
    await _prove(asking, time, watch)
    if not is_made:
        await _put_surely(asking, MARKER, _CONTENT, watch)
        made = await asking.get(MARKER, watch)
        if made is None:
            raise _unsteady(asking, MARKER)
        _check_marker(asking, made)


async def ask_time(asking: Asking, time: BucketTime, watch: Stopwatch) -> None:
    """Look at the bucket's clock; or write something, and see when the bucket says that was."""
    if isinstance(asking.bucket, Timed):
        time.told(asking.bucket.time_us(), asking.clock.monotonic())
        return
    stamps: list[_Stamp] = []
    while not stamps or (stamps[-1].took_us > _SURE_US and len(stamps) < _TRIES):
        key, begun = await _put_at_once(asking, watch)
        stamps.append(await _read_stamp(asking, key, begun, watch))
        await asking.delete(key, watch)
    best = min(stamps)
    time.told(best.modified_us, best.written_at)


async def _put_at_once(asking: Asking, watch: Stopwatch) -> tuple[str, int]:
    """Write a new object, answered at the first try; its key, and when that try began.

    Of one that was sent twice nobody knows which of the two the bucket has stamped.
    """
    place = 0
    while True:
        key, begun = PROBES + asking.clock.new_id(), asking.clock.monotonic()
        try:
            await asking.put(key, key.encode(), ABSENT)
        except CASConflictError:  # sent twice, by something on the way
            if watch.elapsed_us() > COMMIT_DEADLINE_US:
                raise _unsteady(asking, key) from None
        except StorageError as error:
            if not error.outcome_unknown or watch.elapsed_us() > COMMIT_DEADLINE_US:
                raise
        else:
            return key, begun
        await asking.pause(place)
        place += 1


async def _check_is_free(asking: Asking, watch: Stopwatch) -> None:
    after = ""
    while page := await asking.list("", after, watch):
        for one in page:
            if not _is_ours(one.key):
                raise ForeignError(
                    f"{asking.full_name(one.key)} is not ours: {asking.bucket.name} holds files of "
                    "something else. Nothing was written. Choose a prefix, or a folder, that is "
                    "empty."
                )
        after = page[-1].key
        if any(number_in(one.key) for one in page):
            # Made by another process just now; or else somebody took the marker away.
            if await asking.get(MARKER, watch) is None:
                raise CorruptError(
                    f"{asking.full_name(MARKER)} is gone, though there is a log beside it. Nothing "
                    f"was overwritten. If nothing but {MARKER} was lost, put it back: "
                    f"{_CONTENT.decode().strip()}"
                )
            return


def _check_marker(asking: Asking, found: Found) -> None:
    name = asking.full_name(MARKER)
    try:
        marker = _decode(found.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptError(
            f"{name} is not the mark of a queue of ours ({error}). Nothing was overwritten. If it "
            "is another program's, choose another prefix or folder; if it was damaged, it should "
            f"read {_CONTENT.decode().strip()}",
            cause=error,
        ) from error
    if marker.format > FORMAT:
        raise CorruptError(
            f"{name}: this queue was written by a newer casque: format {marker.format}, and this "
            f"one reads up to {FORMAT}. Nothing was overwritten. Upgrade casque here."
        )
    if marker.casque != "ledger" or marker.format < 1:
        raise CorruptError(
            f"{name} says {marker.casque!r}, format {marker.format}, which is no ledger. Nothing "
            "was overwritten. Choose another prefix or folder."
        )


async def _prove(asking: Asking, time: BucketTime, watch: Stopwatch) -> None:
    """Try the bucket out, and leave nothing behind."""
    one, other = (PROBES + asking.clock.new_id() for _ in range(2))
    try:
        await _try_out(asking, time, one, other, watch)
    except CasqueError:
        # Whoever is started again and again would leave more and more of them.
        with suppress(CasqueError):
            await asking.together(asking.delete(one, watch), asking.delete(other, watch))
        raise
    await asking.together(asking.delete(one, watch), asking.delete(other, watch))


async def _try_out(
    asking: Asking, time: BucketTime, one: str, other: str, watch: Stopwatch
) -> None:
    """Two creates of one object, an update that expects another, a look at what is not there."""
    missing, begun = PROBES + asking.clock.new_id(), asking.clock.monotonic()
    _, stale = await asking.together(
        _put_surely(asking, one, one.encode(), watch),
        _put_surely(asking, other, other.encode(), watch),
    )
    stamp = await _read_stamp(asking, one, begun, watch)
    if stamp.took_us <= _SURE_US:  # else it is asked for that alone
        time.told(stamp.modified_us, stamp.written_at)
    is_kept, is_compared, found = await asking.together(
        _is_refused(asking, one, ABSENT, watch),
        _is_refused(asking, one, stale, watch),
        asking.get(missing, watch),
    )
    if not is_kept:
        raise _ignores_conditions(asking, f"{one} was created twice")
    if not is_compared:
        raise _ignores_conditions(asking, f"{one} was replaced by one who expected another")
    if found is not None:
        raise _unsteady(asking, missing)


class _Stamp(NamedTuple):
    """When the bucket says that an object was written."""

    took_us: int
    """How long it took to write: by so much the bucket may be ahead of its stamp already."""
    modified_us: int
    written_at: int
    """Our monotonic clock once it was written."""


async def _read_stamp(asking: Asking, key: str, begun: int, watch: Stopwatch) -> _Stamp:
    written_at = asking.clock.monotonic()
    found = await asking.get(key, watch)
    if found is None or found.body != key.encode():
        raise _unsteady(asking, key)
    return _Stamp(written_at - begun, found.modified_us, written_at)


async def _put_surely(asking: Asking, key: str, body: bytes, watch: Stopwatch) -> Version:
    """Create an object that nobody else writes differently."""
    place = 0
    while True:
        try:
            return await asking.put(key, body, ABSENT)
        except CASConflictError:
            found = await asking.get(key, watch)  # ours, of an answer that was lost; or as good
            if found is None:
                raise _unsteady(asking, key) from None
            return found.version
        except StorageError as error:
            if not error.outcome_unknown or watch.elapsed_us() > COMMIT_DEADLINE_US:
                raise
        await asking.pause(place)
        place += 1


async def _is_refused(asking: Asking, key: str, expect: Expect | Version, watch: Stopwatch) -> bool:
    """Whether the bucket refuses to write over an object that is not as expected."""
    place = 0
    while True:
        try:
            await asking.put(key, b"overwritten", expect)
        except CASConflictError:
            return True
        except StorageError as error:
            if not error.outcome_unknown or watch.elapsed_us() > COMMIT_DEADLINE_US:
                raise
        else:
            return False
        await asking.pause(place)
        place += 1


def _ignores_conditions(asking: Asking, how: str) -> StorageError:
    return StorageError(
        f"{asking.bucket.name} ignores conditional writes: {how}. Two writers would overwrite each "
        "other's jobs, so it cannot hold a queue. Use a storage that honours If-None-Match and "
        "If-Match (S3, GCS, Azure, a local folder), or a newer version of this one.",
        outcome_unknown=False,
    )


def _unsteady(asking: Asking, key: str) -> StorageError:
    return StorageError(
        f"{asking.full_name(key)}: the storage does not show what was just written there, or shows "
        "what never was: a cache stands before it, or something else writes and deletes under "
        f"{asking.bucket.name}. It cannot hold a queue like this.",
        outcome_unknown=False,
    )
