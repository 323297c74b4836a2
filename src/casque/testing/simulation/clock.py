"""SimClock: the clocks, random numbers and ids of one simulated process."""

from __future__ import annotations

import asyncio

from casque.system.bell_asyncio import LoopBell
from casque.system.clock import SECOND_US, Bell
from casque.system.ids import Minted, mint_uuid7
from casque.testing.simulation.loop import ProcessLoop
from casque.testing.simulation.world import World


class SimClock:
    """A wall clock that is wrong and may jump, and a monotonic clock that drifts slightly."""

    def __init__(self, world: World, loop: ProcessLoop, name: str, skew_us: int = 0) -> None:
        self._world = world
        self._random = world.chance(f"{name}'s chance")
        self._last = 0
        self.skew_us = skew_us
        self.monotonic = loop.steady_us
        self.random = self._random.random

    def now(self) -> int:
        return self._world.now() + self.skew_us

    def moment(self) -> tuple[int, int]:
        return self.now(), self.monotonic()

    def new_id(self) -> str:
        return self.mint(1)[0][0]

    def mint(self, count: int) -> Minted:
        chances = [self._random.getrandbits(64) for _ in range(count)]
        minted = mint_uuid7(self._last, max(self.now() // 1000, 0), chances)
        self._last = minted[1][-1]
        return minted

    def bell(self, *, blocking: bool) -> Bell:
        assert not blocking, "a simulated process has one thread"
        return LoopBell()

    async def sleep(self, span: int, *, blocking: bool) -> None:
        assert not blocking, "a simulated process has one thread"
        await asyncio.sleep(span / SECOND_US)
