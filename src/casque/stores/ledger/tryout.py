"""Try-out: tests whether a bucket keeps its promises, and reads its time.

With a bucket that ignores conditions, two writers would overwrite each other's
jobs without an error. So every process that writes to a ledger tests the bucket
first. The objects it writes for that also show the bucket's time.

A second test sends several creates of one object at once. It detects a bucket that honours
conditions, but does not check and write in one atomic step. Workers run this test, and so does
every process that creates a ledger.
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
"""A stamp is precise enough if the write took no longer than this."""
_TRIES = 2
"""Where every write takes longer than that, the fastest of this many tries is used."""
_STALE_US = 10 * MINUTE_US
"""A process that left a probe older than this is gone."""
_SWEPT = 100
"""How many stale probes one process deletes at most."""

_RACERS = 16
_RACE_BYTES = 4 * 1024
"""How much each racer writes: large enough that a server needs a while to check and then write."""
_QUIET_SECONDS = 0.25
"""Some servers stall on racing creates. Once one has won and none was answered for this long, the
rest do not count."""


async def ask_time(requests: BucketRequests, time: BucketTime, watch: Stopwatch) -> None:
    """Read the bucket's clock; or write an object and read the time that the bucket gave it."""
    if requests.bucket.timed is not None:
        time.told(requests.bucket.timed.time_us(), requests.clock.monotonic())
        return
    stamps: list[_Stamp] = []
    while not stamps or (stamps[-1].took_us > _SURE_US and len(stamps) < _TRIES):
        stamps.append(await _new_stamp(requests, watch))
    best = min(stamps)
    time.told(best.modified_us, best.written_at)


async def bucket_stamp(requests: BucketRequests, watch: Stopwatch) -> int:
    """Return the time that the bucket gives to an object written now. No clock of ours counts."""
    if requests.bucket.timed is not None:
        return requests.bucket.timed.time_us()
    return (await _new_stamp(requests, watch)).modified_us


async def _new_stamp(requests: BucketRequests, watch: Stopwatch) -> _Stamp:
    key, begun = PROBES + requests.clock.new_id(), requests.clock.monotonic()
    await put_surely(requests, key, key.encode(), watch)
    stamp = await _read_stamp(requests, key, begun, watch)
    await requests.delete(key, watch)
    return stamp


async def prove(
    requests: BucketRequests, time: BucketTime, watch: Stopwatch, *, racing: bool
) -> None:
    """Test the bucket, and leave nothing behind. `racing` adds concurrent creates."""
    begun = Stopwatch(requests.clock)
    one, other = (PROBES + requests.clock.new_id() for _ in range(2))
    try:
        stamp = await _try_out(requests, time, one, other, watch)
        if racing:
            await _race(requests, watch)
    except CasqueError:
        # Without this, a process that is restarted in a loop would leave more and more probes.
        await requests.briefly(lambda: _delete(requests, [one, other], watch))
        if requests.is_silent or begun.elapsed_us() <= _STALE_US:
            raise
        # The process slept, and others deleted its probes as stale.
        await prove(requests, time, Stopwatch(requests.clock), racing=racing)
        return
    await _delete(requests, [one, other], watch)
    await requests.briefly(lambda: _sweep(requests, stamp.modified_us, watch))


async def _try_out(
    requests: BucketRequests, time: BucketTime, one: str, other: str, watch: Stopwatch
) -> _Stamp:
    """Test each promise of the bucket, and return the stamp of the object `one`.

    It creates one object twice, updates it with a wrong version, reads a missing object, and
    lists the keys after a given one.
    """
    missing, begun = PROBES + requests.clock.new_id(), requests.clock.monotonic()
    low, high = sorted((one, other))
    _, stale = await requests.together(
        put_surely(requests, one, one.encode(), watch),
        put_surely(requests, other, other.encode(), watch),
    )
    stamp = await _read_stamp(requests, one, begun, watch)
    if stamp.took_us <= _SURE_US:  # otherwise `ask_time` makes its own requests
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
        raise _ignores_conditions(requests, f"{one} was updated despite a wrong version")
    if found is not None:
        raise unsteady(requests, missing)
    listed = [each.key for each in page]
    if low in listed or (high not in listed and len(listed) < PAGE):
        raise lists_wrongly(requests, high, low)
    return stamp


async def _race(requests: BucketRequests, watch: Stopwatch) -> None:
    """Send many creates of one object at once. One must win, and its content must stay."""
    if requests.bucket.blocking:
        return  # requests run one after the other, so nothing can race
    place = 0
    while True:
        key = PROBES + requests.clock.new_id()
        won = await _winners(requests, key, watch)
        found = await requests.get(key, watch)
        await requests.delete(key, watch)
        if len(won) > 1:
            raise _is_not_atomic(
                requests, f"{len(won)} of {_RACERS} concurrent creates of {key} succeeded"
            )
        if won and found is None:
            raise unsteady(requests, key)
        if won and found is not None and found.body != won[0]:
            raise _is_not_atomic(
                requests, f"a create of {key} succeeded, then another create replaced it"
            )
        if won:
            return
        if requests.is_over(watch):
            raise StorageError(
                f"{requests.bucket.name}: none of {_RACERS} concurrent creates of one object "
                "succeeded. No queue was created or changed. Try again when the storage answers.",
                outcome_unknown=False,
            )
        await requests.pause(place, watch)
        place += 1


async def _winners(requests: BucketRequests, key: str, watch: Stopwatch) -> list[bytes]:
    """Send many creates at once, and return the bodies of those that succeeded."""
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
    """Return `body` if the bucket confirms the create, otherwise empty bytes."""
    with suppress(CasqueError):
        await requests.put(key, body, ABSENT, watch)
        return body
    return b""


async def _sweep(requests: BucketRequests, now_us: int, watch: Stopwatch) -> None:
    """Delete the probes of processes that were killed. `now_us` is the bucket's time."""
    page = await requests.list(PROBES, "", watch)
    stale = [one.key for one in page if one.modified_us < now_us - _STALE_US]
    await _delete(requests, stale[:_SWEPT], watch)


async def _delete(requests: BucketRequests, keys: list[str], watch: Stopwatch) -> None:
    await requests.together(*(requests.delete(key, watch) for key in keys))


class _Stamp(NamedTuple):
    """The time that the bucket gave to an object."""

    took_us: int
    """How long the write took, with all its retries. The bucket's clock may be this far ahead of
    the stamp."""
    modified_us: int
    written_at: int
    """Our monotonic clock after the write."""


async def _read_stamp(requests: BucketRequests, key: str, begun: int, watch: Stopwatch) -> _Stamp:
    written_at = requests.clock.monotonic()
    found = await requests.get(key, watch)
    if found is None or found.body != key.encode():
        raise unsteady(requests, key)
    return _Stamp(written_at - begun, found.modified_us, written_at)


async def put_surely(requests: BucketRequests, key: str, body: bytes, watch: Stopwatch) -> Version:
    """Create an object, and return its version; if it exists, return that version."""
    try:
        return await requests.put_until_answered(key, body, ABSENT, watch)
    except CASConflictError:
        found = await requests.get(key, watch)  # our own put with a lost answer, or an equal one
        if found is None:
            raise unsteady(requests, key) from None
        return found.version


async def _is_refused(
    requests: BucketRequests, key: str, expect: Expect | Version, watch: Stopwatch
) -> bool:
    """True if the bucket refuses to overwrite an object that is not as expected."""
    try:
        await requests.put_until_answered(key, b"overwritten", expect, watch)
    except CASConflictError:
        return True
    return False


def _ignores_conditions(requests: BucketRequests, how: str) -> StorageError:
    return StorageError(
        f"{requests.bucket.name} ignores conditional writes: {how}. Two writers would overwrite "
        "each other's jobs, so it cannot hold a queue. Use a storage that honours If-None-Match "
        "and If-Match (S3, GCS, Azure, a local folder), or upgrade this server.",
        outcome_unknown=False,
    )


def _is_not_atomic(requests: BucketRequests, how: str) -> StorageError:
    return StorageError(
        f"{requests.bucket.name} lets several writers create one object: {how}. They would "
        "overwrite each other's jobs, so it cannot hold a queue. Use a storage whose conditional "
        "writes are atomic (S3, GCS, Azure, a local folder), or upgrade this server.",
        outcome_unknown=False,
    )


def lists_wrongly(requests: BucketRequests, key: str, after: str) -> StorageError:
    return StorageError(
        f"{requests.bucket.name} lists its objects wrongly: {key} exists, and a list of the "
        f"objects after {after} omits it or includes earlier ones. Part of the queue would stay "
        "invisible. Use another server, or upgrade this one.",
        outcome_unknown=False,
    )


def unsteady(requests: BucketRequests, key: str) -> StorageError:
    return StorageError(
        f"{requests.full_name(key)}: the storage does not return what was just written, or returns "
        "an object that was never written. A cache in front of it can cause this, or another "
        f"program that writes and deletes under {requests.bucket.name}. Remove the cause: such a "
        "storage cannot hold a queue.",
        outcome_unknown=False,
    )
