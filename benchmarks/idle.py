"""The requests of idle workers on a bucket, and how soon they find a job.

Each worker is a separate process on an S3 server: one of the tests, or yours. First
all of them wait on one ledger. After a minute the benchmark counts their requests by
kind, and the entries of the log. Then each worker waits on a ledger of its own, and
gets a job now and then, after it has been idle for long enough to check seldom. The
time until it finds the job is from the answer to the `enqueue` to the first line of
the task.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from report import Report

from casque import App, BrokerQueue
from casque.buckets.obstore import s3_bucket
from casque.buckets.port import Bucket, Expect, Found, Listed, Version
from casque.stores.ledger.ledger_bucket import split_key
from casque.stores.ledger.log import FOLDER as LOG
from casque.stores.ledger.polling import IDLE_SHARE, SLOWEST_US
from casque.system.clock import SECOND_US

LIMIT_REQUESTS, LIMIT_SECONDS = 0.7, 2.0
WARM_UP_SECONDS = 60
IDLE_SECONDS = IDLE_SHARE * SLOWEST_US / SECOND_US
"""How long a log must not grow until workers check it as seldom as they ever do."""
PATIENCE = 60
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest"}
BUCKET = "casque"


def opened(endpoint: str, prefix: str) -> Bucket:
    return s3_bucket(BUCKET, prefix, endpoint=endpoint, region="us-east-1")


class CountedBucket:
    """A bucket that counts its requests by method and folder."""

    blocking = False

    def __init__(self, bucket: Bucket) -> None:
        self.name, self.close = bucket.name, bucket.close
        self.requests: Counter[str] = Counter()
        self._bucket = bucket

    async def get(self, key: str) -> Found | None:
        self._count("GET", key)
        return await self._bucket.get(key)

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        self._count("PUT", key)
        return await self._bucket.put(key, body, expect=expect)

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        self._count("LIST", prefix)
        return await self._bucket.list(prefix, after=after)

    async def delete(self, key: str) -> None:
        self._count("DELETE", key)
        await self._bucket.delete(key)

    def _count(self, method: str, key: str) -> None:
        self.requests[f"{method} {split_key(key)[1].partition('/')[0]}"] += 1


def work(endpoint: str, prefix: str) -> None:
    """Be a worker. For each line on standard input, print the counts so far."""
    bucket = CountedBucket(opened(endpoint, prefix))
    app = App(bucket)

    @app.task
    def job() -> None:
        print("found", time.time(), flush=True)

    def answer() -> None:
        for _ in sys.stdin:
            print("counted", json.dumps(bucket.requests), flush=True)

    threading.Thread(target=answer, daemon=True).start()
    app.work()


class WorkerProcess:
    """A worker in a process."""

    def __init__(self, endpoint: str, prefix: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work", endpoint, prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=KEYS | os.environ,
        )

    def line(self, word: str) -> str:
        """Return the rest of its next line, which must begin with `word`."""
        assert self._process.stdout is not None
        found = self._process.stdout.readline()
        if not found.startswith(word):
            raise RuntimeError(f"expected a line with {word!r} from the worker, got {found!r}")
        return found.removeprefix(word)

    def requests(self) -> Counter[str]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Counter(json.loads(self.line("counted")))

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=PATIENCE)


@contextmanager
def workers(endpoint: str, prefixes: list[str]) -> Iterator[list[WorkerProcess]]:
    started = [WorkerProcess(endpoint, prefix) for prefix in prefixes]
    try:
        yield started
    finally:
        for one in started:
            one.stop()


@contextmanager
def server(endpoint: str | None) -> Iterator[str]:
    """Yield the endpoint of the S3 server; start the one of the tests if none is given."""
    if endpoint is not None:
        yield endpoint
        return
    sys.path.append(str(Path(__file__).parents[1]))
    from tests.servers.client import BucketServer

    own = BucketServer()
    own.make_bucket(BUCKET)
    try:
        yield own.url
    finally:
        own.stop()


# -- what is measured --------------------------------------------------------------


async def entries(endpoint: str, prefix: str) -> int:
    """Return how many entries the log has."""
    bucket = opened(endpoint, prefix)
    keys = [one.key for one in await bucket.list()]
    await bucket.close()
    return sum(split_key(key)[1].startswith(LOG) for key in keys)


def idling(report: Report, endpoint: str, count: int, minutes: float) -> None:
    prefix = f"idle-{time.time_ns()}"
    with workers(endpoint, [prefix] * count) as fleet:
        time.sleep(WARM_UP_SECONDS)
        first, written = [one.requests() for one in fleet], asyncio.run(entries(endpoint, prefix))
        time.sleep(minutes * 60)
        asked = [one.requests() - before for one, before in zip(fleet, first, strict=True)]
        grown = asyncio.run(entries(endpoint, prefix)) - written
    print(f"\n{count} workers wait on one ledger for {minutes:g} minutes, after the first minute")
    seconds = minutes * 60
    for kind, number in sum(asked, Counter[str]()).most_common():
        print(f"  {kind:<52} {number / count / seconds:.4f} requests/s per worker")
    most = max(one.total() for one in asked) / seconds
    report.amount("the worker with the most requests", most, "requests/s", LIMIT_REQUESTS, 3)
    report.amount("entries written", grown, "entries", 1, 0)


async def find(endpoint: str, prefix: str, worker: WorkerProcess, jobs: int) -> list[float]:
    """Return how long each job waited, in seconds."""
    chance, waited = random.Random(prefix), []
    async with BrokerQueue(opened(endpoint, prefix)) as q:
        for _ in range(jobs):
            await asyncio.sleep(IDLE_SECONDS + 2 * chance.random() * SLOWEST_US / SECOND_US)
            await q.enqueue("job", b"{}")
            stored = time.time()
            line = await asyncio.to_thread(worker.line, "found")
            waited.append(max(float(line) - stored, 0.0))
    return waited


async def finding(report: Report, endpoint: str, count: int, jobs: int) -> None:
    prefixes = [f"find-{time.time_ns()}-{place}" for place in range(count)]
    each = -(-jobs // count)
    with workers(endpoint, prefixes) as fleet:
        await asyncio.sleep(IDLE_SECONDS)
        found = await asyncio.gather(
            *(
                find(endpoint, prefix, one, each)
                for prefix, one in zip(prefixes, fleet, strict=True)
            )
        )
    waited = sorted(seconds for one in found for seconds in one)
    print(f"\n{len(waited)} jobs, each for one worker that has been idle for {IDLE_SECONDS:g} s")
    print(f"  {'p50':<52} {statistics.median(waited):.2f} s")
    p99 = waited[min(int(len(waited) * 0.99), len(waited) - 1)]
    report.amount("p99", p99, "s", LIMIT_SECONDS, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1, help="how long to count requests")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=30, help="how many jobs to find")
    parser.add_argument("--endpoint", help=f"an S3 server with a bucket named {BUCKET}")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        work(*chosen.work)
        return 0
    os.environ |= KEYS | os.environ
    print(f"{platform.python_version()}, {os.cpu_count()} cores")
    report = Report()
    with server(chosen.endpoint) as endpoint:
        idling(report, endpoint, chosen.workers, chosen.minutes)
        asyncio.run(finding(report, endpoint, chosen.workers, chosen.jobs))
    return report.close()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
