"""Faults as inputs: storages, stores and buckets that fail at a chosen request.

A sweep fails the first request, then the second, and so on, until the run makes
fewer requests: `fired` shows whether the fault occurred.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from enum import Enum, auto
from typing import Any, Literal, TypeVar

from casque.adapters.storage.port import ObjectStoragePort
from casque.buckets.port import Bucket, Expect, Found, Listed, Version
from casque.errors import CASConflictError, StorageError
from casque.stores.port import Answer, Store
from casque.system.clock import span_us
from casque.testing.fakeclock import FakeClock
from casque.testing.relays import Relay

T = TypeVar("T")


class Fault(Enum):
    """What happens to one request."""

    REFUSE = auto()
    """It never arrives, and the caller gets an error with an unknown outcome."""
    LOSE_REPLY = auto()
    """It is carried out, and the caller gets an error with an unknown outcome."""
    DELAY = auto()
    """A competitor's request is carried out first; then the caller gets its answer."""
    LAND_LATE = auto()
    """The caller gets an error with an unknown outcome. The write arrives after its next read."""
    DIE_BEFORE = auto()
    """The process is killed before the request is carried out."""
    DIE_AFTER = auto()
    """The process is killed after the request is carried out."""


PORT_FAULTS = (Fault.REFUSE, Fault.LOSE_REPLY, Fault.DELAY, Fault.LAND_LATE)
STORE_FAULTS = (Fault.REFUSE, Fault.LOSE_REPLY)


class FaultyStorage:
    """A storage whose `nth` request (reads and writes counted together) meets `fault`."""

    def __init__(
        self,
        storage: ObjectStoragePort,
        fault: Fault,
        nth: int,
        competitor: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = f"faulty {getattr(storage, 'name', type(storage).__name__)}"
        self.fired = False
        self.requests = 0
        self._storage = storage
        self._fault = fault
        self._nth = nth
        self._competitor = competitor
        self._late: tuple[bytes, str | None] | None = None

    async def read(self) -> tuple[bytes, str | None]:
        answer: tuple[bytes, str | None] = await self._ask(self._storage.read, None)
        await self._land_late()
        return answer

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        etag: str = await self._ask(
            lambda: self._storage.write(content, if_match), (content, if_match)
        )
        return etag

    async def _ask(
        self, request: Callable[[], Awaitable[Any]], write: tuple[bytes, str | None] | None
    ) -> Any:
        self.requests += 1
        if self.requests != self._nth:
            return await request()
        self.fired = True
        match self._fault:
            case Fault.REFUSE:
                raise StorageError("the request was lost")
            case Fault.LOSE_REPLY:
                await request()
                raise StorageError("the reply was lost")
            case Fault.DELAY:
                if self._competitor is not None:
                    await self._competitor()
                return await request()
            case Fault.LAND_LATE:
                self._late = write
                raise StorageError("the request is late")
            case Fault.DIE_BEFORE:
                die()
            case Fault.DIE_AFTER:
                await request()
                die()
        raise AssertionError("the process should have died")

    async def _land_late(self) -> None:
        if self._late is None:
            return
        late, self._late = self._late, None
        if self._competitor is not None:
            await self._competitor()
        try:
            await self._storage.write(*late)
        except CASConflictError:
            return  # as expected: another write came first


class FaultyStore(Relay):
    """A store whose `nth` commit meets `fault`. Everything else goes to the wrapped store."""

    def __init__(self, store: Store, fault: Fault, nth: int) -> None:
        super().__init__(store)
        self.fired = False
        self.commits = 0
        self._fault = fault
        self._nth = nth

    async def commit(self, *args: Any, **options: Any) -> list[Answer]:
        self.commits += 1
        hit = self.commits == self._nth
        self.fired |= hit
        if hit and self._fault is Fault.REFUSE:
            raise StorageError("the request was lost")
        if hit and self._fault is Fault.DIE_BEFORE:
            die()
        outcomes = await super().commit(*args, **options)
        if hit and self._fault is Fault.DIE_AFTER:
            die()
        if hit and self._fault is Fault.LOSE_REPLY:
            raise StorageError("the reply was lost")
        return outcomes


class FaultyBucket:
    """A bucket whose `nth` request (of every kind, counted together) meets `fault`."""

    blocking = False

    def __init__(
        self,
        bucket: Bucket,
        fault: Fault,
        nth: int,
        competitor: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = f"faulty {bucket.name}"
        self.fired = False
        self.requests = 0
        self._bucket = bucket
        self._fault = fault
        self._nth = nth
        self._competitor = competitor
        self._late: Callable[[], Awaitable[Any]] | None = None

    async def get(self, key: str) -> Found | None:
        found: Found | None = await self._read(lambda: self._bucket.get(key))
        return found

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        version: Version = await self._change(lambda: self._bucket.put(key, body, expect=expect))
        return version

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        listed: list[Listed] = await self._read(lambda: self._bucket.list(prefix, after=after))
        return listed

    async def delete(self, key: str) -> None:
        await self._change(lambda: self._bucket.delete(key))

    async def close(self) -> None:
        await self._bucket.close()

    async def _read(self, request: Callable[[], Awaitable[Any]]) -> Any:
        answer = await self._ask(request)
        await self._land_late()
        return answer

    async def _change(self, request: Callable[[], Awaitable[Any]]) -> Any:
        if self.requests + 1 == self._nth and self._fault is Fault.LAND_LATE:
            self._late = request
        return await self._ask(request)

    async def _ask(self, request: Callable[[], Awaitable[Any]]) -> Any:
        self.requests += 1
        if self.requests != self._nth:
            return await request()
        self.fired = True
        match self._fault:
            case Fault.REFUSE | Fault.LAND_LATE:
                raise StorageError("the request was lost")
            case Fault.LOSE_REPLY:
                await request()
                raise StorageError("the reply was lost")
            case Fault.DELAY:
                await self._compete()
                return await request()
            case Fault.DIE_BEFORE | Fault.DIE_AFTER:
                raise AssertionError("a bucket cannot kill its process: it would end the test")

    async def _land_late(self) -> None:
        if self._late is None:
            return
        late, self._late = self._late, None
        await self._compete()
        try:
            await late()
        except CASConflictError:
            return  # as expected: another write came first

    async def _compete(self) -> None:
        if self._competitor is not None:
            await self._competitor()


class SlowStorage:
    """A storage whose every request takes `delay`: half before it is carried out, half after."""

    def __init__(self, storage: ObjectStoragePort, clock: FakeClock, delay: timedelta) -> None:
        self.name = f"slow {getattr(storage, 'name', type(storage).__name__)}"
        self._storage = storage
        self._clock = clock
        self._half_us = span_us(delay) // 2

    async def read(self) -> tuple[bytes, str | None]:
        await self._clock.sleep(self._half_us, blocking=False)
        with self._clock.held():
            answer = await self._storage.read()
        await self._clock.sleep(self._half_us, blocking=False)
        return answer

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        await self._clock.sleep(self._half_us, blocking=False)
        with self._clock.held():
            etag = await self._storage.write(content, if_match)
        await self._clock.sleep(self._half_us, blocking=False)
        return etag


class SlowBucket:
    """A bucket whose every request takes `delay`: half before it is carried out, half after."""

    blocking = False

    def __init__(self, bucket: Bucket, clock: FakeClock, delay: timedelta) -> None:
        self.name = f"slow {bucket.name}"
        self._bucket = bucket
        self._clock = clock
        self._half_us = span_us(delay) // 2

    async def get(self, key: str) -> Found | None:
        return await self._slowly(lambda: self._bucket.get(key))

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        return await self._slowly(lambda: self._bucket.put(key, body, expect=expect))

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        return await self._slowly(lambda: self._bucket.list(prefix, after=after))

    async def delete(self, key: str) -> None:
        await self._slowly(lambda: self._bucket.delete(key))

    async def close(self) -> None:
        await self._bucket.close()

    async def _slowly(self, request: Callable[[], Awaitable[T]]) -> T:
        await self._clock.sleep(self._half_us, blocking=False)
        try:
            with self._clock.held():
                return await request()
        finally:
            await self._clock.sleep(self._half_us, blocking=False)


def die() -> None:
    """End this process as `kill -9` does: nothing is flushed, nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)
