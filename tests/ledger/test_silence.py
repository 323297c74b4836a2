"""A storage that does not answer: everybody is told so in time, however many ask at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta

import pytest

from casque import DirectQueue, StorageError
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Found
from casque.clock import SECOND_US, SystemClock
from casque.stores.ledger.store import CHECK_EVERY_US, LedgerStore
from casque.testing import FakeClock

CALLERS = 20


class Silent(MemoryBucket):
    """Takes its time over a read and gives no answer, once it `is_silent`."""

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


def test_many_who_wait_for_a_silent_storage_are_told_so_together() -> None:
    async def main() -> None:
        clock = FakeClock()
        bucket = Silent(clock)
        q = DirectQueue(LedgerStore(bucket, clock))
        other = DirectQueue(q.store)
        await q.enqueue("e", id="1")
        clock.advance(timedelta(microseconds=2 * CHECK_EVERY_US))  # so that the next looks first
        bucket.is_silent, begun = True, clock.monotonic()
        took = list[float]()

        async def ask(call: Awaitable[object]) -> None:
            with pytest.raises(StorageError, match=r"for 30 s\. Nothing was written"):
                await call
            took.append((clock.monotonic() - begun) / SECOND_US)

        calls = [q.get("1") for _ in range(CALLERS)]
        await asyncio.gather(*map(ask, calls), ask(q.enqueue("e")), ask(other.enqueue("e")))
        assert max(took) < 70  # who came a little later than the first tries for itself
        bucket.is_silent = False
        assert (await q.stats()).pending == 1

    asyncio.run(asyncio.wait_for(main(), 30))
