"""The simulation with other seeds than in CI, for the given time.

`make torture SECONDS=600` prints its first seed, and a failure shows its own seed.
"""

from __future__ import annotations

import os
import time
from itertools import count

import pytest

from casque.testing.simulation import (
    FolderSimulation,
    HoleSimulation,
    ShortenedSimulation,
    Simulation,
    WipedSimulation,
)

SECONDS = float(os.environ.get("CASQUE_TORTURE_SECONDS", "1"))
FIRST = int(os.environ.get("CASQUE_TORTURE_SEED", "1000000"))


@pytest.mark.parametrize(
    "kind",
    [Simulation, FolderSimulation, HoleSimulation, ShortenedSimulation, WipedSimulation],
)
def test_every_promise_holds_from_other_seeds_too(kind: type[Simulation]) -> None:
    end = time.monotonic() + SECONDS
    for seed in count(FIRST):
        kind(seed).run()
        if time.monotonic() > end:
            break
    print(f"{kind.__name__}: seeds {FIRST} to {seed}")
