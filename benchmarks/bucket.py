"""Throughput of a queue in a bucket: full cycles through a bucket that takes 50 ms to answer.

One process. A bucket in memory, with 50 ms added to every request: half on the
way there, half on the way back. Payloads of 100 bytes. A cycle is an enqueue, a
dequeue and an ack, each answered before the next. It also counts the requests and
the logged bytes. Then it opens a ledger of 2,000 entries twice: once with every GET
answered, once with one GET in a hundred hanging.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random
import statistics
import sys
import time
from typing import Literal

from casque import BrokerQueue
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Expect, Found, Listed, Version
from casque.stores.ledger.store import LedgerStore

PAYLOAD = bytes(range(100))
TRIP_SECONDS = 0.05
ENTRIES = 2_000
HANGING_SHARE = 0.01
SLOWER_LIMIT = 3.0


class DistantBucket:
    """A bucket in memory with a delay; counts its requests."""

    name = "distant bucket"
    blocking = False

    def __init__(self, bucket: MemoryBucket | None = None, hanging_share: float = 0.0) -> None:
        self.requests = 0
        self.logged = 0
        self._bucket = bucket or MemoryBucket()
        self._hanging_share = hanging_share
        self._random = random.Random(1)

    async def get(self, key: str) -> Found | None:
        await self._trip()
        if self._random.random() < self._hanging_share:
            await asyncio.Event().wait()
        return await self._bucket.get(key)

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        await self._trip()
        self.logged += len(body) * key.startswith("log/")
        return await self._bucket.put(key, body, expect=expect)

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        await self._trip()
        return await self._bucket.list(prefix, after=after)

    async def delete(self, key: str) -> None:
        await self._trip()
        await self._bucket.delete(key)

    async def close(self) -> None:
        await self._bucket.close()

    async def _trip(self) -> None:
        self.requests += 1
        await asyncio.sleep(TRIP_SECONDS)


class Measured:
    """The figures of a run."""

    def __init__(self, cycles: int, seconds: float, bucket: DistantBucket) -> None:
        self.rate = cycles / seconds
        self.bytes = bucket.logged / cycles
        self.requests = 1_000 * bucket.requests / cycles


async def measure(callers: int, seconds: float) -> Measured:
    bucket = DistantBucket()
    async with BrokerQueue(LedgerStore(bucket)) as q:
        await q.stats()  # opens the ledger, so that only the cycles are measured
        bucket.requests = bucket.logged = cycles = 0
        begun = time.perf_counter()

        async def caller() -> None:
            nonlocal cycles
            while time.perf_counter() < begun + seconds:
                await q.enqueue("work", PAYLOAD)
                [job] = await q.dequeue("work")
                await q.ack(job)
                cycles += 1

        await asyncio.gather(*(caller() for _ in range(callers)))
        return Measured(cycles, time.perf_counter() - begun, bucket)


async def filled() -> MemoryBucket:
    bucket = MemoryBucket()
    async with BrokerQueue(LedgerStore(bucket)) as q:
        for _ in range(ENTRIES):
            await q.enqueue("work", PAYLOAD)
    return bucket


async def seconds_to_open(bucket: MemoryBucket, hanging_share: float) -> float:
    async with BrokerQueue(LedgerStore(DistantBucket(bucket, hanging_share))) as q:
        begun = time.perf_counter()
        stats = await q.stats()
        assert stats.pending == ENTRIES
        return time.perf_counter() - begun


async def opening(rounds: int) -> bool:
    """Open a ledger with and without hanging requests, by turns. True if the limit is kept."""
    bucket, ratios, clean = await filled(), [], []
    for _ in range(rounds):
        clean.append(await seconds_to_open(bucket, 0.0))
        ratios.append(await seconds_to_open(bucket, HANGING_SHARE) / clean[-1])
    ratio = statistics.median(ratios)
    kept = ratio <= SLOWER_LIMIT
    print(
        f"opening {ENTRIES:,} entries: {statistics.median(clean):.2f} s; with {HANGING_SHARE:.0%} "
        f"of the GETs hanging {ratio:.2f}x ({min(ratios):.2f}, {max(ratios):.2f}), at most "
        f"{SLOWER_LIMIT:g}x: {'kept' if kept else 'MISSED'}"
    )
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each round")
    arguments = parser.parse_args()
    print(
        f"{platform.python_implementation()} {platform.python_version()}; "
        f"{1000 * TRIP_SECONDS:.0f} ms per request; medians of {arguments.rounds} rounds of "
        f"{arguments.seconds:g} s (lowest, highest)"
    )
    limits = {1: (6.0, None), 1_000: (3_000.0, 30.0)}
    is_kept = True
    for callers, (least, most_requests) in limits.items():
        rounds = [asyncio.run(measure(callers, arguments.seconds)) for _ in range(arguments.rounds)]
        rates = sorted(one.rate for one in rounds)
        rate = statistics.median(rates)
        logged = statistics.median(one.bytes for one in rounds)
        requests = statistics.median(one.requests for one in rounds)
        kept = (
            rate >= least and logged <= 400 and (most_requests is None or requests <= most_requests)
        )
        is_kept &= kept
        print(
            f"{callers:5} callers: {rate:8,.1f} cycles/s ({rates[0]:,.1f}, {rates[-1]:,.1f}), at "
            f"least {least:,.0f}; {logged:.0f} bytes logged per cycle, at most 400; "
            f"{requests:,.1f} requests per 1,000 cycles"
            f"{'' if most_requests is None else ', at most 30'}: "
            f"{'kept' if kept else 'MISSED'}"
        )
    is_kept &= asyncio.run(opening(arguments.rounds))
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
