"""What a queue in a SQLite file costs beside raw sqlite3 and beside its peers, in one run.

Every contender commits to disk (synchronous=FULL, WAL) and works in a fresh file
in each round. Within a round they take turns, 100 jobs at a time; what counts is
the median of the rounds' ratios. Raw sqlite3 does the minimum: one INSERT a
transaction, a claim by UPDATE … RETURNING, then a DELETE; with an index, so that
its claim finds the next job without a scan, and once more without one ("bare").
Peers: pip install '.[bench]'.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import multiprocessing
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from report import Report, introduce

from casque import BrokerQueue, NewJob, Queue

PAYLOAD = bytes(range(100))
MANY = 1_000
DEEP = 10_000
CALLERS = 100
DRAINED = 10_000
DRAINERS = 4
DRAIN_BATCH = 10
SLICE = 100
"""Jobs of one contender before it is the next one's turn."""

Times = tuple[float, float]


class Contender:
    """Something that keeps jobs in a file. Made anew, in a folder of its own, for each round."""

    name: ClassVar[str]
    package: ClassVar[str | None] = None

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    def enqueue(self, count: int) -> None:
        raise NotImplementedError

    def work(self, count: int) -> int:
        """Claim and ack one at a time, `count` times or until there is nothing; how many."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Casque(Contender):
    name = "casque"

    def __init__(self, folder: Path) -> None:
        self.q = Queue(folder / "jobs.db")

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.q.enqueue("work", PAYLOAD)

    def work(self, count: int) -> int:
        for done in range(count):
            jobs = self.q.dequeue("work")
            if not jobs:
                return done
            self.q.ack(jobs[0])
        return count

    def close(self) -> None:
        self.q.close()


class CasqueInTens(Casque):
    """As a worker that takes ten at a time."""

    name = "casque, batch_size=10"

    def work(self, count: int) -> int:
        done = 0
        while done < count:
            jobs = self.q.dequeue("work", batch_size=DRAIN_BATCH)
            if not jobs:
                break
            self.q.ack_many(jobs)
            done += len(jobs)
        return done


class Raw(Contender):
    name = "raw sqlite3"
    index: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / "jobs.db", isolation_level=None, timeout=30)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS job (id INTEGER PRIMARY KEY, entrypoint TEXT, "
            "payload BLOB, status INTEGER)"
        )
        if self.index:
            self.db.execute("CREATE INDEX IF NOT EXISTS job_status ON job (status, id)")

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.db.execute(
                "INSERT INTO job (entrypoint, payload, status) VALUES (?, ?, 0)", ("work", PAYLOAD)
            )

    def work(self, count: int) -> int:
        for done in range(count):
            row = self.db.execute(
                "UPDATE job SET status = 1 WHERE id = (SELECT id FROM job WHERE status = 0 "
                "ORDER BY id LIMIT 1) RETURNING id, payload"
            ).fetchone()
            if row is None:
                return done
            self.db.execute("DELETE FROM job WHERE id = ?", (row[0],))
        return count

    def enqueue_many(self, rows: list[tuple[Any, ...]]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        insert = "INSERT INTO job (entrypoint, payload, status) VALUES (?, ?, 0)"
        self.db.executemany(insert, rows)
        self.db.execute("COMMIT")

    def close(self) -> None:
        self.db.close()


class BareRaw(Raw):
    name = "raw sqlite3, bare"
    index = False


class Litequeue(Contender):
    name = package = "litequeue"

    def __init__(self, folder: Path) -> None:
        from litequeue import LiteQueue

        self.q = LiteQueue(folder / "jobs.db", timeout=30)
        self.q.conn.execute("PRAGMA synchronous = FULL")
        self.data = PAYLOAD.hex()[:100]  # it stores text

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.q.put(self.data)

    def work(self, count: int) -> int:
        for done in range(count):
            message = self.q.pop()
            if message is None:
                return done
            self.q.done(message.message_id)
        return count

    def close(self) -> None:
        self.q.conn.close()


class PersistQueue(Contender):
    name = "persist-queue"
    package = "persistqueue"

    def __init__(self, folder: Path) -> None:
        from persistqueue import SQLiteAckQueue

        self.q = SQLiteAckQueue(str(folder), auto_commit=True, multithreading=True, timeout=30)
        for connection in {self.q._getter, self.q._putter}:  # noqa: SLF001 - it has no option
            connection.execute("PRAGMA synchronous = FULL")

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.q.put(PAYLOAD)

    def work(self, count: int) -> int:
        from persistqueue import Empty

        for done in range(count):
            try:
                item = self.q.get(block=False)
            except Empty:
                return done
            self.q.ack(item)
        return count

    def close(self) -> None:
        self.q.close()


class Huey(Contender):
    """A dequeue of huey deletes the task: there is no ack, and a worker's death loses it."""

    name = package = "huey"

    def __init__(self, folder: Path) -> None:
        from huey.storage import SqliteStorage

        self.q = SqliteStorage(filename=str(folder / "jobs.db"), fsync=True, timeout=30)

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.q.enqueue(PAYLOAD)

    def work(self, count: int) -> int:
        for done in range(count):
            if self.q.dequeue() is None:
                return done
        return count

    def close(self) -> None:
        self.q.close()


class Diskcache(Contender):
    """A popleft deletes the item: there is no ack either."""

    name = package = "diskcache"

    def __init__(self, folder: Path) -> None:
        from diskcache import Cache, Deque

        self.cache = Cache(str(folder), sqlite_synchronous=2, timeout=30)
        self.q = Deque.fromcache(self.cache)

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.q.append(PAYLOAD)

    def work(self, count: int) -> int:
        for done in range(count):
            try:
                self.q.popleft()
            except IndexError:
                return done
        return count

    def close(self) -> None:
        self.cache.close()


PEERS: tuple[type[Contender], ...] = (Litequeue, PersistQueue, Huey, Diskcache)
WITH_ACK = (Litequeue, PersistQueue)


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
    """Seconds a job of enqueueing, and of claim and ack: slice by slice, each in its turn."""
    with ExitStack() as stack:
        contenders = {kind: stack.enter_context(fresh(kind))[0] for kind in kinds}
        enqueue = by_turns(contenders, jobs, lambda one, count: one.enqueue(count))
        work = by_turns(contenders, jobs, lambda one, count: one.work(count))
    return {kind: (enqueue[kind], work[kind]) for kind in kinds}


def at_depth(
    kinds: Sequence[type[Contender]], depth: int, jobs: int
) -> dict[type[Contender], float]:
    """Seconds a job of claim and ack, with so many queued."""
    with ExitStack() as stack:
        contenders = {kind: stack.enter_context(fresh(kind))[0] for kind in kinds}
        for contender in contenders.values():
            contender.enqueue(depth)
        return by_turns(contenders, jobs, lambda one, count: one.work(count))


def by_turns(
    contenders: dict[type[Contender], Contender], jobs: int, do: Callable[[Contender, int], object]
) -> dict[type[Contender], float]:
    """Seconds a job: whatever else the machine does for a second or two, it does to all of them."""
    taken = dict.fromkeys(contenders, 0.0)
    order = list(contenders)
    for _ in range(0, jobs, SLICE):
        for kind in order:
            taken[kind] += timed(partial(do, contenders[kind], SLICE))
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


def hundred_callers(each: int) -> tuple[float, float]:
    """Seconds a job of 100 tasks on one BrokerQueue: enqueueing, and dequeue and ack."""

    async def produce(q: BrokerQueue) -> None:
        for _ in range(each):
            await q.enqueue("work", PAYLOAD)

    async def consume(q: BrokerQueue) -> None:
        for _ in range(each):
            [job] = await q.dequeue("work")
            await q.ack(job)

    async def together(do: Callable[[BrokerQueue], Any], q: BrokerQueue) -> float:
        start = time.perf_counter()
        await asyncio.gather(*(do(q) for _ in range(CALLERS)))
        return (time.perf_counter() - start) / CALLERS / each

    async def run(path: Path) -> tuple[float, float]:
        async with BrokerQueue(path) as q:
            return await together(produce, q), await together(consume, q)

    with tempfile.TemporaryDirectory(prefix="casque-bench-") as folder:
        return asyncio.run(run(Path(folder) / "jobs.db"))


def drain(kind: type[Contender], jobs: int) -> float:
    """Jobs a second of four processes that empty one file."""
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
        contender.q.dequeue("nothing")  # it opens its file when it is first used, and they at once
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


def deep(report: Report, rounds: int, depth: int, peers: list[type[Contender]]) -> None:
    """Claim and ack again, from a queue that is deeper: some look at all of it."""
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
    print(f"\nenqueue_many, {MANY:,} jobs a call: casque {micros(ours)} a job")
    report.ratios(
        f"against raw executemany ({micros(raw)})",
        [a / b for a, b in zip(raw, ours, strict=True)],
        0.3,
    )
    singles, together = [], []
    for _ in range(rounds):
        singles.append(one_at_a_time([Raw], jobs)[Raw])
        together.append(hundred_callers(max(jobs // 20, 10)))
    print(f"\n{CALLERS} concurrent callers on a BrokerQueue, against raw one at a time")
    for place, what in enumerate(("enqueue", "dequeue + ack")):
        report.ratios(
            f"{what} ({micros([pair[place] for pair in together])} a job)",
            [a[place] / b[place] for a, b in zip(singles, together, strict=True)],
            6.0,
        )


def drains(report: Report, rounds: int, jobs: int, peers: list[type[Contender]]) -> None:
    # A tenth of the jobs is enough to know the rate of those who take them one by one.
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
            print(f"{peer.name} is not installed and is left out: pip install '.[bench]'")
        else:
            peers.append(peer)
    introduce(rounds)
    report = Report()
    single(report, rounds, jobs, peers)
    deep(report, rounds, DEEP if not chosen.quick else MANY, peers)
    batches(report, rounds, jobs)
    drains(report, rounds, drained, peers)
    return report.close()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
