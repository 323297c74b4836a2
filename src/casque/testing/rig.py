"""Rig: what a statement of the suite works with: a storage, a clock, and queues on it.

A backend describes itself by a `Harness`; the rig opens queues of one flavour
on it. Each `worker()` is a queue object of its own on a store handle of its
own, as another process would have.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from datetime import timedelta
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast

from casque.job import Job
from casque.queues.async_queue import AsyncQueue, BrokerQueue, DirectQueue
from casque.queues.sync_queue import Queue
from casque.stores.port import Store
from casque.system.clock import Clock
from casque.tasks.current import RunningJob, running_as
from casque.testing.fakeclock import FakeClock
from casque.testing.processes import in_processes, in_threads

Flavour = Literal["direct", "broker", "queue"]
FLAVOURS: tuple[Flavour, ...] = ("direct", "broker", "queue")
Tier = Literal["full", "small"]
T = TypeVar("T")
_WATCHED_TRIES = 200
"""A thread of an earlier test may still be there: then anybody who waits will do."""


class RawLine(NamedTuple):
    """A line as it is stored."""

    queue: str
    entrypoint: str
    visit_us: int | None
    """When it is worth a look; None: it is believed to be due, or the store does not keep it."""


class Raw(NamedTuple):
    """What is stored, read behind the API."""

    jobs: dict[str, dict[str, Any]]
    """By id; each with at least `status`, `queue`, `entrypoint`, `priority`, `attempts`, `token`
    and `due_us` (None when finished)."""
    lines: list[RawLine]
    writers: dict[str, int]
    """Each writer's last commit number."""
    token: int
    """The store's token counter."""


class Harness(Protocol):
    """What a backend tells the suite about itself."""

    clock: FakeClock
    tier: Tier
    address: str | None
    """A URL under which another process reaches the same storage; None when none can."""

    empty_is_new: bool
    """Whether nothing at all in the storage's place is a new queue, rather than a damaged one."""

    def open(self, clock: Clock | None = None) -> Store:
        """One more handle on the storage, as another process would open it."""
        ...

    def raw(self) -> Raw:
        """What is stored now, without asking the store."""
        ...

    def writes(self) -> int:
        """How many changes of the storage there have been."""
        ...

    def touched(self) -> int | None:
        """How many index entries or rows claims have looked at; None when it is exempt."""
        ...

    def stored(self) -> bytes | None:
        """The bytes that are stored (one object's, where there are several); None: none are."""
        ...

    def replace_stored(self, content: bytes) -> None:
        """Put other bytes in the place of `stored()`, as damage or another program would."""
        ...

    def wipe(self) -> bool:
        """Remove all that is stored, open or not. False when nobody can."""
        ...

    def slowed(self, delay: timedelta) -> Store | None:
        """A handle whose every request takes `delay` on the clock; None when it makes none."""
        ...


class _OnThreads:
    """The sync Queue behind the async one's signatures, so that one test serves both."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.store = queue.store
        self.worker = queue.worker
        self._held_claim = queue._held_claim

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._queue, name)

        @functools.wraps(method)
        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(method, *args, **options)

        return call

    @asynccontextmanager
    async def lease_queue(self, queue: str, **options: Any) -> AsyncIterator[Any]:
        context = self._queue.lease_queue(queue, **options)
        held = await asyncio.to_thread(context.__enter__)
        try:
            yield held
        finally:
            await asyncio.to_thread(context.__exit__, None, None, None)


class Rig:
    """One storage and one flavour of queue, for the length of one test."""

    def __init__(self, harness: Harness, flavour: Flavour) -> None:
        self.harness = harness
        self.flavour = flavour
        self.clock = harness.clock
        self._stack = AsyncExitStack()

    def size(self, full: int) -> int:
        """A size of the full tier, or a hundredth of it (at least 2)."""
        return full if self.harness.tier == "full" else max(full // 100, 2)

    async def worker(
        self, *, store: Store | None = None, clock: Clock | None = None, **options: Any
    ) -> AsyncQueue:
        """A queue of this rig's flavour on a handle of its own; closed with the test."""
        store = store or self.harness.open(clock)
        if self.flavour == "queue":
            queue = await asyncio.to_thread(Queue, store, **options)
            self._stack.push_async_callback(asyncio.to_thread, queue.close)
            return cast("AsyncQueue", _OnThreads(queue))
        kind = DirectQueue if self.flavour == "direct" else BrokerQueue
        return await self._stack.enter_async_context(kind(store, **options))

    def advance(self, **span: float) -> None:
        """Let time pass: `rig.advance(seconds=5)`."""
        self.clock.advance(timedelta(**span))

    async def until_done(
        self,
        task: Awaitable[T],
        *,
        step: timedelta = timedelta(0),
        steps: int = 2_000,
        within: timedelta = timedelta.max,
    ) -> T:
        """Await something that needs fake time to pass: `step` at a time, `within` in all."""
        future = asyncio.ensure_future(task)
        passed = timedelta(0)
        for _ in range(steps):
            done, _ = await asyncio.wait({future}, timeout=0.005)
            if done:
                return future.result()
            if passed < within:
                self.clock.advance(step)
                passed += step
        future.cancel()
        raise AssertionError("still waiting")

    async def until_asleep(self) -> None:
        """Until somebody waits for time to pass: who still asks a server does not see it pass.

        The thread that watches a SQLite file waits, too, and is not the one that is meant.
        """
        for tried in range(2_000):
            watchers = sum(one.name == "casque-watch" for one in threading.enumerate())
            if self.clock.sleepers > (watchers if tried < _WATCHED_TRIES else 0):
                return
            await asyncio.sleep(0.005)
        raise AssertionError("nobody waits")

    async def in_processes(self, count: int, work: Callable[..., None], *args: Any) -> list[Any]:
        """Run `work(address, report, place, *args)` `count` times at once; what they reported.

        In real processes where the storage can be reached from another, else
        in threads. `work` is a module-level function; `address` is what a queue
        is opened with, `report(value)` sends a value back. An exception there is one here.
        """
        address = self.harness.address
        if address is None:
            return await asyncio.to_thread(in_threads, self.harness.open(), count, work, args)
        return await asyncio.to_thread(in_processes, address, count, work, args)

    async def close(self) -> None:
        await self._stack.aclose()


@contextmanager
def counted(count: Callable[[], int | None]) -> Iterator[Callable[[], int]]:
    """Count what happens inside the context; the value given tells by how much it grew."""
    before = count() or 0
    yield lambda: (count() or 0) - before


def inside(job: Job) -> AbstractContextManager[None]:
    """While this holds, the code runs in the job."""
    return running_as(RunningJob(job, None, lambda *_: None))
