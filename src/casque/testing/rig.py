"""Rig: what each test of the suite uses: a storage, a clock, and queues on it.

A `Harness` describes a backend; the rig opens queues of one flavour on it. Each
`worker()` is a separate queue object on its own store handle, as in a separate
process.
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
from casque.queues.running_job import RunningJob, running_as
from casque.queues.sync_queue import Queue
from casque.stores.port import Store
from casque.system.clock import Clock
from casque.testing.fakeclock import FakeClock
from casque.testing.processes import in_processes, in_threads

Flavour = Literal["direct", "broker", "queue"]
FLAVOURS: tuple[Flavour, ...] = ("direct", "broker", "queue")
Tier = Literal["full", "small"]
T = TypeVar("T")
_WATCHED_TRIES = 200
"""After so many tries any sleeper counts: the watcher may be left over from an earlier test."""


class RawLine(NamedTuple):
    """A line as it is stored."""

    queue: str
    entrypoint: str
    visit_us: int | None
    """When to check the line next. None if it counts as due, or if the store does not keep this."""


class Raw(NamedTuple):
    """What is stored, read without the store's own code."""

    jobs: dict[str, dict[str, Any]]
    """By id. Each has at least `status`, `queue`, `entrypoint`, `priority`, `attempts`, `token`
    and `due_us` (None when finished)."""
    lines: list[RawLine]
    writers: dict[str, int]
    """Each writer's last commit number."""
    token: int
    """The store's token counter."""


class Harness(Protocol):
    """Describes a backend to the suite, and reads its storage without its code."""

    clock: FakeClock
    tier: Tier
    address: str | None
    """A URL that opens the same storage in another process; None if no other process can."""

    empty_is_new: bool
    """Whether an empty storage counts as a new queue, not as a damaged one."""

    def open(self, clock: Clock | None = None) -> Store:
        """Open another handle on the storage, as another process would."""
        ...

    def raw(self) -> Raw:
        """Return what is stored now, read without the store."""
        ...

    def writes(self) -> int:
        """Return how often the storage has been changed."""
        ...

    def touched(self) -> int | None:
        """Return how many index entries or rows claims have read; None for an exempt store."""
        ...

    def stored(self) -> bytes | None:
        """Return the stored bytes, of one object if there are several.

        None if the store keeps nothing outside the process.
        """
        ...

    def replace_stored(self, content: bytes) -> None:
        """Replace the bytes of `stored()`, as damage or another program would."""
        ...

    def wipe(self) -> bool:
        """Remove everything stored, even while it is open. False if that is impossible."""
        ...

    def slowed(self, delay: timedelta) -> Store | None:
        """Open a handle whose every request takes `delay` on the clock; None without requests."""
        ...


class _OnThreads:
    """The sync Queue with the signatures of the async one, so that one test covers both."""

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
        """Return `full` in the full tier, else a hundredth of it (at least 2)."""
        return full if self.harness.tier == "full" else max(full // 100, 2)

    async def worker(
        self, *, store: Store | None = None, clock: Clock | None = None, **options: Any
    ) -> AsyncQueue:
        """Open a queue of this rig's flavour on its own handle. It is closed after the test."""
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
        """Await `task` while the fake clock moves by `step` at a time, at most `within` in all."""
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
        raise AssertionError(f"still waiting after {steps:,} steps of the fake clock")

    async def until_asleep(self) -> None:
        """Wait until a call sleeps on the fake clock: before that it would not see time pass.

        The thread that watches a SQLite file sleeps too, and does not count.
        """
        for tried in range(2_000):
            watchers = sum(one.name == "casque-watch" for one in threading.enumerate())
            if self.clock.sleepers > (watchers if tried < _WATCHED_TRIES else 0):
                return
            await asyncio.sleep(0.005)
        raise AssertionError("no call waits for the fake clock")

    async def in_processes(self, count: int, work: Callable[..., None], *args: Any) -> list[Any]:
        """Run `work(address, report, place, *args)` `count` times at once. Returns all reports.

        It runs in real processes if another process can reach the storage, else
        in threads. `work` is a module-level function. It opens a queue with
        `address`; `report(value)` sends a value back. Its exceptions are raised here.
        """
        address = self.harness.address
        if address is None:
            return await asyncio.to_thread(in_threads, self.harness.open(), count, work, args)
        return await asyncio.to_thread(in_processes, address, count, work, args)

    async def close(self) -> None:
        await self._stack.aclose()


@contextmanager
def counted(count: Callable[[], int | None]) -> Iterator[Callable[[], int]]:
    """Give a function that returns by how much `count` grew since the context began."""
    before = count() or 0
    yield lambda: (count() or 0) - before


def inside(job: Job) -> AbstractContextManager[None]:
    """A context in which code runs as part of the job."""
    return running_as(RunningJob(job, None, lambda *_: None))
