"""Several processes on one ledger in a folder, 50 ms away: how much gets through, and how fair.

Each process has 100 callers doing full cycles in a queue of its own (enqueue,
dequeue, ack), and 50 ms added to every request. Measured against one process
alone in the same run. Then the same beside a process whose requests take 500
ms: does it still commit within its deadline?
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable
from typing import Any, Literal, TypeVar

from casque import BrokerQueue, CasqueError
from casque.buckets.folder import FolderBucket
from casque.buckets.port import Expect, Found, Listed, Version
from casque.stores.ledger.store import LedgerStore

PROCESSES = 8
CALLERS = 100
TRIP_SECONDS = 0.05
SLOW_SECONDS = 0.5
TOGETHER_LIMIT = 0.5
SHARE_LIMIT = 1 / 3

T = TypeVar("T")


class DistantFolder:
    """A bucket in a folder with a long way to it: half of the trip there, half back."""

    blocking = False

    def __init__(self, path: str, trip: float) -> None:
        self._bucket = FolderBucket(path)
        self._half = trip / 2
        self.name = self._bucket.name

    async def get(self, key: str) -> Found | None:
        return await self._trip(self._bucket.get(key))

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        return await self._trip(self._bucket.put(key, body, expect=expect))

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        return await self._trip(self._bucket.list(prefix, after=after))

    async def delete(self, key: str) -> None:
        await self._trip(self._bucket.delete(key))

    async def close(self) -> None:
        await self._bucket.close()

    async def _trip(self, request: Awaitable[T]) -> T:
        await asyncio.sleep(self._half)
        try:
            return await request
        finally:
            await asyncio.sleep(self._half)


async def cycles(
    path: str, place: int, pace: tuple[float, int], start: float, end: float
) -> tuple[int, float, int]:
    """Full cycles of one process; how many, the longest a call took, and the errors."""
    (trip, callers), done, longest, errors = pace, 0, 0.0, 0
    async with BrokerQueue(LedgerStore(DistantFolder(path, trip))) as q:
        await q.stats()
        await asyncio.sleep(start - time.time())

        async def timed(call: Any) -> Any:
            nonlocal longest
            begun = time.perf_counter()
            try:
                return await call
            finally:
                longest = max(longest, time.perf_counter() - begun)

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
    return done, longest, errors


def work(pipe: Any, *how: Any) -> None:
    pipe.send(asyncio.run(cycles(*how)))


def run(trips: list[tuple[float, int]], seconds: float) -> list[tuple[int, float, int]]:
    """Processes with these trips and numbers of callers, at once, on a new ledger."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        start = time.time() + 3 + len(trips) / 2
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    fast = (TRIP_SECONDS, CALLERS)
    ratios, shares, waits, errors = [], [], [], 0
    for _ in range(arguments.rounds):
        [(alone, _, _)] = run([fast], arguments.seconds)
        several = run([fast] * PROCESSES, arguments.seconds)
        done = [one[0] for one in several]
        ratios.append(sum(done) / alone)
        shares.append(min(done) / (sum(done) / PROCESSES))
        beside = run([fast] * (PROCESSES - 1) + [(SLOW_SECONDS, 1)], arguments.seconds)
        waits.append(beside[-1][1])
        errors += sum(one[2] for one in several + beside)
        print(
            f"alone {alone / arguments.seconds:.0f} cycles/s; {PROCESSES} processes "
            f"{sum(done) / arguments.seconds:.0f}: {', '.join(map(str, done))}; the slow one: "
            f"{beside[-1][0]} cycles, its longest call {beside[-1][1]:.1f} s",
            flush=True,
        )
    together, share, wait = statistics.median(ratios), statistics.median(shares), max(waits)
    kept = together >= TOGETHER_LIMIT and share >= SHARE_LIMIT and not errors and wait < 30
    print(
        f"together {together:.2f}x of one alone, at least {TOGETHER_LIMIT}; the least had "
        f"{share:.2f} of a fair share, at least {SHARE_LIMIT:.2f}; the slow one waited "
        f"{wait:.1f} s at most, less than 30; {errors} errors: {'kept' if kept else 'MISSED'}"
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
