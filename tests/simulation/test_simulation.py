"""Whole processes over a faulty bucket, by seeds: nothing is lost, doubled, stale or stuck.

`make torture SECONDS=600` continues from other seeds for that long.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from casque.testing.simulation import (
    FolderSimulation,
    HoleSimulation,
    Outcome,
    RacySimulation,
    ShortenedSimulation,
    ShortListSimulation,
    Simulation,
    Violation,
    WipedSimulation,
    run_seed,
)
from casque.testing.simulation.history import LAST

SHARE = 10
"""How many seeds one test runs, so that the processes of a run can share them."""


def run_share(kind: type[Simulation], share: int) -> list[Outcome]:
    return [kind(seed).run() for seed in range(share * SHARE, (share + 1) * SHARE)]


@pytest.mark.parametrize("share", range(6))
def test_every_promise_holds_whatever_a_seed_brings(share: int) -> None:
    ran = run_share(Simulation, share)
    calls = sum(outcome.calls for outcome in ran) / len(ran)
    assert calls > 100, "the processes do almost nothing"


@pytest.mark.parametrize("share", range(3))
def test_every_promise_holds_when_the_power_is_cut(share: int) -> None:
    run_share(FolderSimulation, share)


@pytest.mark.parametrize("share", range(2))
def test_every_promise_holds_while_old_entries_are_deleted(share: int) -> None:
    runs = [ShortenedSimulation(seed) for seed in range(share * SHARE, (share + 1) * SHARE)]
    for run in runs:
        run.run()
    assert sum(run.snapshots for run in runs) > 5 * SHARE
    assert sum(len(run.freed) for run in runs) > 40 * SHARE
    assert sum(run.phantoms for run in runs) > 0, "no process wrote under a name that was freed"


@pytest.mark.parametrize("kind", [RacySimulation, ShortListSimulation])
def test_nothing_is_stored_on_a_server_that_breaks_its_promises(kind: type[Simulation]) -> None:
    for seed in range(5):
        assert kind(seed).run().calls > 0


def test_nobody_writes_behind_a_missing_entry_and_nothing_is_lost() -> None:
    for seed in range(3, 9):
        HoleSimulation(seed).run()


def test_no_claim_on_a_wiped_ledger_acts_on_the_one_that_took_its_place() -> None:
    for seed in range(8):
        WipedSimulation(seed).run()


def test_a_seed_leads_to_the_same_history_again() -> None:
    for seed in range(3):
        assert run_seed(seed) == run_seed(seed)


def test_a_seed_leads_to_the_same_history_in_any_process() -> None:
    look = "from casque.testing.simulation import run_seed\nprint(*map(run_seed, range(2)))"
    told = {
        subprocess.run(
            [sys.executable, "-c", look],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("0", "4711")
    }
    assert len(told) == 1


def test_a_failure_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casque.testing.simulation.replay.AHEAD_US", -(10**15))
    with pytest.raises(Violation) as failure:
        run_seed(3)
    told = str(failure.value).splitlines()
    assert told[0].startswith("seed 3: log/00000000000000000001 is dated ")
    assert told[-1] == "again: python -m casque.testing.simulation --seed 3"
    steps = told[told.index("the last steps:") + 1 : -2]
    assert 10 < len(steps) <= LAST


def test_the_command_runs_seeds_and_prints_each() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "casque.testing.simulation", "--seed", "3", "--verbose"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert told[-1].endswith("failed: none")
    assert told[-2].startswith("seed 3: ")
    assert len(told) > 100
