"""Try-out: whether a bucket keeps its promises, and what time it is there.

A bucket that ignores conditions would let two writers overwrite each other's
jobs without either being told, so every process that writes to a ledger tries
it out first. What it writes for that also tells it the bucket's time.

A bucket that honours conditions, but checks first and writes later, is found
out by creates that race. Those are for a process that makes a ledger, and for workers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

from casque.buckets.port import ABSENT, PAGE, Expect, Version
from casque.errors import CASConflictError, CasqueError, StorageError
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.bucket_time import BucketTime
from casque.stores.ledger.ledger_bucket import PROBES
from casque.system.clock import MINUTE_US, SECOND_US, Stopwatch

_SURE_US = SECOND_US
"""A stamp is believed if its object was written within this: who knows when, else?"""
_TRIES = 2
"""Where nothing is written as quickly as that, the quicker of so many is believed."""
_STALE_US = 10 * MINUTE_US
"""A process that left a probe older than this is gone."""
_SWEPT = 100
"""How many stale probes one process deletes, at most."""

_RACERS = 16
_RACE_BYTES = 4 * 1024
"""How much each of them writes: to check and then to write as much takes a server a while."""
_QUIET_SECONDS = 0.25
"""Some servers stall on racing creates. Once one has won and for so long no other was answered,
the rest does not count."""


async def ask_time(requests: BucketRequests, time: BucketTime, watch: Stopwatch) -> None:
    """Look at the bucket's clock; or write something, and see when the bucket says that was."""
    if requests.bucket.timed is not None:
        time.told(requests.bucket.timed.time_us(), requests.clock.monotonic())
        return
    stamps: list[_Stamp] = []
    while not stamps or (stamps[-1].took_us > _SURE_US and len(stamps) < _TRIES):
        key, begun = PROBES + requests.clock.new_id(), requests.clock.monotonic()
        await put_surely(requests, key, key.encode(), watch)
        stamps.append(await _read_stamp(requests, key, begun, watch))
        await requests.delete(key, watch)
    best = min(stamps)
    time.told(best.modified_us, best.written_at)


async def prove(
    requests: BucketRequests, time: BucketTime, watch: Stopwatch, *, racing: bool
) -> None:
    """Try the bucket out, and leave nothing behind. `racing`: with creates that race, too."""
    begun = Stopwatch(requests.clock)
    one, other = (PROBES + requests.clock.new_id() for _ in range(2))
    try:
        stamp = await _try_out(requests, time, one, other, watch)
        if racing:
            await _race(requests, watch)
    except CasqueError:
        # A process that is started again and again would leave more and more of them.
        await requests.briefly(_delete(requests, [one, other], watch))
        if requests.is_silent or begun.elapsed_us() <= _STALE_US:
            raise
        # It slept, and others took its probes for stale.
        await prove(requests, time, Stopwatch(requests.clock), racing=racing)
        return
    await _delete(requests, [one, other], watch)
    await requests.briefly(_sweep(requests, stamp.modified_us, watch))


async def _try_out(
    requests: BucketRequests, time: BucketTime, one: str, other: str, watch: Stopwatch
) -> _Stamp:
    """Two creates of one object, an update that expects another, a look at what is not there.

    And a list that begins in the middle. The stamp of the first object.
    """
    missing, begun = PROBES + requests.clock.new_id(), requests.clock.monotonic()
    low, high = sorted((one, other))
    _, stale = await requests.together(
        put_surely(requests, one, one.encode(), watch),
        put_surely(requests, other, other.encode(), watch),
    )
    stamp = await _read_stamp(requests, one, begun, watch)
    if stamp.took_us <= _SURE_US:  # else it is asked for that alone
        time.told(stamp.modified_us, stamp.written_at)
    is_kept, is_compared, found, page = await requests.together(
        _is_refused(requests, one, ABSENT, watch),
        _is_refused(requests, one, stale, watch),
        requests.get(missing, watch),
        requests.list(PROBES, low, watch),
    )
    if not is_kept:
        raise _ignores_conditions(requests, f"{one} was created twice")
    if not is_compared:
        raise _ignores_conditions(requests, f"{one} was replaced by one who expected another")
    if found is not None:
        raise unsteady(requests, missing)
    listed = [each.key for each in page]
    if low in listed or (high not in listed and len(listed) < PAGE):
        raise lists_wrongly(requests, high, low)
    return stamp


async def _race(requests: BucketRequests, watch: Stopwatch) -> None:
    """Let many create one object at once. One must win, and what it wrote must stay."""
    if requests.bucket.blocking:
        return  # one request is done before the next begins: here nothing can race
    place = 0
    while True:
        key = PROBES + requests.clock.new_id()
        won = await _winners(requests, key, watch)
        found = await requests.get(key, watch)
        await requests.delete(key, watch)
        if len(won) > 1:
            raise _is_not_atomic(requests, f"of {_RACERS} creates of {key} at once {len(won)} won")
        if won and found is None:
            raise unsteady(requests, key)
        if won and found is not None and found.body != won[0]:
            raise _is_not_atomic(
                requests, f"a create of {key} won, and another replaced its object"
            )
        if won:
            return
        if requests.is_over(watch):
            raise StorageError(
                f"{requests.bucket.name}: of {_RACERS} creates of one object none was answered "
                "with success. No queue was made or changed. Try again when the storage answers.",
                outcome_unknown=False,
            )
        await requests.pause(place, watch)
        place += 1


async def _winners(requests: BucketRequests, key: str, watch: Stopwatch) -> list[bytes]:
    """What those wrote who were told, of many at once, that they have created the object."""
    bodies = [b"%02d\n" % number * (_RACE_BYTES // 3) for number in range(_RACERS)]
    racers = [asyncio.ensure_future(_created(requests, key, body, watch)) for body in bodies]
    won, answered = list[bytes](), -1
    try:
        while answered < len(racers):
            done, _ = await asyncio.wait(racers, timeout=_QUIET_SECONDS)
            won = [body for one in done if (body := one.result())]
            if won and len(done) == answered:
                break
            answered = len(done)
    finally:
        for racer in racers:
            racer.cancel()
    return won


async def _created(requests: BucketRequests, key: str, body: bytes, watch: Stopwatch) -> bytes:
    """The object as it was created; empty unless the bucket says that it was."""
    with suppress(CasqueError):
        await requests.put(key, body, ABSENT, watch)
        return body
    return b""


async def _sweep(requests: BucketRequests, now_us: int, watch: Stopwatch) -> None:
    """Delete what processes that were killed have left; `now_us` by the bucket's stamps."""
    page = await requests.list(PROBES, "", watch)
    stale = [one.key for one in page if one.modified_us < now_us - _STALE_US]
    await _delete(requests, stale[:_SWEPT], watch)


async def _delete(requests: BucketRequests, keys: list[str], watch: Stopwatch) -> None:
    await requests.together(*(requests.delete(key, watch) for key in keys))


class _Stamp(NamedTuple):
    """When the bucket says that an object was written."""

    took_us: int
    """How long it took to write, however often it was sent: by so much the bucket may be ahead of
    its stamp already."""
    modified_us: int
    written_at: int
    """Our monotonic clock once it was written."""


async def _read_stamp(requests: BucketRequests, key: str, begun: int, watch: Stopwatch) -> _Stamp:
    written_at = requests.clock.monotonic()
    found = await requests.get(key, watch)
    if found is None or found.body != key.encode():
        raise unsteady(requests, key)
    return _Stamp(written_at - begun, found.modified_us, written_at)


async def put_surely(requests: BucketRequests, key: str, body: bytes, watch: Stopwatch) -> Version:
    """Create an object that nobody else writes differently."""
    try:
        return await requests.put_until_answered(key, body, ABSENT, watch)
    except CASConflictError:
        found = await requests.get(key, watch)  # ours, of an answer that was lost; or as good
        if found is None:
            raise unsteady(requests, key) from None
        return found.version


async def _is_refused(
    requests: BucketRequests, key: str, expect: Expect | Version, watch: Stopwatch
) -> bool:
    """Whether the bucket refuses to write over an object that is not as expected."""
    try:
        await requests.put_until_answered(key, b"overwritten", expect, watch)
    except CASConflictError:
        return True
    return False


def _ignores_conditions(requests: BucketRequests, how: str) -> StorageError:
    return StorageError(
        f"{requests.bucket.name} ignores conditional writes: {how}. Two writers would overwrite "
        "each other's jobs, so it cannot hold a queue. Use a storage that honours If-None-Match "
        "and If-Match (S3, GCS, Azure, a local folder), or a newer version of this one.",
        outcome_unknown=False,
    )


def _is_not_atomic(requests: BucketRequests, how: str) -> StorageError:
    return StorageError(
        f"{requests.bucket.name} lets several writers create one object: {how}. They would "
        "overwrite each other's jobs, so it cannot hold a queue. Use a storage whose conditional "
        "writes are atomic (S3, GCS, Azure, a local folder), or a newer version of this one.",
        outcome_unknown=False,
    )


def lists_wrongly(requests: BucketRequests, key: str, after: str) -> StorageError:
    return StorageError(
        f"{requests.bucket.name} lists its objects wrongly: {key} is there, and a list of what "
        f"comes after {after} does not show it, or shows what comes before. A part of the queue "
        "would stay unseen. Use another server, or a newer version of this one.",
        outcome_unknown=False,
    )


def unsteady(requests: BucketRequests, key: str) -> StorageError:
    return StorageError(
        f"{requests.full_name(key)}: the storage does not show what was just written there, or "
        "shows what never was: a cache stands before it, or something else writes and deletes "
        f"under {requests.bucket.name}. It cannot hold a queue like this.",
        outcome_unknown=False,
    )
