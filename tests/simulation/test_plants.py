"""Planted bugs: the seeds listed here find each one.

The seeds that find a bug change whenever the ledger's requests change. Put a seed
that finds the bug first in its list, and the others need not run. If none of the
listed seeds finds it any more, search for others:

    PYTHONPATH=. python tests/simulation/test_plants.py no_fence
"""

from __future__ import annotations

import re
import sys

import pytest

from casque.testing.simulation import (
    FolderSimulation,
    HoleSimulation,
    RacySimulation,
    ShortenedSimulation,
    ShortListSimulation,
    Simulation,
    Violation,
    WipedSimulation,
)
from tests.simulation import plants
from tests.simulation.contest import TwoWaiters
from tests.simulation.plants import Plant

Kind = type[Simulation] | type[TwoWaiters]

FOUND: list[tuple[Plant, Kind, list[int], str]] = [
    (
        plants.unknown_outcome_decided_again,
        Simulation,
        [7, 9, 2, 3, 6, 14],
        "said that nothing was written|twice",
    ),
    (
        plants.own_writer_believed,
        Simulation,
        [175, 197, 228],
        "is not in the log and was",
    ),
    (plants.time_stands_still, Simulation, [0, 1, 2, 3], "time stands still"),
    (plants.stale_memory, Simulation, [1, 3, 2, 0, 5, 10], "nothing in the log from entry"),
    (plants.visible_is_durable, FolderSimulation, [66, 48, 79], "is lost|is missing"),
    (plants.unsynced_names, FolderSimulation, [1, 2, 3, 4], "is lost, though an answer depends on"),
    (plants.no_fence, Simulation, [24, 14, 23, 27, 124, 152], "nobody requested this with"),
    (plants.doubts_forgotten, Simulation, [1, 2, 6, 9, 21, 23], "twice|not answered"),
    (plants.no_rollback, Simulation, [0, 1, 2, 6], "does not follow from|not answered"),
    (plants.blind_with_given_ids, Simulation, [0, 1, 2, 3, 4, 5], "twice|is entry"),
    (plants.leases_cut_short, Simulation, [0, 2, 3, 4], "leases overlap|before it is due"),
    (plants.refused_is_known, Simulation, [23, 152], "said that nothing was written"),
    (plants.patience_without_end, Simulation, [7, 3, 2, 1], "hangs for"),
    (plants.no_race, RacySimulation, [0, 1, 2, 3], "breaks its promises"),
    (plants.lists_believed, ShortListSimulation, [0, 1, 2, 3], "breaks its promises"),
    (plants.gaps_unseen, HoleSimulation, [1, 6, 8, 9], r"though entry \d+ is missing"),
    (plants.half_read_log, HoleSimulation, [5, 8, 9, 13], r"though entry \d+ is missing"),
    (plants.fresh_time_in_line, Simulation, [37, 40, 41, 63, 70], "with a bucket that hangs"),
    (plants.gathered_calls_try_too, Simulation, [5, 36, 37, 62], "with a bucket that hangs"),
    (plants.tokens_restart_at_one, WipedSimulation, [1, 0, 2, 3], "does not rise"),
    (plants.deletion_by_entry_age, ShortenedSimulation, [0, 1, 2, 3], "is deleted, and no"),
    (plants.deletion_without_age, ShortenedSimulation, [0, 1, 2, 3], "is deleted, and no"),
    (plants.no_proof, ShortenedSimulation, [6, 13, 15, 2], "is not in the log and was answered"),
    (
        plants.proof_stamped_at_the_answer,
        ShortenedSimulation,
        [15, 42],
        "is not in the log and was answered",
    ),
    (plants.proof_by_any_entry, ShortenedSimulation, [249], "is not in the log and was answered"),
    (
        plants.manifest_before_parts,
        ShortenedSimulation,
        [0, 1, 2, 3],
        "is written before its parts",
    ),
    (
        plants.unverified_snapshots,
        ShortenedSimulation,
        [14, 22, 21],
        "is deleted, and no snapshot|a snapshot of this queue is incomplete",
    ),
    (
        plants.snapshot_without_writers,
        ShortenedSimulation,
        [2, 13, 18, 19],
        "and was answered|twice",
    ),
    (plants.snapshot_without_token, ShortenedSimulation, [0, 1, 2, 4], "does not follow from"),
    (plants.others_words_deleted, TwoWaiters, [0, 1, 2], "slow process"),
    (plants.guests_ignored, TwoWaiters, [0, 1, 2], "slow process"),
]


def finds(kind: Kind, seed: int) -> str:
    """Return what a seed finds; empty if all checks pass."""
    try:
        kind(seed).run()
    except Violation as violation:
        return str(violation)
    return ""


@pytest.mark.parametrize(
    ("plant", "kind", "seeds", "told"), FOUND, ids=[plant.__name__ for plant, *_ in FOUND]
)
def test_a_planted_bug_is_found(
    plant: Plant,
    kind: Kind,
    seeds: list[int],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    found = next((seed for seed in seeds if re.search(told, first_line(kind, seed))), None)
    assert found is not None, f"none of {seeds} finds it any more: see the top of this file"
    monkeypatch.undo()
    assert not finds(kind, found), "it fails without the bug too"


def first_line(kind: Kind, seed: int) -> str:
    return finds(kind, seed).partition("\n")[0]


def search(name: str, seeds: int = 500, enough: int = 8) -> None:
    """Search for seeds that find a planted bug."""
    [(plant, kind, _, _)] = [one for one in FOUND if one[0].__name__ == name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        count = 0
        for seed in range(seeds):
            what = finds(kind, seed)
            if what:
                print(what.partition("\n")[0])  # noqa: T201 - asked for on the command line
                count += 1
            if count == enough:
                return


if __name__ == "__main__":
    search(sys.argv[1])
