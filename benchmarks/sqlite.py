"""The cost of a queue in a SQLite file, compared with raw sqlite3 and with peers, in one run.

Every contender commits to disk (synchronous=FULL, WAL) and uses a new file in
each round. Within a round they take turns, 100 jobs at a time. The result is the
median of the rounds' ratios. Raw sqlite3 does the minimum: one INSERT per
transaction, a claim by UPDATE … RETURNING, then a DELETE. It has an index, so that
its claim finds the next job without a scan; "bare" is the same without the index.
Peers: pip install '.[bench]'.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from contenders import (
    CALLERS,
    DRAIN_BATCH,
    PAYLOAD,
    PEERS,
    WITH_ACK,
    BareRaw,
    Casque,
    CasqueCalls,
    CasqueInTens,
    CasqueLines,
    CasqueTasks,
    Contender,
    Diskcache,
    Huey,
    HueyTasks,
    HundredCallers,
    Raw,
)
from report import Report, introduce

from casque import NewJob

MANY = 1_000
DEEP = 10_000
DRAINED = 10_000
DRAINERS = 4
SLICE = 100
"""Jobs of one contender per turn."""

Times = tuple[float, float]


@contextmanager
def fresh(kind: type[Contender]) -> Iterator[tuple[Any, Path]]:
    with tempfile.TemporaryDirectory(prefix="casque-bench-") as name:
        contender = kind(Path(name))
        try:
            yield contender, Path(name)
        finally:
            contender.close()


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# -- what is measured: each gives seconds a job ------------------------------------


def one_at_a_time(kinds: Sequence[type[Contender]], jobs: int) -> dict[type[Contender], Times]:
    """Return the seconds per job of enqueueing, and of claim and ack: slice by slice, in turns."""
    with ExitStack() as stack:
        contenders = {kind: stack.enter_context(fresh(kind))[0] for kind in kinds}
        enqueue = by_turns(contenders, jobs, lambda one, count: one.enqueue(count))
        work = by_turns(contenders, jobs, lambda one, count: one.work(count))
    return {kind: (enqueue[kind], work[kind]) for kind in kinds}


def enqueued(kinds: Sequence[type[Contender]], jobs: int) -> dict[type[Contender], float]:
    """Return the seconds per job of enqueueing alone."""
    with ExitStack() as stack:
        contenders = {kind: stack.enter_context(fresh(kind))[0] for kind in kinds}
        return by_turns(contenders, jobs, lambda one, count: one.enqueue(count))


def at_depth(
    kinds: Sequence[type[Contender]], depth: int, jobs: int
) -> dict[type[Contender], float]:
    """Return the seconds per job of claim and ack, with this many queued."""
    with ExitStack() as stack:
        contenders = {kind: stack.enter_context(fresh(kind))[0] for kind in kinds}
        for contender in contenders.values():
            contender.enqueue(depth)
        return by_turns(contenders, jobs, lambda one, count: one.work(count))


def by_turns(
    contenders: dict[type[Contender], Contender], jobs: int, do: Callable[[Contender, int], object]
) -> dict[type[Contender], float]:
    """Return seconds per job. They take turns, so that other load on the machine hits all alike."""
    taken = dict.fromkeys(contenders, 0.0)
    order = list(contenders)
    for _ in range(0, jobs, SLICE):
        for kind in order:
            taken[kind] += timed(partial(do, contenders[kind], SLICE * kind.share)) / kind.share
        order.append(order.pop(0))
    slices = -(-jobs // SLICE)
    return {kind: seconds / slices / SLICE for kind, seconds in taken.items()}


def many_raw(calls: int) -> float:
    rows = [("work", PAYLOAD)] * MANY
    with fresh(Raw) as (raw, _):
        return timed(lambda: [raw.enqueue_many(rows) for _ in range(calls)]) / calls / MANY


def many_casque(calls: int) -> float:
    jobs = [NewJob("work", PAYLOAD) for _ in range(MANY)]
    with fresh(Casque) as (casque, _):
        casque.enqueue(1)
        return timed(lambda: [casque.q.enqueue_many(jobs) for _ in range(calls)]) / calls / MANY


def many_tasks(calls: int) -> float:
    with fresh(CasqueTasks) as (casque, _):
        casque.enqueue(1)
        return timed(lambda: [casque.enqueue_many(MANY) for _ in range(calls)]) / calls / MANY


def drain(kind: type[Contender], jobs: int) -> float:
    """Return the jobs per second of four processes that empty one file."""
    context = multiprocessing.get_context("spawn")
    with fresh(kind) as (contender, folder):
        if isinstance(contender, Casque):
            contender.q.enqueue_many([NewJob("work", PAYLOAD)] * jobs)
        else:
            contender.enqueue(jobs)
        ready = context.Barrier(DRAINERS + 1)
        done = context.SimpleQueue()
        drainers = [
            context.Process(target=drain_one, args=(kind, folder, ready, done))
            for _ in range(DRAINERS)
        ]
        for drainer in drainers:
            drainer.start()
        ready.wait()
        start = time.perf_counter()
        counts = [done.get() for _ in drainers]
        taken = time.perf_counter() - start
        for drainer in drainers:
            drainer.join()
    if isinstance(contender, Casque) and sum(counts) != jobs:
        raise AssertionError(f"{sum(counts)} of {jobs} jobs were acked")
    return jobs / taken


def drain_one(kind: type[Contender], folder: Path, ready: Any, done: Any) -> None:
    contender = kind(folder)
    if isinstance(contender, Casque):
        contender.q.dequeue("nothing")  # opens the file at first use; the others open it at once
    ready.wait()
    done.put(contender.work(sys.maxsize))
    contender.close()


# -- and how it is told ------------------------------------------------------------


def micros(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e6:.1f} µs"


def single(report: Report, rounds: int, jobs: int, peers: list[type[Contender]]) -> None:
    kinds: list[type[Contender]] = [Casque, Raw, BareRaw, *peers]
    measured = [one_at_a_time(kinds, jobs) for _ in range(rounds)]
    for place, what in enumerate(("enqueue", "claim + ack")):
        ours = [times[Casque][place] for times in measured]
        print(f"\n{what}, one at a time: casque {micros(ours)}")
        for kind in kinds[1:]:
            if place and kind in (Huey, Diskcache):
                continue  # they have no ack
            theirs = [times[kind][place] for times in measured]
            limits: dict[type[Contender], float | None]
            limits = {Raw: (0.85, 0.7)[place], BareRaw: None}
            report.ratios(
                f"against {kind.name} ({micros(theirs)})",
                [their / our for their, our in zip(theirs, ours, strict=True)],
                limits.get(kind, 1.0),
            )


def tasks(report: Report, rounds: int, jobs: int) -> None:
    """Measure a user's calls: `task.enqueue`, `app.enqueue_many`, claims with several lines due."""
    kinds: list[type[Contender]] = [CasqueTasks, CasqueCalls]
    if importlib.util.find_spec("huey") is not None:
        kinds.append(HueyTasks)
    measured = [enqueued(kinds, jobs) for _ in range(rounds)]
    ours = [times[CasqueTasks] for times in measured]
    print(f"\ntask.enqueue, one at a time: casque {micros(ours)}")
    for kind in kinds[1:]:
        theirs = [times[kind] for times in measured]
        report.ratios(
            f"against {kind.name} ({micros(theirs)})",
            [their / our for their, our in zip(theirs, ours, strict=True)],
            0.8 if kind is CasqueCalls else 1.0,
        )
    plain, ours = [], []
    for _ in range(rounds):
        plain.append(many_casque(10))
        ours.append(many_tasks(10))
    print(f"\napp.enqueue_many, {MANY:,} tasks per call: casque {micros(ours)} per job")
    report.ratios(
        f"against queue.enqueue_many ({micros(plain)})",
        [a / b for a, b in zip(plain, ours, strict=True)],
        None,
    )
    depths = [at_depth([Casque, CasqueLines], jobs, jobs // 2) for _ in range(rounds)]
    ours = [times[CasqueLines] for times in depths]
    print(f"\nclaim + ack, 8 lines due: casque {micros(ours)}")
    report.ratios(
        f"against one line due ({micros([times[Casque] for times in depths])})",
        [times[Casque] / times[CasqueLines] for times in depths],
        None,
    )


def deep(report: Report, rounds: int, depth: int, peers: list[type[Contender]]) -> None:
    """Measure claim and ack from a deeper queue: some contenders scan all of it."""
    kinds: list[type[Contender]] = [Casque, Raw, *(kind for kind in peers if kind in WITH_ACK)]
    measured = [at_depth(kinds, depth, depth // 20) for _ in range(rounds)]
    ours = [times[Casque] for times in measured]
    print(f"\nclaim + ack, one at a time, of {depth:,} queued jobs: casque {micros(ours)}")
    for kind in kinds[1:]:
        theirs = [times[kind] for times in measured]
        report.ratios(
            f"against {kind.name} ({micros(theirs)})",
            [their / our for their, our in zip(theirs, ours, strict=True)],
            None,
        )


def batches(report: Report, rounds: int, jobs: int) -> None:
    raw, ours = [], []
    for _ in range(rounds):
        raw.append(many_raw(10))
        ours.append(many_casque(10))
    print(f"\nenqueue_many, {MANY:,} jobs per call: casque {micros(ours)} per job")
    report.ratios(
        f"against raw executemany ({micros(raw)})",
        [a / b for a, b in zip(raw, ours, strict=True)],
        0.3,
    )
    measured = [one_at_a_time([Raw, HundredCallers], jobs) for _ in range(rounds)]
    print(f"\n{CALLERS} concurrent callers on a BrokerQueue, against raw one at a time")
    for place, what in enumerate(("enqueue", "dequeue + ack")):
        report.ratios(
            f"{what} ({micros([times[HundredCallers][place] for times in measured])} per job)",
            [times[Raw][place] / times[HundredCallers][place] for times in measured],
            6.0,
        )


def drains(report: Report, rounds: int, jobs: int, peers: list[type[Contender]]) -> None:
    # A tenth of the jobs is enough to measure the contenders that claim one job at a time.
    sizes: dict[type[Contender], int] = dict.fromkeys([Raw, *peers], max(jobs // 10, 100))
    sizes[CasqueInTens] = jobs
    rates: dict[type[Contender], list[float]] = {kind: [] for kind in sizes}
    for _ in range(rounds):
        for kind, size in sizes.items():
            rates[kind].append(drain(kind, size))
    ours = rates[CasqueInTens]
    print(
        f"\n{DRAINERS} processes drain {jobs:,} jobs, ours {DRAIN_BATCH} at a time: "
        f"{statistics.median(ours):,.0f} jobs/s"
    )
    rivals = [kind for kind in sizes if kind is not CasqueInTens]
    fastest = max(rivals, key=lambda kind: statistics.median(rates[kind]))
    for kind in rivals:
        report.ratios(
            f"against {kind.name} ({statistics.median(rates[kind]):,.0f} jobs/s)",
            [our / their for our, their in zip(ours, rates[kind], strict=True)],
            3.0 if kind is fastest else None,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each comparison")
    parser.add_argument("--jobs", type=int, default=2_000, help="jobs of one contender's round")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 300 jobs: seconds")
    chosen = parser.parse_args()
    rounds, jobs, drained = chosen.rounds, chosen.jobs, DRAINED
    if chosen.quick:
        rounds, jobs, drained = 3, 300, 1_000
    peers = []
    for peer in PEERS:
        if importlib.util.find_spec(peer.package or "") is None:
            print(f"{peer.name} is not installed, so it is skipped: pip install '.[bench]'")
        else:
            peers.append(peer)
    introduce(rounds)
    report = Report()
    single(report, rounds, jobs, peers)
    tasks(report, rounds, jobs)
    deep(report, rounds, DEEP if not chosen.quick else MANY, peers)
    batches(report, rounds, jobs)
    drains(report, rounds, drained, peers)
    return report.close()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
