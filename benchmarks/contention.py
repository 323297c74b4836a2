"""Several processes on one ledger in a folder, 50 ms away: throughput and fairness.

Each process has several callers that do full cycles in its own queue (enqueue,
dequeue, ack), with 50 ms added to every request. The run compares them with one
process alone. Then slow processes, whose requests take 500 ms, join fast ones: how
long do their commits take, and how much of their rate do the fast ones keep?
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple, TypeVar

from casque import BrokerQueue, CasqueError
from casque.buckets.folder import FolderBucket
from casque.buckets.port import Expect, Found, Listed, Version
from casque.stores.ledger.store import LedgerStore

CALLERS = 20
TRIP_SECONDS = 0.05
SLOW_SECONDS = 0.5
TOGETHER_LIMIT = 0.5
SHARE_LIMIT = 1 / 3
KEPT_LIMIT = 2 / 3
WORST_SECONDS = 15.0
DEADLINE_SECONDS = 30.0

FAST = (TRIP_SECONDS, CALLERS)
SLOW = (SLOW_SECONDS, 1)

T = TypeVar("T")


class DistantFolder:
    """A bucket in a folder with a delay: half before each request, half after it."""

    blocking = False

    def __init__(self, path: str, trip: float) -> None:
        self._bucket = FolderBucket(path)
        self._half = trip / 2
        self.name = self._bucket.name

    async def get(self, key: str) -> Found | None:
        return await self._trip(lambda: self._bucket.get(key))

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        return await self._trip(lambda: self._bucket.put(key, body, expect=expect))

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        return await self._trip(lambda: self._bucket.list(prefix, after=after))

    async def delete(self, key: str) -> None:
        await self._trip(lambda: self._bucket.delete(key))

    async def close(self) -> None:
        await self._bucket.close()

    async def _trip(self, request: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self._half)
        try:
            return await request()
        finally:
            await asyncio.sleep(self._half)


class Measured(NamedTuple):
    """The figures of one process."""

    done: int
    """Full cycles."""
    calls: list[float]
    """How long each call took, in seconds."""
    errors: int


async def cycles(
    path: str, place: int, pace: tuple[float, int], start: float, end: float
) -> Measured:
    (trip, callers), done, calls, errors = pace, 0, [], 0
    async with BrokerQueue(LedgerStore(DistantFolder(path, trip))) as q:
        await q.enqueue("make the ledger")  # takes a dozen round trips
        await asyncio.sleep(start - time.time())

        async def timed(call: Any) -> Any:
            begun = time.perf_counter()
            try:
                return await call
            finally:
                calls.append(time.perf_counter() - begun)

        async def caller() -> None:
            nonlocal done, errors
            mine = f"process {place}"
            while time.time() < end:
                try:
                    await timed(q.enqueue("work", bytes(100), queue=mine))
                    [job] = await timed(q.dequeue("work", queue=mine))
                    await timed(q.ack(job))
                    done += time.time() < end
                except CasqueError as error:
                    print(f"process {place}: {type(error).__name__}: {error}", file=sys.stderr)
                    errors += 1

        await asyncio.gather(*(caller() for _ in range(callers)))
    return Measured(done, calls, errors)


def work(pipe: Any, *how: Any) -> None:
    pipe.send(asyncio.run(cycles(*how)))


def run(trips: list[tuple[float, int]], seconds: float) -> list[Measured]:
    """Run processes with these round trips and numbers of callers in parallel on a new ledger."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        longest, _ = max(trips)
        start = time.time() + 3 + len(trips) / 2 + 24 * longest
        children = []
        for place, pace in enumerate(trips):
            ours, theirs = context.Pipe()
            how = (theirs, f"{folder}/queue", place, pace, start, start + seconds)
            child = context.Process(target=work, args=how)
            child.start()
            children.append((child, ours))
        results = [ours.recv() for _, ours in children]
        for child, _ in children:
            child.join()
    return results


class Verdict:
    """Prints figures with their limits, and remembers whether all were kept."""

    def __init__(self) -> None:
        self.is_kept = True

    def at_least(self, what: str, figure: float, limit: float) -> None:
        self._print(what, figure, f"at least {limit:.2f}", kept=figure >= limit)

    def at_most(self, what: str, figure: float, limit: float) -> None:
        self._print(what, figure, f"at most {limit:.2f}", kept=figure <= limit)

    def _print(self, what: str, figure: float, limit: str, *, kept: bool) -> None:
        self.is_kept = self.is_kept and kept
        print(f"  {what}: {figure:.2f}, {limit}: {'kept' if kept else 'MISSED'}", flush=True)


def total(measured: list[Measured]) -> int:
    return sum(one.done for one in measured)


def equal(count: int, seconds: float, verdict: Verdict, together_limit: float) -> None:
    """Compare several equal processes with one of them alone."""
    alone, several = run([FAST], seconds), run([FAST] * count, seconds)
    done = sorted(one.done for one in several)
    calls = [call for one in several for call in one.calls]
    print(f"{count} equal: {total(several)} cycles, alone {total(alone)}; each {done}")
    verdict.at_least("total, relative to one alone", total(several) / total(alone), together_limit)
    verdict.at_least("smallest, relative to a fair share", done[0] * count / sum(done), SHARE_LIMIT)
    verdict.at_most("longest call, in s", max(calls), DEADLINE_SECONDS)
    verdict.at_most("errors", sum(one.errors for one in several), 0)


def mixed(slow: int, fast: int, seconds: float, verdict: Verdict, median_limit: float) -> None:
    """Compare slow processes beside fast ones with the fast ones alone."""
    before, both = run([FAST] * fast, seconds), run([FAST] * fast + [SLOW] * slow, seconds)
    calls = [call for one in both[fast:] for call in one.calls]
    print(f"{slow} slow and {fast} fast: the slow ones made {len(calls)} calls")
    verdict.at_most("median of the slow calls, in s", statistics.median(calls), median_limit)
    verdict.at_most("longest slow call, in s", max(calls), WORST_SECONDS)
    verdict.at_least(
        "share of their rate that the fast ones keep",
        total(both[:fast]) / total(before),
        KEPT_LIMIT,
    )
    verdict.at_most("errors", sum(one.errors for one in both), 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=40.0, help="length of each measurement")
    arguments = parser.parse_args()
    verdict, seconds = Verdict(), arguments.seconds
    equal(8, seconds, verdict, TOGETHER_LIMIT)
    equal(20, seconds, verdict, TOGETHER_LIMIT / 2)
    mixed(1, 7, seconds, verdict, median_limit=5.0)
    mixed(3, 5, seconds, verdict, median_limit=12.0)
    return 0 if verdict.is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
