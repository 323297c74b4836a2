"""The cost of a claim and its ack in a deep queue: it should be the same as in a small one.

Each store is in its own process, so that neither pays for the other's heap or
garbage collector. The collector stays on as it is for users (it runs once more
after the filling). Rounds alternate between the small store and the large one.
The result is the median of the rounds' ratios, since both halves of a round have
the same noise.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import platform
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from casque import NewJob, Queue

STORES = {
    "memory": "memory://",
    "sqlite": "sqlite:///{folder}/jobs.db?durability=normal",
    "synced": "sqlite:///{folder}/jobs.db",
}
"""Addresses by name; `{folder}` stands for a temporary folder."""

PAYLOAD_BYTES = 100
FILL = 10_000
WARM_UP = 20
LIMIT_RATIOS = {"memory": 2.0, "sqlite": 1.5, "synced": 1.5}
LIMIT_BYTES = 1024
LIMIT_FAULTS = 5
ENOUGH_TO_WEIGH = 100_000
"""With fewer jobs, the freed memory of their batches outweighs them."""
BETTER, NORMAL = -1, 0
TOMORROW = timedelta(days=1)


class Shape(NamedTuple):
    """The contents of a store: ready jobs, and other jobs that must not slow them down."""

    ready: int
    future: int = 0
    idle_queues: int = 0
    entrypoints: int = 1
    queues: int = 1

    @property
    def names(self) -> list[str]:
        """The entrypoints to claim."""
        return ["work", *(f"work-{number}" for number in range(1, self.entrypoints))]

    def ready_jobs(self, count: int) -> Iterator[NewJob]:
        """Yield the jobs, from each line in turn."""
        names = self.names
        for number in range(count):
            queue = f"queue-{number // len(names) % self.queues}"
            yield NewJob(names[number % len(names)], payload(number), NORMAL, queue=queue)

    def jobs(self) -> Iterator[NewJob]:
        for number in range(self.future):
            yield NewJob("work", payload(number), BETTER, queue="queue-0", delay=TOMORROW)
        for number in range(self.idle_queues):
            yield NewJob("work", payload(number), queue=f"idle-{number}", delay=TOMORROW)
        yield from self.ready_jobs(self.ready)

    @property
    def lines(self) -> int:
        return self.entrypoints * self.queues

    @property
    def total(self) -> int:
        return self.ready + self.future + self.idle_queues


class Filled(NamedTuple):
    seconds: float
    bytes_per_job: float


class Timed(NamedTuple):
    seconds_per_job: float
    claim_seconds: float
    """The part of the seconds that the claims took."""
    collector_seconds: float
    """The part of all timed seconds that the garbage collector took."""
    faults_per_job: float
    """Pages that the process requested from the system."""


class Comparison(NamedTuple):
    filled: Filled
    small: list[Timed]
    large: list[Timed]

    def ratios(self, what: Callable[[Timed], float]) -> list[float]:
        pairs = zip(self.large, self.small, strict=True)
        return [what(large) / what(small) for large, small in pairs]


def payload(number: int) -> bytes:
    """Return a separate object for every job: a shared one would take no memory."""
    return number.to_bytes(PAYLOAD_BYTES, "big")


def fill(queue: Queue, jobs: Iterable[NewJob]) -> None:
    waiting = iter(jobs)
    while batch := list(islice(waiting, FILL)):
        queue.enqueue_many(batch)


def claim_and_ack(queue: Queue, names: list[str], count: int) -> float:
    """Return the seconds that the claims took; the rest went to the acks."""
    taken = 0.0
    for _ in range(count):
        start = time.perf_counter()
        [job] = queue.dequeue(names)
        taken += time.perf_counter() - start
        queue.ack(job)
    return taken


def timed_round(queue: Queue, shape: Shape, count: int, collector: list[float]) -> Timed:
    """Claim and ack `count` jobs, then add as many, so that the store is as deep as before."""
    claim_and_ack(queue, shape.names, WARM_UP)  # the other process used the CPU caches meanwhile
    collector.clear()
    faults, start = page_faults(), time.perf_counter()
    claiming = claim_and_ack(queue, shape.names, count)
    taken = time.perf_counter() - start
    spent, faults = sum(collector), page_faults() - faults
    fill(queue, shape.ready_jobs(WARM_UP + count))
    return Timed(taken / count, claiming / count, spent, faults / count)


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def collector_times() -> list[float]:
    """A list that grows by the seconds of every run of the garbage collector."""
    seconds: list[float] = []
    started = 0.0

    def watch(phase: str, _: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.perf_counter()
        else:
            seconds.append(time.perf_counter() - started)

    gc.callbacks.append(watch)
    return seconds


def resident_bytes() -> int:
    """Return the memory of this process; on systems that report only its peak, the peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize()


def serve(pipe: Connection, address: str, shape: Shape) -> None:
    """Run a process with one store: fill it, then time rounds on request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the pipe
    with Queue(address) as queue:
        queue.enqueue("first")
        queue.ack(queue.dequeue("first")[0])  # does the imports of the first use
        gc.collect()
        before = resident_bytes()
        start = time.perf_counter()
        fill(queue, shape.jobs())
        taken = time.perf_counter() - start
        gc.collect()
        pipe.send(Filled(taken, (resident_bytes() - before) / shape.total))
        collector = collector_times()
        try:
            while True:
                pipe.send(timed_round(queue, shape, pipe.recv(), collector))
        except EOFError:
            return


@contextmanager
def held_store(name: str, shape: Shape) -> Iterator[tuple[Connection, Filled]]:
    """Start a filled store in its own process; request rounds through the connection."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="casque-depth-") as folder:
        ours, theirs = context.Pipe()
        address = STORES[name].format(folder=folder)
        process = context.Process(target=serve, args=(theirs, address, shape), daemon=True)
        process.start()
        theirs.close()
        try:
            yield ours, ours.recv()
        finally:
            ours.close()
            process.join()


def compare(
    store: str, small: Connection, shape: Shape, *, rounds: int, per_round: int
) -> Comparison:
    with held_store(store, shape) as (large, filled):
        pair: dict[Connection, list[Timed]] = {small: [], large: []}
        for number in range(rounds):
            # The first one alternates too: periodic noise must not favour one of them.
            for pipe in (small, large) if number % 2 else (large, small):
                pipe.send(per_round)
                pair[pipe].append(pipe.recv())
        return Comparison(filled, pair[small], pair[large])


def report(title: str, result: Comparison, *, per_round: int, limit: float, claims: bool) -> bool:
    """Print one comparison. True if it kept the limit. `claims` compares the claims alone."""

    def seconds(one: Timed) -> float:
        return one.claim_seconds if claims else one.seconds_per_job

    ratios = result.ratios(seconds)
    ratio = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4)
    small, large = (
        statistics.median(map(seconds, half)) * 1e6 for half in (result.small, result.large)
    )
    timed = sum(one.seconds_per_job for one in result.large) * per_round
    collector = sum(one.collector_seconds for one in result.large) / timed
    kept = ratio <= limit
    print(f"\n{title}")
    what = "claim           " if claims else "claim+ack       "
    print(f"  {what} {large:.1f} µs per job; {small:.1f} µs in the small store")
    print(
        f"  ratio            {ratio:.2f}x, limit {limit:g}x: {verdict(kept)}   "
        f"(middle half {low:.2f}-{high:.2f}, all {min(ratios):.2f}-{max(ratios):.2f})"
    )
    print(f"  collector        on; {collector:.1%} of the large store's time")
    faults = statistics.median(one.faults_per_job for one in result.large)
    calm = faults <= LIMIT_FAULTS
    print(f"  page faults      {faults:.1f} per job, limit {LIMIT_FAULTS}: {verdict(calm)}")
    return kept and calm


def report_memory(filled: Filled, jobs: int) -> bool:
    kept = filled.bytes_per_job < LIMIT_BYTES or jobs < ENOUGH_TO_WEIGH
    judged = "too few jobs to judge" if jobs < ENOUGH_TO_WEIGH else verdict(kept)
    print(
        f"  memory           {filled.bytes_per_job:,.0f} bytes per job with {PAYLOAD_BYTES} of "
        f"payload, limit {LIMIT_BYTES:,}: {judged}"
    )
    print(f"  filled           {jobs / filled.seconds:,.0f} jobs per second, {FILL:,} at a time")
    return kept


def verdict(kept: bool) -> str:  # noqa: FBT001 - the only argument
    return "pass" if kept else "FAIL"


def machine() -> str:
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}"
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=["memory", "sqlite"], default="memory")
    parser.add_argument("--small", type=int, default=1_000, help="jobs in the small store")
    parser.add_argument("--large", type=int, default=1_000_000, help="jobs in the large ones")
    parser.add_argument("--queues", type=int, default=100_000, help="idle queues in the store")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each comparison")
    parser.add_argument(
        "--quick", action="store_true", help="100,000 jobs, 10,000 queues, 15 rounds: seconds"
    )
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.large, chosen.queues, chosen.rounds = 100_000, 10_000, 15
    if chosen.small < 100 or chosen.large < chosen.small or chosen.queues < 1 or chosen.rounds < 2:
        parser.error("needs --small of at least 100, --large above it, and 2 --rounds or more")
    return chosen


def main() -> int:
    chosen = options()
    small, large, queues = chosen.small, chosen.large, chosen.queues
    per_round = min(small // 2, 300)
    shapes = {
        f"{large:,} queued jobs": Shape(large),
        f"{large:,} future jobs of better priority in the line, {small:,} ready behind them": Shape(
            small, future=large
        ),
        f"{queues:,} idle queues, with a future job in each": Shape(small, idle_queues=queues),
    }
    # The comparisons above do not wait for disk writes, so that the other costs show. But how much
    # longer a claim takes that has to choose must be measured with the durability that users have.
    is_sqlite = chosen.store == "sqlite"
    choices = {
        f"{shape.entrypoints} entrypoints in {shape.queues} queues are due; synced": shape
        for shape in (
            Shape(small, entrypoints=5),
            Shape(small, queues=10),
            Shape(small * 5, entrypoints=5, queues=10),
        )
    }
    print(f"depth: claim and ack one job, store {chosen.store}, against {small:,} queued jobs")
    print(
        f"{machine()}; {chosen.rounds} alternating rounds of {per_round} jobs; "
        "ratio: median of the rounds"
    )
    verdicts: list[bool] = []
    for store, some in ((chosen.store, shapes), ("synced", choices if is_sqlite else {})):
        limit = LIMIT_RATIOS[store]
        with held_store(store, Shape(small)) as (baseline, _):
            for title, shape in some.items():
                result = compare(store, baseline, shape, rounds=chosen.rounds, per_round=per_round)
                claims = shape.lines > 1
                verdicts.append(
                    report(title, result, per_round=per_round, limit=limit, claims=claims)
                )
                if store == "memory" and not shape.idle_queues:
                    verdicts.append(report_memory(result.filled, shape.total))
    missed = verdicts.count(False)
    print(f"\n{missed} of {len(verdicts)} limits missed" if missed else "\nevery limit kept")
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
