"""Racers: functions that use one bucket at once, in threads or in separate processes.

BucketHarness describes a bucket to the suite. This module loads no test tools,
so that a process that only races starts quickly.
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
"""The longest pause before another try. Racers run in real time."""
_TRIES = 40_000
"""The limit of tries: with their pauses they take longer than a test may."""
_LONG = 200_000
_chance = random.Random()  # noqa: S311 - not a secret

Limit = Literal["hashes", "folders"]
"""Limits of some servers, which the ledger can work with.

`hashes`: a version is a hash of the content, as on S3, so equal content has equal
versions. `folders`: a list has a folder before other keys that begin with its
name, as on SeaweedFS, so `a/b` comes before `a-b`.
"""


class BucketHarness(Protocol):
    """Describes a bucket to the suite."""

    tier: Tier
    """`small` for a slow bucket: tests use fewer and smaller objects."""

    limits: frozenset[Limit]

    opener: Opener | None
    """Opens a handle on the same storage in another process. It must be picklable, for example
    `functools.partial(FolderBucket, path)`. None if no other process can reach the storage."""

    def open(self) -> Bucket:
        """Open another handle on the storage, as another process would. A new storage is empty."""
        ...


Racer = Callable[[Opener, Callable[[Any], None], int, int, int], None]
"""Called with `opener`, `report`, its `place`, the `count` of racers and the number of `times`."""


async def race(
    harness: BucketHarness,
    kind: Literal["threads", "processes"],
    racer: Racer,
    count: int,
    times: int,
) -> list[Any]:
    """Run `count` racers at once. Returns all reports."""
    if kind == "threads" or harness.opener is None:
        return await asyncio.to_thread(in_threads, harness.open, count, racer, (count, times))
    return await asyncio.to_thread(in_processes, harness.opener, count, racer, (count, times))


def create_the_same_keys(
    opener: Opener, report: Callable[[Any], None], place: int, count: int, times: int
) -> None:
    """Try to create `race/0`, `race/1` … and report each key that this racer created."""

    async def run(bucket: Bucket) -> None:
        for number in range(times):
            if await _create(bucket, f"race/{number}", b"%d" % place):
                report((number, place))

    asyncio.run(_together(opener, place, count, run))


def count_up(
    opener: Opener, report: Callable[[Any], None], place: int, count: int, times: int
) -> None:
    """Add to the object `counter` as many times as asked, with compare-and-set."""

    async def run(bucket: Bucket) -> None:
        for number in range(times):
            await _add_one(bucket, str(place), number)

    asyncio.run(_together(opener, place, count, run))


def replace_or_read(
    opener: Opener, report: Callable[[Any], None], place: int, count: int, times: int
) -> None:
    """The first replaces the object `a` until each of the others has read it `times` times."""

    async def replace(bucket: Bucket) -> None:
        version = await bucket.put("a", b"0" * _LONG, expect=ABSENT)
        for number in range(_TRIES):
            body = b"%d" % (number % 10) * (_LONG - number)
            version = await bucket.put("a", body, expect=version)
            if len(await bucket.list("read/")) == count - 1:
                return
            await _breathe()
        raise AssertionError("the other racers do not finish")

    async def read(bucket: Bucket) -> None:
        for _ in range(times):
            found = await bucket.get("a")
            assert not found or len(set(found.body)) == 1, "read a mix of two versions"
            await _breathe()
        await _create(bucket, f"read/{place}", b"")

    asyncio.run(_together(opener, place, count, read if place else replace))


def list_or_come_and_go(
    opener: Opener, report: Callable[[Any], None], place: int, count: int, times: int
) -> None:
    """The first lists `many/` and reports its keys; the others put and delete keys there."""

    async def read_list(bucket: Bucket) -> None:
        for _ in range(times):
            report([one.key for one in await bucket.list("many/")])

    async def come_and_go(bucket: Bucket) -> None:
        for number in range(times):
            key = f"many/{number * 7 % 60:03}-goes-{place}"
            await bucket.put(key, b"1", expect=ABSENT)
            await bucket.delete(key)

    asyncio.run(_together(opener, place, count, come_and_go if place else read_list))


async def _together(opener: Opener, place: int, count: int, run: Callable[[Bucket], Any]) -> None:
    """Begin when all racers are ready: a process takes longer to start than to run."""
    bucket = opener()
    try:
        await _create(bucket, f"ready/{place}", b"")
        for _ in range(_TRIES):
            if len(await bucket.list("ready/")) == count:
                await run(bucket)
                return
            await _breathe()
        raise AssertionError(f"expected {count} racers, but some never started")
    finally:
        await bucket.close()


async def _create(bucket: Bucket, key: str, body: bytes) -> bool:
    """Create the object. Returns whether this call created it.

    If the outcome is unknown, the stored body shows it.
    """
    for _ in range(_TRIES):
        try:
            await bucket.put(key, body, expect=ABSENT)
        except CASConflictError:
            assert await _found(bucket, key), f"put found {key}, but get does not"
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
    raise AssertionError(f"{key}: no answer in {_TRIES:,} tries")


async def _add_one(bucket: Bucket, name: str, number: int) -> None:
    """Set `name` to `number` + 1. If the outcome is unknown, the stored value shows it."""
    for _ in range(_TRIES):
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
    raise AssertionError(f"could not add: other racers won {_TRIES:,} times in a row")


async def _found(bucket: Bucket, key: str) -> tuple[bytes, Version] | None:
    for _ in range(_TRIES):
        try:
            found = await bucket.get(key)
        except StorageError as error:
            if not error.outcome_unknown:
                raise
            await _breathe()
        else:
            return found and (found.body, found.version)
    raise AssertionError(f"{key}: no answer in {_TRIES:,} tries")


async def _breathe() -> None:
    await asyncio.sleep(_chance.uniform(0, _BREATH_SECONDS))
