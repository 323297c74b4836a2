"""Run simulations: `python -m casque.testing.simulation --seed 7 --verbose`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import count

from casque.testing.simulation.folder import FolderSimulation
from casque.testing.simulation.history import Violation
from casque.testing.simulation.shortened import ShortenedSimulation
from casque.testing.simulation.simulation import Outcome, Simulation
from casque.testing.simulation.strangers import HoleSimulation, RacySimulation, ShortListSimulation
from casque.testing.simulation.wiped import WipedSimulation

_KINDS: dict[str, tuple[type[Simulation], str]] = {
    "folder": (FolderSimulation, "on a disk whose power is cut"),
    "racy": (RacySimulation, "on a server that checks, then writes"),
    "short-lists": (ShortListSimulation, "on a server that lists wrongly"),
    "hole": (HoleSimulation, "where somebody deletes an entry for a while"),
    "shortened": (ShortenedSimulation, "where old entries are deleted, within seconds"),
    "wiped": (WipedSimulation, "where somebody deletes everything, and new processes start"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m casque.testing.simulation")
    parser.add_argument("--seed", type=int, help="run this seed")
    parser.add_argument("--seeds", help="run this range of seeds, inclusive: 1-100")
    parser.add_argument(
        "--seconds", type=float, help="run for this many seconds, from --seed on or from 0"
    )
    for name, (_, what) in _KINDS.items():
        parser.add_argument(f"--{name}", action="store_const", const=name, dest="kind", help=what)
    parser.add_argument("--verbose", action="store_true", help="print every step")
    asked = parser.parse_args()
    kind = _KINDS[asked.kind][0] if asked.kind else Simulation
    began, failed, ran = time.perf_counter(), [], 0
    for seed in _seeds(asked.seed, asked.seeds, asked.seconds):
        try:
            outcome = kind(seed, is_told=asked.verbose).run()
        except Violation as violation:
            print(f"{violation}\n")  # noqa: T201 - a command's output
            failed.append(seed)
        else:
            if asked.verbose or asked.seed is not None:
                print(_line(outcome))  # noqa: T201
        ran += 1
    took = time.perf_counter() - began
    print(f"{ran} seeds in {took:.1f} s ({ran / took:.1f} per second); failed: {failed or 'none'}")  # noqa: T201
    return 1 if failed else 0


def _seeds(seed: int | None, seeds: str | None, seconds: float | None) -> Iterator[int]:
    if seeds is not None:
        first, _, last = seeds.partition("-")
        yield from range(int(first), int(last or first) + 1)
    elif seconds is not None:
        end = time.perf_counter() + seconds
        for one in count(seed or 0):
            if time.perf_counter() > end:
                return
            yield one
    else:
        yield seed or 0


def _line(outcome: Outcome) -> str:
    return (
        f"seed {outcome.seed}: {outcome.calls} calls, {outcome.entries} entries, "
        f"{outcome.steps} steps, {outcome.virtual_us / 1e6:.0f} s of virtual time, "
        f"history {outcome.digest}"
    )


if __name__ == "__main__":
    sys.exit(main())
