"""The simulation with a ledger that is wiped under open processes, while others start a new one.

The stored jobs are lost, which no queue can prevent. But no open process may end
a job of the new queue by a claim on the old one. So tokens must continue to rise,
and every entry of the new log is checked, no matter which process sent it. The
answers to the processes that were open before the wipe are not checked.
"""

from __future__ import annotations

import json

from casque.stores.ledger.ledger_bucket import MARKER, split_key
from casque.stores.ledger.log import number_in
from casque.system.clock import drive
from casque.testing.simulation import actors
from casque.testing.simulation.simulation import Simulation


class WipedSimulation(Simulation):
    """One run, in the middle of which all objects are deleted."""

    command = "python -m casque.testing.simulation --wiped"
    _old = ""
    """The identity of the ledger that was wiped."""

    def _trouble(self) -> None:
        super()._trouble()
        places = max(len(self.plan.troubles), 2)
        span = self.plan.trouble_every_us * places * (1 + self.chance.random()) / 2
        self.world.after(int(span), self._wipe)

    def _wipe(self) -> None:
        if self._is_over:
            return
        self.history.add("all objects are deleted")
        mark = drive(self._bucket.get(MARKER))
        self._old = "" if mark is None else str(json.loads(mark.body)["identity"])
        self._bucket._objects.clear()
        self.replay = self.replay.wiped()
        for process in self.processes:
            process.store.is_wiped = True
        for role in (actors.produce, actors.work):
            self._start_role(f"{role.__name__[:1]}-new", role, self.plan.rounds)

    def landed(self, key: str, body: bytes) -> None:
        if number_in(key) is None or split_key(key)[0] != self._old:
            super().landed(key, body)
        elif MARKER not in self._bucket._objects:
            # Its sender may not have noticed the wipe yet, or the request took hours. A person who
            # wipes a queue to start another also deletes objects that arrive later.
            self.history.add("deleted too:", key)
            del self._bucket._objects[key]
