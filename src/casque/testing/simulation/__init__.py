"""A simulation of whole processes over a faulty bucket, on virtual time, replayable from a seed.

__main__    `python -m casque.testing.simulation`.
actors      What processes do: produce, work, operate, commit by hand.
clock       Its clocks, which are wrong, and its chance.
facts       What may never be in a log, whatever the rules say.
folder      The same over a folder: kills at any call of its disk, and power cuts.
history     Every step, and how a failure is told.
loop        The event loop of one process, which can be stopped, and killed at any callback.
network     The way to the bucket: slow, and some requests are lost, or late.
process     A store handle whose every answer is checked, and calls that must not hang.
replay      The log as it is, replayed; which state explains an answer.
simulation  Whole processes over a faulty bucket, as a seed decides.
strangers   The same on servers that break their promises, and where somebody deletes an entry.
wiped       The same with a ledger that is wiped under open processes.
world       Virtual time: it jumps to the next event.
"""

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
