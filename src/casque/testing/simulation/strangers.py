"""The simulation on servers that break their promises, and with a deleted entry.

A ledger must detect a server that is not atomic, or that lists wrongly, before it
stores anything there. While an entry is missing, no new process may write; and
once the entry is back, nothing is lost.
"""

from __future__ import annotations

from typing import Literal

from casque.buckets.port import ABSENT, Expect, Listed, Version
from casque.errors import CASConflictError
from casque.stores.ledger.ledger_bucket import split_key
from casque.stores.ledger.log import key_of, number_in
from casque.system.clock import MINUTE_US, SECOND_US, drive
from casque.testing.simulation.actors import ROLES, produce
from casque.testing.simulation.history import Violation
from casque.testing.simulation.network import Mishap, SimBucket, log_uniform
from casque.testing.simulation.process import Process
from casque.testing.simulation.simulation import Plan, Simulation, Trouble

_SETTLED_US = 10 * SECOND_US
"""All sends of an entry with the same number are answered within this time."""


class _Unfit(Simulation):
    """A run on a server that must not hold a ledger. There are no other network faults."""

    def _changed(self, plan: Plan) -> Plan:
        return plan._replace(
            conditions=plan.conditions._replace(mishaps=()),
            troubles=tuple(one for one in plan.troubles if one is not Trouble.OUTAGE),
            rounds=2,
        )

    def landed(self, key: str, body: bytes) -> None:
        if number_in(key) is not None:
            self._fail(Violation(f"{key} was stored on a server that breaks its promises"))


class _Racy(SimBucket):
    """A server that checks the condition of a write first, and writes a round trip later."""

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        found = await self.get(key)
        if (ABSENT if found is None else found.version) != expect:
            raise CASConflictError(f"{key} is not as expected")

        async def overwrite() -> Version:
            await self._bucket.delete(key)
            self._witness.landed(key, body)
            return await self._bucket.put(key, body, expect=ABSENT)

        written: Version = await self._ask(f"overwrite {key}", overwrite)
        return written


class RacySimulation(_Unfit):
    command = "python -m casque.testing.simulation --racy"
    way = _Racy


class _Short(SimBucket):
    """A server whose lists are empty if they begin after some key."""

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        listed = await super().list(prefix, after=after)
        return [] if after else listed


class ShortListSimulation(_Unfit):
    command = "python -m casque.testing.simulation --short-lists"
    way = _Short


class _Newcomer(SimBucket):
    """The bucket of a process that started while an entry was missing."""

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        if number_in(key) is not None:
            assert isinstance(self._witness, HoleSimulation)
            self._witness.newcomer_writes(self._sender, key)
        return await super().put(key, body, expect=expect)


class HoleSimulation(Simulation):
    """A run in which somebody deletes an entry from the middle of the log, and restores it."""

    command = "python -m casque.testing.simulation --hole"

    def __init__(self, seed: int, *, is_told: bool = False) -> None:
        self._hole = 0
        """The number of the entry that is missing."""
        self._landed_us: list[int] = []
        super().__init__(seed, is_told=is_told)

    def _changed(self, plan: Plan) -> Plan:
        # A request that arrives hours later could take the number of the deleted entry.
        mishaps = tuple(one for one in plan.conditions.mishaps if one[0] is not Mishap.LATE)
        return plan._replace(
            conditions=plan.conditions._replace(mishaps=mishaps),
            troubles=tuple(one for one in plan.troubles if one is not Trouble.OUTAGE),
        )

    def landed(self, key: str, body: bytes) -> None:
        super().landed(key, body)
        if number_in(key) is not None:
            self._landed_us.append(self.world.elapsed_us)

    def _open(self, name: str) -> Process:
        self.way = _Newcomer if self._hole else SimBucket
        return super()._open(name)

    def newcomer_writes(self, name: str, key: str) -> None:
        if self._hole:
            self._fail(Violation(f"{name} writes {key}, though entry {self._hole} is missing"))

    def _trouble(self) -> None:
        super()._trouble()
        self._dig_later()

    def _dig_later(self) -> None:
        self.world.after(log_uniform(self.chance, SECOND_US, 5 * MINUTE_US), self._dig)

    def _dig(self) -> None:
        """Delete an entry that every process has read; then start new processes."""
        if self._is_over:
            return
        living = [one.ledger._reader.replica for one in self.processes if not one.loop.is_dead]
        known = min((replica.number for replica in living if replica is not None), default=0)
        settled = sum(at < self.world.elapsed_us - _SETTLED_US for at in self._landed_us)
        last = min(known, settled, self.replay.number - 1)
        if last < 1:
            self._dig_later()
            return
        self._hole = self.chance.randint(1, last)
        self.replay.is_damaged = True
        self.history.add("somebody deletes entry", self._hole)
        drive(self._bucket.delete(self._path(self._hole)))
        for number, role in enumerate((produce, *ROLES)):
            self._start_role(f"new{number}", role, 3)
        self.world.after(log_uniform(self.chance, SECOND_US, 2 * MINUTE_US), self._fill)

    def _fill(self) -> None:
        if self._hole:
            self.history.add("entry", self._hole, "is back")
            body = self.replay.content(self._hole)
            drive(self._bucket.put(self._path(self._hole), body, expect=ABSENT))
            self._hole = 0

    def _path(self, number: int) -> str:
        """Return the full key of an entry."""
        [home] = {split_key(one.key)[0] for one in drive(self._bucket.list())} - {""}
        return f"{home}/{key_of(number)}"

    def _calm_down(self) -> None:
        self._fill()
        super()._calm_down()
