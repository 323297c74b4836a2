"""A simulation of whole processes over a faulty bucket, on virtual time, replayable from a seed.

__main__    `python -m casque.testing.simulation`.
actors      The actions of processes: produce, work, operate, commit directly.
bill        What a queue in a bucket costs at a load: counts the requests of its processes.
clock       The clock of a process, which is wrong; its random numbers and ids.
facts       Events that must never be in a log, whatever the rules say.
folder      The simulation on a folder: kills at any disk call, and power cuts.
history     Every step; and the error of a failed run.
loop        The event loop of one process, which can be stopped, and killed at any callback.
network     The path to the bucket: slow, and some requests are lost or late.
process     A store handle with every answer checked, and calls that must not hang.
replay      Replays the log as it is, and finds the state that explains an answer.
shortened   The simulation with a log of which old entries are deleted.
simulation  Whole processes over a faulty bucket, as a seed decides.
strangers   The simulation on servers that break their promises, and with a deleted entry.
wiped       The simulation with a ledger that is wiped under open processes.
world       Virtual time: it jumps to the next event.
"""

from __future__ import annotations

from casque.testing.simulation.folder import FolderSimulation
from casque.testing.simulation.history import Violation
from casque.testing.simulation.shortened import ShortenedSimulation
from casque.testing.simulation.simulation import Outcome, Simulation, run_seed
from casque.testing.simulation.strangers import HoleSimulation, RacySimulation, ShortListSimulation
from casque.testing.simulation.wiped import WipedSimulation

__all__ = [
    "FolderSimulation",
    "HoleSimulation",
    "Outcome",
    "RacySimulation",
    "ShortListSimulation",
    "ShortenedSimulation",
    "Simulation",
    "Violation",
    "WipedSimulation",
    "run_seed",
]
