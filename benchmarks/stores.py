"""Rates of each local store through the sync Queue: one caller, one call after the other.

Payloads of 100 bytes, at most 500 jobs in the queue. Prints calls per second, and each store's
rate as a ratio to SQLite's in the same run. No limits: the README's table has these figures.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

from casque import Queue

PAYLOAD = bytes(range(100))
ROUNDS = 7
SETTLE_SECONDS = 0.15
"""For so long after a SQLite file was made, each commit looks at its files one by one."""


def stores(folder: Path) -> dict[str, tuple[str | Path, int]]:
    """Per store its address, and the calls of one round."""
    return {
        "SQLite": (folder / "synced.db", 500),
        "SQLite, durability=normal": (f"sqlite:///{folder}/normal.db?durability=normal", 500),
        "folder": (folder / "ledger/", 150),
        "JSON file": (folder / "queue.json", 50),
        "memory": ("memory://", 500),
    }


def rates(store: str | Path, calls: int) -> tuple[float, float]:
    """Enqueues per second, and claims with their acks per second: medians of the rounds."""
    enqueues, works = [], []
    with Queue(store) as q:
        q.enqueue("work", PAYLOAD)
        time.sleep(SETTLE_SECONDS)
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            for _ in range(calls):
                q.enqueue("work", PAYLOAD)
            enqueued = time.perf_counter()
            for _ in range(calls):
                q.ack(q.dequeue("work")[0])
            enqueues.append(calls / (enqueued - begun))
            works.append(calls / (time.perf_counter() - enqueued))
    return statistics.median(enqueues), statistics.median(works)


def main() -> None:
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores; medians of {ROUNDS} rounds")
    synced: tuple[float, float] | None = None
    with tempfile.TemporaryDirectory(prefix="casque-bench-") as name:
        folder = Path(name)
        (folder / "ledger").mkdir()
        for title, (store, calls) in stores(folder).items():
            enqueue, work = rates(store, calls)
            synced = synced or (enqueue, work)
            print(
                f"  {title:<26} {enqueue:8,.0f} enqueues/s ({enqueue / synced[0]:5.2f}x)"
                f" {work:8,.0f} claims with ack/s ({work / synced[1]:5.2f}x)"
            )


if __name__ == "__main__":
    main()
