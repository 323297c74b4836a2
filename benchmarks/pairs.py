"""Compare two commits: the calls that people write, on a SQLite file, above 1x this tree is faster.

    python benchmarks/pairs.py 1414eab --pairs 15 --durability normal --only enqueue

Each pair is two fresh processes, one with the code of the other commit and one with this tree.
They take turns, a few milliseconds each, so that other load on the machine hits both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from report import Report

ROOT = Path(__file__).parent.parent
LEAST = 0.95
LINES = 50
MANY = 100
TURNS = 30
TURN_S = 0.02
START_UP = "queuectl enqueue, a process"


# -- one side: a process with the code of one commit ---------------------------------


def sides(address: str) -> dict[str, Callable[[int], object]]:
    """Return what can be measured, by name: each does its work `count` times."""
    from casque import App, NewJob, Queue

    q = Queue(address + "a.db" + options())
    deep = Queue(address + "b.db" + options())
    app = App(address + "c.db" + options())

    def charge(order: int) -> int:
        return order

    task = app.task()(charge)
    known = q.enqueue("known", b"x", delay=timedelta(days=1)).id
    for _ in range(2):
        deep.enqueue_many([NewJob(f"e{i % LINES}", b"x") for i in range(10_000)])
    batch = [NewJob("many", b"x")] * MANY
    tasks = [task.job(i) for i in range(MANY)]

    def claim_and_ack(count: int) -> None:
        for _ in range(count):
            [job] = q.dequeue("work")
            q.ack(job)

    def queuectl(count: int) -> None:
        command = [sys.executable, "-m", "casque.cli", "--store", f"{address}d.db", "enqueue"]
        for _ in range(count):
            subprocess.run([*command, '{"command": "true"}'], check=True, stdout=subprocess.DEVNULL)

    def of_many_lines(count: int) -> None:
        for _ in range(count):
            [job] = deep.dequeue()
            deep.ack(job)

    return {
        "enqueue": lambda count: [q.enqueue("work", b"x") for _ in range(count)],
        "claim + ack": claim_and_ack,
        "empty dequeue": lambda count: [q.dequeue("nothing") for _ in range(count)],
        "get": lambda count: [q.get(known) for _ in range(count)],
        "stats": lambda count: [q.stats() for _ in range(count)],
        f"enqueue_many of {MANY}": lambda count: [q.enqueue_many(batch) for _ in range(count)],
        f"claim + ack, {LINES} lines due": of_many_lines,
        "task.enqueue": lambda count: [task.enqueue(i) for i in range(count)],
        f"app.enqueue_many of {MANY}": lambda count: [
            app.enqueue_many(tasks) for _ in range(count)
        ],
        START_UP: queuectl,
    }


def options() -> str:
    durability = os.environ.get("PAIRS_DURABILITY", "full")
    return "" if durability == "full" else f"?durability={durability}"


def serve() -> None:
    """Do what the parent says, line by line: a row's name and how often."""
    with tempfile.TemporaryDirectory(prefix="casque-pairs-") as folder:
        known = sides(f"sqlite:///{folder}/")
        print(json.dumps(list(known)), flush=True)
        for line in sys.stdin:
            name, count = json.loads(line)
            start = time.perf_counter()
            known[name](count)
            print(time.perf_counter() - start, flush=True)


# -- the parent ----------------------------------------------------------------------


class Side:
    """A process with the code of one commit."""

    def __init__(self, tree: Path, durability: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env={
                **os.environ,
                "PYTHONPATH": str(tree / "src"),
                "PAIRS_DURABILITY": durability,
                "PYTHONDONTWRITEBYTECODE": "",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.rows: list[str] = json.loads(self._answer())

    def run(self, row: str, count: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([row, count]) + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a side ended; its error is above")
        return line


def one_pair(old: Side, new: Side, only: str) -> dict[str, tuple[float, float]]:
    """Return the seconds of both sides, row by row, for the rows whose names contain `only`."""
    taken = {}
    for row in new.rows:
        if row not in old.rows or only not in row:
            continue
        tries = 1 if row == START_UP else 20
        least = [min(side.run(row, tries) for _ in range(3)) for side in (old, new)]
        count = max(tries // 4, 1, round(tries * TURN_S / max(least)))
        if row.startswith("claim + ack") and not row.endswith("due"):
            for side in (old, new):  # the jobs to claim
                side.run("enqueue", count * (TURNS + 1))
        seconds = [0.0, 0.0]
        for turn in range(TURNS):
            for which in (0, 1) if turn % 2 else (1, 0):
                seconds[which] += (old, new)[which].run(row, count)
        taken[row] = seconds[0] / TURNS / count, seconds[1] / TURNS / count
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("commit", nargs="?", default="HEAD", help="what this tree is compared with")
    parser.add_argument("--pairs", type=int, default=15, help="pairs of processes")
    parser.add_argument("--durability", default="full", choices=("full", "normal"))
    parser.add_argument("--only", default="", help="measure the rows whose names contain this")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve()
        return 0
    report = Report()
    pairs: list[dict[str, tuple[float, float]]] = []
    with tempfile.TemporaryDirectory(prefix="casque-pairs-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), chosen.commit], check=True)
        try:
            for _ in range(chosen.pairs):
                old, new = Side(tree, chosen.durability), Side(ROOT, chosen.durability)
                pairs.append(one_pair(old, new, chosen.only))
                old.close()
                new.close()
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    print(f"this tree against {chosen.commit}, durability={chosen.durability}")
    for row in pairs[0]:
        ours = sorted(pair[row][1] for pair in pairs)[len(pairs) // 2]
        ratios = [pair[row][0] / pair[row][1] for pair in pairs]
        report.ratios(f"{row} ({ours * 1e6:.1f} µs)", ratios, LEAST)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
