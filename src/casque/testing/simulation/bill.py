"""Bill: what a queue in a bucket costs, measured on virtual time.

Producers and workers run unchanged on a bucket that takes about 50 ms to answer. The ledger's own
meter counts their requests. The same load gives the same counts on every machine.
"""

from __future__ import annotations

import asyncio
from math import log
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from casque.buckets.memory import MemoryBucket
from casque.buckets.meter import Requests
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US
from casque.testing.simulation.clock import SimClock
from casque.testing.simulation.history import History
from casque.testing.simulation.loop import ProcessLoop
from casque.testing.simulation.network import Conditions, Network, SimBucket
from casque.testing.simulation.world import World
from casque.worker.app import App
from casque.worker.options import DEFAULT_CONCURRENCY, WorkerOptions
from casque.worker.store_thread import StoreThread
from casque.worker.worker import Worker

JOBS = 1_000_000
MONTH_SECONDS = 30 * 24 * 3600

_WAY_US = 25_000
"""How long a request or its answer is on the way, more or less."""
_LONGEST_WAY_US = 500_000
_TASK_SECONDS = 0.1
_PATIENCE_SECONDS, _FEW = 4, 10
"""How many jobs may be unfinished at the end: those of so many seconds, or a few."""
_WARM_SECONDS = 20
"""What happens before is not counted: the processes open the ledger, and find their pace."""


class Load(NamedTuple):
    """What the processes have to do."""

    jobs_per_second: float
    """At random moments, from all producers together. 0: the workers are idle."""
    seconds: int
    """For how long requests are counted."""
    producers: int = 1
    workers: int = 1
    concurrency: int = DEFAULT_CONCURRENCY


LOADS = {
    "1 job/s": Load(1, seconds=900),
    "100 jobs/s": Load(100, seconds=40, concurrency=200),
    "1,000 jobs/s": Load(1_000, seconds=10, concurrency=2_000),
    "idle": Load(0, seconds=1_800),
}
"""The loads of the committed figures, by name. Concurrency is high enough to carry the load."""


class Counted(NamedTuple):
    """What was counted."""

    load: Load
    requests: Requests
    jobs: int
    """How many jobs were done."""

    def per_unit(self) -> Requests:
        """Return the requests for a million jobs; of an idle load, for one worker in 30 days."""
        if self.load.jobs_per_second:
            return self._times(JOBS / self.jobs)
        return self._times(MONTH_SECONDS / self.load.seconds / self.load.workers)

    def _times(self, factor: float) -> Requests:
        counts = msgspec.structs.astuple(self.requests)
        return Requests(*(round(factor * count) for count in counts))


def measure(load: Load, *, seed: int = 0) -> Counted:
    """Run the load, and count its requests. Raises OverloadError if jobs pile up."""
    processes = _Processes(seed)

    def start(thread: StoreThread) -> None:
        processes.serve(thread)

    with mock.patch.object(StoreThread, "start", start):
        try:
            for place in range(load.workers):
                processes.start_worker(f"worker{place}", load.concurrency)
            for place in range(load.producers if load.jobs_per_second else 0):
                processes.start_producer(f"producer{place}", load.jobs_per_second / load.producers)
            processes.run_for(_WARM_SECONDS)
            before, done = processes.sent(), processes.done
            processes.run_for(load.seconds)
            waiting = processes.begun - processes.done
            if waiting > max(_PATIENCE_SECONDS * load.jobs_per_second, _FEW):
                raise OverloadError(waiting)
            return Counted(load, processes.sent() - before, processes.done - done)
        finally:
            processes.bury()


class OverloadError(Exception):
    """The workers cannot keep up with the producers: give them more concurrency."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting:,} jobs are waiting at the end. Use more concurrency.")


class _Processes:
    """Processes on one new ledger."""

    def __init__(self, seed: int) -> None:
        self._world = World(seed)
        conditions = Conditions(_WAY_US, _LONGEST_WAY_US)
        self._network = Network(self._world, History(self._world), conditions)
        stamps: Any = self._world
        self._bucket = MemoryBucket(stamps, name="s3://bill")
        self._loops: list[ProcessLoop] = []
        self._stores: list[LedgerStore] = []
        self._lasting: list[asyncio.Task[Any]] = []
        """The tasks that must not end."""
        self._enqueues: list[asyncio.Task[Any]] = []
        self.begun = self.done = 0
        """How many jobs were enqueued, and how many tasks have ended."""

    def sent(self) -> Requests:
        """Return the requests of all processes so far."""
        return sum((store.requests for store in self._stores), Requests())

    def start_worker(self, name: str, concurrency: int) -> None:
        loop, _, app = self._process(name)
        worker = Worker(app, WorkerOptions(concurrency=concurrency))
        self._lasting.append(loop.start(worker._run()))

    def serve(self, thread: StoreThread) -> None:
        """Run a store thread on its worker's loop: a simulated process has one thread."""
        self._lasting.append(asyncio.get_running_loop().create_task(thread._work()))

    def start_producer(self, name: str, jobs_per_second: float) -> None:
        loop, clock, app = self._process(name)

        async def produce() -> None:
            while True:
                seconds = -log(1 - clock.random()) / jobs_per_second
                await clock.sleep(int(seconds * SECOND_US), blocking=False)
                self.begun += 1
                adds = app.tasks["work"].aenqueue(self.begun)
                self._enqueues.append(loop.create_task(adds))

        self._lasting.append(loop.start(produce()))

    def run_for(self, seconds: int) -> None:
        self._world.run(until=lambda: False, limit_us=seconds * SECOND_US)
        for task in self._lasting:
            assert not task.done(), task.exception()
        for task in self._enqueues:
            assert not task.done() or task.exception() is None, task.exception()

    def bury(self) -> None:
        for loop in self._loops:
            loop.bury()

    def _process(self, name: str) -> tuple[ProcessLoop, SimClock, App]:
        loop = ProcessLoop(self._world)
        clock = SimClock(self._world, loop, name)
        store = LedgerStore(SimBucket(self._network, self._bucket, loop, name, _Unseeing()), clock)
        store.announce_to(lambda _: None)
        app = App(store)

        @app.task(name="work")
        async def work(number: int) -> None:
            await clock.sleep(int(_TASK_SECONDS * SECOND_US), blocking=False)
            self.done += 1

        self._loops.append(loop)
        self._stores.append(store)
        return loop, clock, app


class _Unseeing:
    """A witness of puts that ignores them."""

    def sent(self, key: str, body: bytes) -> None: ...

    def landed(self, key: str, body: bytes) -> None: ...

    def deleted(self, key: str) -> None: ...
