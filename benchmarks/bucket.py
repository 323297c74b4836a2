"""Throughput of a queue in a bucket: full cycles through a bucket that takes 50 ms to answer.

One process. A bucket in memory, with 50 ms added to every request. Payloads of 100
bytes. A cycle is an enqueue, a dequeue and an ack, each answered before the next. It
also counts the requests and the logged bytes. With `--depth`, 5,000 callers share a
queue in which that many jobs wait. Then it opens a ledger of 2,000 entries twice:
once with every GET answered, once with one GET in a hundred hanging.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import platform
import random
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

from casque import BrokerQueue, NewJob
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Expect, Found, Listed, Version
from casque.stores.ledger.store import LedgerStore

PAYLOAD = bytes(range(100))
TRIP_SECONDS = 0.05
ENTRIES = 2_000
HANGING_SHARE = 0.01
FILLED_AT_ONCE = 10_000
MOST_LOGGED = 400
"""Bytes per cycle, however many jobs are queued."""
SLOWER_LIMIT = 3.0


class DistantBucket:
    """A bucket in memory with a delay; counts its requests."""

    name = "distant bucket"
    blocking = False

    def __init__(self, bucket: MemoryBucket | None = None, hanging_share: float = 0.0) -> None:
        self.trip_seconds = TRIP_SECONDS
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
        self.logged += len(body) * ("log/" in key)
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
        await asyncio.sleep(self.trip_seconds)


class Measured(NamedTuple):
    """The figures of a round."""

    rate: float
    bytes: float
    requests: float
    """Per 1,000 cycles."""
    cpu_us: float
    """Processor time of this process per cycle: comparable on a busy machine too."""


class Load(NamedTuple):
    """A number of concurrent callers, the jobs that are queued before, and the limits."""

    callers: int
    depth: int = 0
    least_rate: float = 0.0
    most_requests: float = math.inf


async def measure(load: Load, rounds: int, seconds: float) -> list[Measured]:
    bucket = DistantBucket()
    async with BrokerQueue(LedgerStore(bucket)) as q:
        await q.queues()  # reads the log, so that only the cycles are measured
        await fill(q, bucket, load.depth)
        return [await one_round(q, bucket, load.callers, seconds) for _ in range(rounds)]


async def fill(q: BrokerQueue, bucket: DistantBucket, depth: int) -> None:
    """Enqueue `depth` jobs, without the delay."""
    bucket.trip_seconds = 0.0
    before = resident_bytes()
    for begin in range(0, depth, FILLED_AT_ONCE):
        count = min(FILLED_AT_ONCE, depth - begin)
        await q.enqueue_many([NewJob("work", random.randbytes(len(PAYLOAD))) for _ in range(count)])
    bucket.trip_seconds = TRIP_SECONDS
    if depth:
        print(
            f"{depth:,} jobs: {(resident_bytes() - before - bucket.logged) / depth:.0f} bytes each"
        )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def one_round(
    q: BrokerQueue, bucket: DistantBucket, callers: int, seconds: float
) -> Measured:
    bucket.requests = bucket.logged = cycles = 0
    begun, cpu = time.perf_counter(), time.process_time()

    async def caller() -> None:
        nonlocal cycles
        while time.perf_counter() < begun + seconds:
            await q.enqueue("work", PAYLOAD)
            [job] = await q.dequeue("work")
            await q.ack(job)
            cycles += 1

    await asyncio.gather(*(caller() for _ in range(callers)))
    return Measured(
        cycles / (time.perf_counter() - begun),
        bucket.logged / cycles,
        1_000 * bucket.requests / cycles,
        1e6 * (time.process_time() - cpu) / cycles,
    )


async def filled() -> MemoryBucket:
    bucket = MemoryBucket()
    async with BrokerQueue(LedgerStore(bucket)) as q:
        for _ in range(ENTRIES):
            await q.enqueue("work", PAYLOAD)
    return bucket


async def seconds_to_open(bucket: MemoryBucket, hanging_share: float) -> float:
    async with BrokerQueue(LedgerStore(DistantBucket(bucket, hanging_share))) as q:
        begun = time.perf_counter()
        await q.queues()  # reads the log
        took = time.perf_counter() - begun
        assert (await q.stats()).pending == ENTRIES
        return took


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


def throughput(load: Load, rounds: int, seconds: float) -> bool:
    """Measure one load and print its figures. True if the limits are kept."""
    measured = asyncio.run(measure(load, rounds, seconds))
    rates = [one.rate for one in measured]
    rate, logged, requests, cpu_us = map(statistics.median, zip(*measured, strict=True))
    kept = bool(
        rate >= load.least_rate and logged <= MOST_LOGGED and requests <= load.most_requests
    )
    most = "" if load.most_requests == math.inf else f", at most {load.most_requests:g}"
    print(
        f"{load.callers:5,} callers, {load.depth:9,} jobs queued: {rate:8,.1f} cycles/s "
        f"({min(rates):,.1f}, {max(rates):,.1f}), at least {load.least_rate:,.0f}; {cpu_us:.0f} us "
        f"of processor time per cycle; {logged:.0f} bytes logged per cycle, at most {MOST_LOGGED}; "
        f"{requests:,.1f} requests per 1,000 cycles{most}: {'kept' if kept else 'MISSED'}",
        flush=True,
    )
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each round")
    parser.add_argument("--callers", type=int, help="measure only this many callers")
    parser.add_argument("--depth", type=int, default=0, help="so many jobs are queued before")
    arguments = parser.parse_args()
    print(
        f"{platform.python_implementation()} {platform.python_version()}; "
        f"{1000 * TRIP_SECONDS:.0f} ms per request; medians of {arguments.rounds} rounds of "
        f"{arguments.seconds:g} s (lowest, highest)"
    )
    loads = [Load(1, 0, 6.0), Load(1_000, 0, 4_500.0, 30.0)]
    if arguments.callers is not None:
        loads = [Load(arguments.callers, arguments.depth)]
    elif arguments.depth:
        loads.append(Load(5_000, arguments.depth, 6_000.0, 30.0))
    kept = [throughput(load, arguments.rounds, arguments.seconds) for load in loads]
    if arguments.callers is None:
        kept.append(asyncio.run(opening(arguments.rounds)))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
