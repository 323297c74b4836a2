"""The bucket suite finds every broken promise: each of these buckets breaks one."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from casque.buckets.memory import MemoryBucket
from casque.buckets.port import ABSENT, Bucket, Found, Listed, Version
from casque.errors import CASConflictError
from casque.testing import BucketSuite
from casque.testing.racers import Limit, Opener
from casque.testing.rig import Tier


async def _others_turn() -> None:
    await asyncio.gather(asyncio.to_thread(int))


class OverwritesOnCreate(MemoryBucket):
    async def put(self, key: str, body: bytes, *, expect: Any) -> Version:
        if expect is ABSENT:
            await self.delete(key)
        return await super().put(key, body, expect=expect)


class IgnoresTheVersion(MemoryBucket):
    async def put(self, key: str, body: bytes, *, expect: Any) -> Version:
        found = await self.get(key)
        if found is not None and expect is not ABSENT:
            expect = found.version
        return await super().put(key, body, expect=expect)


class CreatesWhatIsToBeUpdated(MemoryBucket):
    async def put(self, key: str, body: bytes, *, expect: Any) -> Version:
        if await self.get(key) is None:
            expect = ABSENT
        return await super().put(key, body, expect=expect)


class SaysSameForEqualBytes(MemoryBucket):
    async def get(self, key: str) -> Found | None:
        found = await super().get(key)
        return found and found._replace(version=self._of(found.body))

    async def put(self, key: str, body: bytes, *, expect: Any) -> Version:
        found = await super().get(key)
        if expect is not ABSENT:
            if found is None or self._of(found.body) != expect:
                raise CASConflictError
            expect = found.version
        await super().put(key, body, expect=expect)
        return self._of(body)

    def _of(self, body: bytes) -> Version:
        return Version(hashlib.sha256(body).hexdigest())


class ReusesVersionsAfterADelete(MemoryBucket):
    async def delete(self, key: str) -> None:
        await super().delete(key)
        self._writes = 0


class LooksAndThenWrites(MemoryBucket):
    """The check and the write are two steps, and others can write in between."""

    async def put(self, key: str, body: bytes, *, expect: Any) -> Version:
        found = await self.get(key)
        if (ABSENT if found is None else found.version) != expect:
            raise CASConflictError
        await _others_turn()
        found = await self.get(key)
        return await super().put(key, body, expect=found.version if found else ABSENT)


class RaisesForAMissingDelete(MemoryBucket):
    async def delete(self, key: str) -> None:
        del self._objects[key]


class DropsNewlines(MemoryBucket):
    async def put(self, key: str, body: bytes, *, expect: Any) -> Version:
        return await super().put(key, body.replace(b"\r\n", b"\n"), expect=expect)


class ListsFolderByFolder(MemoryBucket):
    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        listed = await super().list(prefix, after=after)
        return sorted(listed, key=lambda one: one.key.split("/"))


class ListsWholePartsOnly(MemoryBucket):
    """It treats a prefix as a folder, as some clients do."""

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        folder = prefix if prefix.endswith("/") or not prefix else f"{prefix}/"
        return await super().list(folder, after=after)


class ListsFromAfterOn(MemoryBucket):
    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        listed = await super().list(prefix, after=after)
        found = self._objects.get(after)
        if found is None or not after.startswith(prefix):
            return listed
        return [Listed(after, len(found.body), found.modified_us), *listed]


class ListsOnePageOnly(MemoryBucket):
    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        return [one for one in await super().list(prefix) if one.key > after]


class CannotBeUsedAgain(MemoryBucket):
    async def close(self) -> None:
        self._objects = {}


class GoesBackInTime(MemoryBucket):
    async def get(self, key: str) -> Found | None:
        found = await super().get(key)
        return found and found._replace(modified_us=2 * 10**15 - found.modified_us)


class SuspendsThoughItSaysNot(MemoryBucket):
    async def get(self, key: str) -> Found | None:
        await _others_turn()
        return await super().get(key)


class Harness:
    tier: Tier = "small"
    limits: frozenset[Limit] = frozenset()
    opener: Opener | None = None

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def open(self) -> Bucket:
        return self._bucket


def broken_promises(kind: type[MemoryBucket]) -> Iterator[str]:
    for name in dir(BucketSuite):
        if name.startswith("test"):
            try:
                getattr(BucketSuite, name)(BucketSuite(), Harness(kind()))
            except (AssertionError, CASConflictError, KeyError, pytest.fail.Exception):
                yield name


# Other loaded modules may define more subclasses.
KINDS = [kind for kind in MemoryBucket.__subclasses__() if kind.__module__ == __name__]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bucket_that_breaks_a_promise_fails(kind: type[MemoryBucket]) -> None:
    assert next(broken_promises(kind), None)


def test_a_bucket_that_keeps_all_promises_passes() -> None:
    assert not list(broken_promises(MemoryBucket))


def test_a_bucket_cannot_weaken_a_promise() -> None:
    name = "test_a_missing_object_cannot_be_updated"
    assert hasattr(BucketSuite, name)
    with pytest.raises(TypeError, match="must pass the suite unchanged"):
        type("Weakened", (BucketSuite,), {name: lambda _: None})
    with pytest.raises(TypeError, match="proves no statement"):
        type("Added", (BucketSuite,), {"test_something_else": lambda _: None})
