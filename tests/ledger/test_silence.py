"""A storage that does not answer: callers get errors in time, and recover after a sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Literal

import pytest

from casque import DirectQueue, Queue, StorageError
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Expect, Found, Version
from casque.stores.ledger.log_reader import CHECK_EVERY_US
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US, SystemClock
from casque.testing import FakeClock

CALLERS = 20


class Silent(MemoryBucket):
    """A bucket that takes long over a read and gives no answer, once it `is_silent`."""

    blocking = False
    is_silent = False

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.time = clock

    async def get(self, key: str) -> Found | None:
        await SystemClock().sleep(0, blocking=False)
        if self.is_silent:
            self.time.advance(timedelta(seconds=5))
            raise StorageError(f"cannot read {key}: no answer. Try again.")
        return await super().get(key)


def test_many_callers_of_a_silent_storage_get_their_errors_together() -> None:
    async def main() -> None:
        clock = FakeClock()
        bucket = Silent(clock)
        q = DirectQueue(LedgerStore(bucket, clock))
        other = DirectQueue(q.store)
        await q.enqueue("e", id="1")
        clock.advance(timedelta(microseconds=2 * CHECK_EVERY_US))  # so that the next call checks
        bucket.is_silent, begun = True, clock.monotonic()
        took = list[float]()

        async def ask(call: Awaitable[object]) -> None:
            with pytest.raises(StorageError, match=r"for 30 s\. Nothing was written"):
                await call
            took.append((clock.monotonic() - begun) / SECOND_US)

        calls = [q.get("1") for _ in range(CALLERS)]
        await asyncio.gather(*map(ask, calls), ask(q.enqueue("e")), ask(other.enqueue("e")))
        assert max(took) <= 35  # the last request may take 5 s more
        bucket.is_silent = False
        assert (await q.stats()).pending == 1

    asyncio.run(asyncio.wait_for(main(), 30))


class Sleeps(MemoryBucket):
    """Stores an entry, and then the machine sleeps for an hour: no answer arrives."""

    is_to_sleep = False

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.time = clock

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        version = await super().put(key, body, expect=expect)
        if self.is_to_sleep:
            self.is_to_sleep = False
            self.time.advance(timedelta(hours=1))
            raise StorageError(f"cannot write {key}: no answer. Try again.")
        return version


def test_a_process_that_slept_during_a_write_checks_its_outcome() -> None:
    clock = FakeClock()
    bucket = Sleeps(clock)
    with Queue(LedgerStore(bucket, clock)) as q:
        q.enqueue("e")
        bucket.is_to_sleep = True
        job = q.enqueue("e")
        assert q.get(job.id) is not None
        assert q.stats().pending == 2
