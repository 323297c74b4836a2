"""Virtual time: tests on a loop whose time jumps, over a bucket that answers late or never."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Expect, Found, Listed, Version
from casque.stores.ledger.ledger_bucket import split_key
from casque.system.clock import SECOND_US
from casque.testing.simulation.clock import SimClock
from casque.testing.simulation.loop import ProcessLoop
from casque.testing.simulation.world import World

T = TypeVar("T")

LIMIT_US = 3_600 * SECOND_US


def in_virtual_time(main: Callable[[SimClock], Coroutine[Any, Any, T]]) -> T:
    """Run `main` on virtual time, with its clock, and return its result."""
    world = World(0)
    loop = ProcessLoop(world)
    task = loop.start(main(SimClock(world, loop, "test")))
    try:
        assert world.run(until=task.done, limit_us=LIMIT_US), "it hangs"
        return task.result()
    finally:
        loop.bury()


class Distant(MemoryBucket):
    """A bucket 50 ms away; some requests hang forever, or all sent once it `is_hung`."""

    blocking = False
    is_hung = False
    trip_us = 50_000
    share = 0.0
    """The share of read requests that hang."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.asked: list[str] = []

    async def get(self, key: str) -> Found | None:
        await self._trip(f"get {split_key(key)[1]}", self.share)
        return await super().get(key)

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        await self._trip(f"put {split_key(key)[1]}")
        return await super().put(key, body, expect=expect)

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        await self._trip(f"list {prefix}", self.share)
        return await super().list(prefix, after=after)

    async def delete(self, key: str) -> None:
        await self._trip(f"delete {split_key(key)[1]}")
        await super().delete(key)

    async def _trip(self, request: str, share: float = 0.0) -> None:
        self.asked.append(request)
        hangs = self.is_hung or self.clock.random() < share
        await self.clock.sleep(LIMIT_US if hangs else self.trip_us, blocking=False)
