"""How soon a waiting process gets a job that another one enqueues, and the cost of waiting.

One process waits in `dequeue(wait=…)` on a SQLite file. This one enqueues a job
after each random gap, and the other reports when it got the job. huey's consumer
loop, with its default settings, is measured too if it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from casque import Queue

P50_LIMIT_MS = 10.0
CPU_LIMIT = 0.02
STOP = b"stop"


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def wait_with_casque(path: Path, pipe: Any) -> None:
    with Queue(path) as q:
        q.enqueue("warm up")
        q.ack(q.dequeue("warm up")[0])
        report = watch(pipe)
        while True:
            for job in q.dequeue("work", wait=timedelta(seconds=20)):
                now = time.time_ns()
                q.ack(job)
                if not report(job.payload, now):
                    return


def wait_with_huey(path: Path, pipe: Any) -> None:
    """Like huey's consumer: poll, and after an empty poll wait longer, up to its 10 s."""
    from huey.storage import SqliteStorage

    q = SqliteStorage(filename=str(path))
    report = watch(pipe)
    delay = 0.1
    while True:
        payload = q.dequeue()
        if payload is None:
            time.sleep(delay)
            delay = min(delay * 1.15, 10.0)
            continue
        delay = 0.1
        if not report(bytes(payload), time.time_ns()):
            return


def watch(pipe: Any) -> Callable[[bytes, int], bool]:
    """Report every job to the parent; and at the end, the share of a core that waiting took."""
    began, used = time.perf_counter(), processor_seconds()
    pipe.send("ready")

    def report(payload: bytes, now_ns: int) -> bool:
        if payload == STOP:
            pipe.send((processor_seconds() - used) / (time.perf_counter() - began))
            return False
        pipe.send((now_ns - int(payload)) / 1e6)
        return True

    return report


def measure(
    waiter: Callable[[Path, Any], None],
    enqueue: Callable[[Path], Callable[[bytes], object]],
    gaps: list[float],
) -> tuple[list[float], float]:
    """Return the milliseconds from enqueue to pick-up, and the share of a core that was used."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="casque-latency-") as folder:
        path = Path(folder) / "jobs.db"
        put = enqueue(path)
        ours, theirs = context.Pipe()
        process = context.Process(target=waiter, args=(path, theirs), daemon=True)
        process.start()
        assert ours.recv() == "ready"
        taken = []
        for gap in gaps:
            time.sleep(gap)
            put(str(time.time_ns()).encode())
            taken.append(ours.recv())
            if sys.stderr.isatty():
                print(f"\r{len(taken)} of {len(gaps)}", end="", file=sys.stderr)
        time.sleep(0.5)
        put(STOP)
        used = ours.recv()
        process.join()
    return taken, used


def casque_producer(path: Path) -> Callable[[bytes], object]:
    q = Queue(path)
    return lambda payload: q.enqueue("work", payload)


def huey_producer(path: Path) -> Callable[[bytes], object]:
    from huey.storage import SqliteStorage

    q = SqliteStorage(filename=str(path))
    put: Callable[[bytes], object] = q.enqueue
    return put


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=30, help="how many jobs")
    parser.add_argument("--longest", type=float, default=30.0, help="longest gap in seconds")
    parser.add_argument("--quick", action="store_true", help="20 jobs, gaps up to 2 s")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.jobs, chosen.longest = 20, 2.0
    chance = random.Random(7)
    gaps = [chance.uniform(0.5, chosen.longest) for _ in range(chosen.jobs)]
    print(
        f"latency: {chosen.jobs} jobs, gaps of 0.5 to {chosen.longest:g} s, "
        f"{sum(gaps):.0f} s in total for each"
    )
    taken, used = measure(wait_with_casque, casque_producer, gaps)
    p50 = statistics.median(taken)
    kept = p50 < P50_LIMIT_MS and used < CPU_LIMIT
    print(
        f"  casque  p50 {p50:.1f} ms, longest {max(taken):.1f} ms, idle {used:.2%} of a core; "
        f"limits {P50_LIMIT_MS:g} ms and {CPU_LIMIT:.0%}: {'pass' if kept else 'FAIL'}"
    )
    if importlib.util.find_spec("huey") is None:
        print("  huey is not installed, so it is skipped: pip install '.[bench]'")
    else:
        taken, used = measure(wait_with_huey, huey_producer, gaps)
        print(
            f"  huey    p50 {statistics.median(taken):.1f} ms, longest {max(taken):.1f} ms, "
            f"idle {used:.2%} of a core"
        )
    return 0 if kept else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
