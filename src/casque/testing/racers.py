"""Racers: many on one bucket at once, in threads or in processes of their own.

BucketHarness is how a bucket describes itself to the suite. This module loads
no test tools, so that a process that only races is quick to start.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, Protocol

from casque.buckets.port import ABSENT, Bucket, Version
from casque.errors import CASConflictError, StorageError
from casque.testing.processes import in_processes, in_threads
from casque.testing.rig import Tier

Opener = Callable[[], Bucket]
_BREATH_SECONDS = 0.005
"""The longest pause before another try; racers live in real time."""
_LOOKS = 40_000
"""After so many tries something is wrong: with their pauses they last longer than a test may."""
_LONG = 200_000
_chance = random.Random()  # noqa: S311 - not a secret

Limit = Literal["hashes", "folders"]
"""What some servers cannot do, and the ledger can do without.

`hashes`: a version is a hash of the content, as on S3, so that equal content has
an equal version. `folders`: it lists a folder before what else begins with its
name, as SeaweedFS does, so that `a/b` comes before `a-b`.
"""


class BucketHarness(Protocol):
    """What a bucket tells the suite about itself."""

    tier: Tier
    """`small` where a request takes long: fewer and smaller objects."""

    limits: frozenset[Limit]

    opener: Opener | None
    """Opens a handle on the same storage in another process, and so can be pickled, as
    `functools.partial(FolderBucket, path)` can; None when no other process can reach it."""

    def open(self) -> Bucket:
        """One more handle on the storage, which nothing else is in, as another process has it."""
        ...


Racer = Callable[[Opener, Callable[[Any], None], int, int, int], None]
"""Called with what opens its bucket, what reports, its place, how many race, and how often."""


async def race(
    harness: BucketHarness,
    kind: Literal["threads", "processes"],
    racer: Racer,
    count: int,
    times: int,
) -> list[Any]:
    """Let so many race at once; what they reported."""
    if kind == "threads" or harness.opener is None:
        return await asyncio.to_thread(in_threads, harness.open, count, racer, (count, times))
    return await asyncio.to_thread(in_processes, harness.opener, count, racer, (count, times))


def create_the_same_keys(
    opener: Opener, report: Callable[[Any], None], place: int, count: int, times: int
) -> None:
    """Create `race/0`, `race/1` … and report those that were created."""

    async def run(bucket: Bucket) -> None:
        for number in range(times):
            if await _create(bucket, f"race/{number}", b"%d" % place):
                report((number, place))

    asyncio.run(_together(opener, place, count, run))


def count_up(
    opener: Opener, report: Callable[[Any], None], place: int, count: int, times: int
) -> None:
    """Add to the object `counter`, so many times, by comparing and setting."""

    async def run(bucket: Bucket) -> None:
        for number in range(times):
            await _add_one(bucket, str(place), number)

    asyncio.run(_together(opener, place, count, run))


def replace_or_read(
    opener: Opener, report: Callable[[Any], None], place: int, count: int, times: int
) -> None:
    """The first replaces the object `a` until each of the others has read it so many times."""

    async def replace(bucket: Bucket) -> None:
        version = await bucket.put("a", b"0" * _LONG, expect=ABSENT)
        for number in range(_LOOKS):
            body = b"%d" % (number % 10) * (_LONG - number)
            version = await bucket.put("a", body, expect=version)
            if len(await bucket.list("read/")) == count - 1:
                return
            await _breathe()
        raise AssertionError("the others do not come to their end")

    async def read(bucket: Bucket) -> None:
        for _ in range(times):
            found = await bucket.get("a")
            assert not found or len(set(found.body)) == 1, "half of one and half of another"
            await _breathe()
        await _create(bucket, f"read/{place}", b"")

    asyncio.run(_together(opener, place, count, read if place else replace))


def list_or_come_and_go(
    opener: Opener, report: Callable[[Any], None], place: int, count: int, times: int
) -> None:
    """The first lists `many/` and reports what is named; the others put there and delete."""

    async def look(bucket: Bucket) -> None:
        for _ in range(times):
            report([one.key for one in await bucket.list("many/")])

    async def come_and_go(bucket: Bucket) -> None:
        for number in range(times):
            key = f"many/{number * 7 % 60:03}-goes-{place}"
            await bucket.put(key, b"1", expect=ABSENT)
            await bucket.delete(key)

    asyncio.run(_together(opener, place, count, come_and_go if place else look))


async def _together(opener: Opener, place: int, count: int, run: Callable[[Bucket], Any]) -> None:
    """Begin when all are there: a process takes longer to start than to run."""
    bucket = opener()
    try:
        await _create(bucket, f"ready/{place}", b"")
        for _ in range(_LOOKS):
            if len(await bucket.list("ready/")) == count:
                await run(bucket)
                return
            await _breathe()
        raise AssertionError("the others have not come")
    finally:
        await bucket.close()


async def _create(bucket: Bucket, key: str, body: bytes) -> bool:
    """Whether this call created it. No answer is not a no: then what is there tells."""
    for _ in range(_LOOKS):
        try:
            await bucket.put(key, body, expect=ABSENT)
        except CASConflictError:
            assert await _found(bucket, key), f"{key} exists, and then it does not"
            return False
        except StorageError as error:
            if not error.outcome_unknown:
                raise
            found = await _found(bucket, key)
            if found is not None:
                return found[0] == body
        else:
            return True
        await _breathe()
    raise AssertionError(f"no answer about {key}")


async def _add_one(bucket: Bucket, name: str, number: int) -> None:
    """Make `name` stand at `number` + 1. What is stored tells whether it was done."""
    for _ in range(_LOOKS):
        found = await _found(bucket, "counter")
        counts: Counter[str] = Counter(json.loads(found[0]) if found else {})
        if counts[name] > number:
            return
        counts[name] = number + 1
        try:
            await bucket.put(
                "counter", json.dumps(counts).encode(), expect=found[1] if found else ABSENT
            )
        except CASConflictError:
            pass
        except StorageError as error:
            if not error.outcome_unknown:
                raise
        else:
            return
        await _breathe()
    raise AssertionError("others were always first")


async def _found(bucket: Bucket, key: str) -> tuple[bytes, Version] | None:
    for _ in range(_LOOKS):
        try:
            found = await bucket.get(key)
        except StorageError as error:
            if not error.outcome_unknown:
                raise
            await _breathe()
        else:
            return found and (found.body, found.version)
    raise AssertionError(f"no answer about {key}")


async def _breathe() -> None:
    await asyncio.sleep(_chance.uniform(0, _BREATH_SECONDS))
