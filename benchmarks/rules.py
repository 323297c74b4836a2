"""The speed of the rules alone: decide and evolve, without a store, queue or event loop.

A cycle is a job's whole life in three operations: enqueue, dequeue, ack. First
each operation is a separate batch, as the slowest caller would send them; then a
batch has a hundred operations, as in group commit. The limit is for processor
time: nothing here waits, so the rest of the wall time went to other processes.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from casque.rules.operations import Ack, Batch, Dequeue, Enqueue, Operation, Request
from casque.rules.state import State
from casque.rules.transaction import transact

LIMIT_CYCLES, LIMIT_SECONDS = 100_000, 5.0
OPERATIONS_PER_CYCLE = 3
STEP_US = 10
LEASE_US = 300_000_000
PAYLOAD = bytes(100)


class Writer:
    """The only writer of a state: numbers its batches and lets time pass between them."""

    def __init__(self) -> None:
        self.state = State()
        self.number = 0
        self.now = 1_700_000_000_000_000

    def commit(self, operations: Sequence[Operation]) -> list[Any]:
        self.number += 1
        self.now += STEP_US
        batch = Batch("writer", self.number, operations)
        return transact(self.state, [batch], self.now).outcomes[0]


def added(number: int) -> Enqueue:
    job_id = f"01890a5d-ac96-774b-bcce-{number:012x}"
    return Enqueue((Request(job_id, "default", "work", PAYLOAD, 0, 25),), 16)


class Seconds(NamedTuple):
    processor: float
    wall: float


def timed(cycles: int, batch: int, standing: int) -> Seconds:
    """Return the seconds for `cycles` jobs in a state with `standing` other jobs waiting."""
    writer = Writer()
    for number in range(standing):
        writer.commit([added(number)])
    arrivals = [added(standing + number) for number in range(cycles)]
    claims: list[Operation] = [Dequeue("worker", LEASE_US)] * batch
    processor, wall = time.process_time(), time.perf_counter()
    for first in range(0, cycles, batch):
        jobs = arrivals[first : first + batch]
        writer.commit(jobs)
        leased = writer.commit(claims[: len(jobs)])
        writer.commit([Ack(job.id, job.token) for answer in leased for job in answer.jobs])
    taken = Seconds(time.process_time() - processor, time.perf_counter() - wall)
    if len(writer.state.jobs) != standing:
        raise AssertionError(f"expected {standing} jobs left, got {len(writer.state.jobs)}")
    return taken


def report(title: str, cycles: int, rounds: list[Seconds]) -> float:
    """Print the rounds of one batch size, and return the median of processor seconds."""
    processor = [one.processor for one in rounds]
    middle = statistics.median(processor)
    rate = cycles * OPERATIONS_PER_CYCLE / middle
    print(f"{title}: {rate:,.0f} operations per second")
    print(
        f"  {middle:.2f} s of processor time for {cycles:,} cycles "
        f"(rounds {min(processor):.2f}-{max(processor):.2f}); "
        f"{statistics.median(one.wall for one in rounds):.2f} s of wall time"
    )
    return middle


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=LIMIT_CYCLES)
    parser.add_argument("--batch", type=int, default=100, help="operations in a large batch")
    parser.add_argument("--standing", type=int, default=1_000, help="other jobs that wait")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="10,000 cycles: a second or two")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.cycles = 10_000
    if min(chosen.cycles, chosen.batch, chosen.rounds) < 1 or chosen.standing < 0:
        parser.error("--cycles, --batch and --rounds start at 1, --standing at 0")
    return chosen


def main() -> int:
    chosen = options()
    print("rules: enqueue, dequeue, ack through decide and evolve; one core")
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}; median of {chosen.rounds} rounds, "
        f"{chosen.standing:,} other jobs waiting\n"
    )
    singly: list[Seconds] = []
    together: list[Seconds] = []
    for _ in range(chosen.rounds):
        singly.append(timed(chosen.cycles, 1, chosen.standing))
        together.append(timed(chosen.cycles, chosen.batch, chosen.standing))
    taken = report("one operation per batch", chosen.cycles, singly)
    report(f"{chosen.batch} operations per batch", chosen.cycles, together)
    allowed = LIMIT_SECONDS * chosen.cycles / LIMIT_CYCLES
    kept = taken <= allowed
    print(
        f"\nlimit: {LIMIT_CYCLES:,} cycles, one operation per batch, in {LIMIT_SECONDS:g} s of one "
        f"core ({allowed:g} s for these {chosen.cycles:,}): {'pass' if kept else 'FAIL'}"
    )
    return 0 if kept else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
