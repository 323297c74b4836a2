"""A simulation of whole processes over a faulty bucket, on virtual time, replayable from a seed."""

from __future__ import annotations

from casque.testing.simulation.folder import FolderSimulation
from casque.testing.simulation.history import Violation
from casque.testing.simulation.simulation import Outcome, Simulation, run_seed
from casque.testing.simulation.strangers import HoleSimulation, RacySimulation, ShortListSimulation
from casque.testing.simulation.wiped import WipedSimulation

__all__ = [
    "FolderSimulation",
    "HoleSimulation",
    "Outcome",
    "RacySimulation",
    "ShortListSimulation",
    "Simulation",
    "Violation",
    "WipedSimulation",
    "run_seed",
]
