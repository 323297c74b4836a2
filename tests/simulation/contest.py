"""Contests on virtual time: processes on one ledger, some with ten times the round trip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from statistics import median
from typing import Any, NamedTuple

from casque import BrokerQueue
from casque.buckets.memory import MemoryBucket
from casque.errors import CasqueError
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US
from casque.testing.simulation import Violation
from casque.testing.simulation.clock import SimClock
from casque.testing.simulation.history import History
from casque.testing.simulation.loop import ProcessLoop
from casque.testing.simulation.network import Conditions, Network, SimBucket
from casque.testing.simulation.world import World

FAST, SLOW = 1.0, 10.0
"""A round trip takes 50 ms times this, more or less."""
_DELAY_US = 25_000
_LONGEST_US = 500_000


class Contender(NamedTuple):
    """A process that adds jobs, one commit after the other."""

    calls: list[float]
    """How long each took, in seconds."""
    errors: list[CasqueError]
    requests: Counter[str]
    """The number of requests by method and folder."""


class Contest:
    """Processes with these round trips on a new ledger."""

    def __init__(self, *slowness: float, seed: int = 0) -> None:
        self.world = World(seed)
        self._network = Network(self.world, History(self.world), Conditions(_DELAY_US, _LONGEST_US))
        stamps: Any = self.world
        self._bucket = MemoryBucket(stamps, name="contest")
        self._loops: list[ProcessLoop] = []
        self.all = [self._enter(f"p{place}", one) for place, one in enumerate(slowness)]

    def run_for(self, seconds: float) -> None:
        try:
            self.world.run(until=lambda: False, limit_us=int(seconds * SECOND_US))
        finally:
            for loop in self._loops:
                loop.bury()

    def _enter(self, name: str, slowness: float) -> Contender:
        loop = ProcessLoop(self.world)
        self._loops.append(loop)
        one = Contender([], [], Counter())
        bucket = _Counted(
            self._network, self._bucket, loop, name, requests=one.requests, slowness=slowness
        )
        store = LedgerStore(bucket, SimClock(self.world, loop, name))

        async def work() -> None:
            async with BrokerQueue(store) as q:
                await q.queues()  # reads the log
                while True:
                    begun = self.world.elapsed_us
                    try:
                        await q.enqueue("e")
                    except CasqueError as error:
                        one.errors.append(error)
                    one.calls.append((self.world.elapsed_us - begun) / SECOND_US)

        loop.start(work())
        return one


class TwoWaiters:
    """Two slow processes beside three fast ones: both must get in repeatedly."""

    MEDIAN_SECONDS, WORST_SECONDS = 10.0, 15.0

    def __init__(self, seed: int) -> None:
        self._contest = Contest(*[FAST] * 3, *[SLOW] * 2, seed=seed)

    def run(self) -> None:
        self._contest.run_for(30)
        for place, one in enumerate(self._contest.all[3:]):
            if not one.calls or one.errors:
                raise Violation(f"slow process {place} never got in: {one.errors}")
            if median(one.calls) > self.MEDIAN_SECONDS or max(one.calls) > self.WORST_SECONDS:
                raise Violation(f"slow process {place} waits too long: {one.calls}")


class _Counted(SimBucket):
    def __init__(
        self,
        network: Network,
        bucket: MemoryBucket,
        loop: ProcessLoop,
        name: str,
        *,
        requests: Counter[str],
        slowness: float,
    ) -> None:
        super().__init__(network, bucket, loop, name, self, slowness=slowness)
        self._requests = requests

    def sent(self, key: str, body: bytes) -> None:
        """Do nothing: `_ask` counts the puts too."""

    def deleted(self, key: str) -> None:
        """Do nothing."""

    def landed(self, key: str, body: bytes) -> None:
        """Do nothing."""

    async def _ask(self, name: str, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self._requests[name.partition("/")[0]] += 1
        return await super()._ask(name, ask)
