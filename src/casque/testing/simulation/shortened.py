"""The simulation with a log that is shortened: snapshots are taken, and old entries deleted.

All ages are short: processes sleep longer than it takes until entries are deleted, and requests
arrive after the entry of their number was. So a name that is free may have been used before. An
entry under such a name is not part of the log, and no answer may depend on it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from casque.errors import CorruptError
from casque.rules.comparison import contents
from casque.stores.ledger.bucket_requests import REQUEST_SECONDS
from casque.stores.ledger.ledger_bucket import Upkeep, split_key
from casque.stores.ledger.log import number_in
from casque.stores.ledger.snapshot import Builder, decode_manifest
from casque.stores.ledger.snapshot_listing import MANIFESTS, PARTS, part_key
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US, drive
from casque.testing.fakeclock import FakeClock
from casque.testing.simulation.history import Violation
from casque.testing.simulation.loop import ProcessLoop
from casque.testing.simulation.network import SimBucket, log_uniform
from casque.testing.simulation.simulation import Plan, Simulation

_ROUNDING_US = SECOND_US
_CHECK = re.compile(rf"list .*{MANIFESTS}>.*[1-9]")
"""A request that shows whether there is a snapshot above a view."""
_NAPS = 16
"""How often processes fall asleep, at most."""


class _TiringBucket(SimBucket):
    """A bucket whose users may fall asleep before a request is sent, or before its answer."""

    async def _ask(self, name: str, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        owner = self._witness
        assert isinstance(owner, ShortenedSimulation)
        if owner.falls_asleep(self._loop, name):
            await asyncio.sleep(0)
        return await super()._ask(name, ask)


class ShortenedSimulation(Simulation):
    """One run, with ages of seconds or minutes instead of hours."""

    command = "python -m casque.testing.simulation --shortened"
    way = _TiringBucket

    def __init__(self, seed: int, *, is_told: bool = False) -> None:
        super().__init__(seed, is_told=is_told)
        self.freed: set[int] = set()
        """The numbers of the entries that were deleted."""
        self.phantoms = 0
        """How many entries were created under such a number again."""
        self.snapshots = 0
        self._parts: set[str] = set()
        """The parts that were stored so far."""
        self._naps = 0
        self._seen: set[str] = set()
        """The manifests that were written."""
        self._late: set[str] = set()
        """Those that were written again, or after their parts were deleted: hours late."""

    def _changed(self, plan: Plan) -> Plan:
        """Return the plan with pauses so short that the log is shortened during the run."""
        self._chance = chance = self.world.chance("upkeep")
        self._age = age = log_uniform(chance, SECOND_US // 2, 40 * SECOND_US)
        self.upkeep = Upkeep(age, age // chance.randint(2, 12), chance.randint(2, 12))
        pause = log_uniform(chance, age // 10, 2 * age)
        return plan._replace(
            rounds=plan.rounds + 6,
            temper=plan.temper._replace(pause_us=pause),
            trouble_every_us=max(pause, SECOND_US),
        )

    # -- naps ------------------------------------------------------------------

    def falls_asleep(self, loop: ProcessLoop, name: str) -> bool:
        """Maybe stop a process that sends a request. True if it stops before it is sent."""
        chance = self._chance
        if _CHECK.search(name) and chance.random() < 0.3:
            # Until the log was shortened, but not so long that the process sends it again.
            longest = max(REQUEST_SECONDS * SECOND_US - SECOND_US // 2, 2 * self._age)
            span = chance.randint(self._age + _ROUNDING_US, longest)
            begin = int(self.plan.conditions.delay_us * chance.random())
            self.world.after(begin, partial(self._doze_off, loop, span))
        number = number_in(name.removeprefix("put "))
        if number is None or chance.random() > 0.04:
            return False
        # With it the others that have the same view of the log, so that one may read what the
        # other writes long after.
        span = self._nap_us()
        for process in self.processes:
            replica = process.ledger._reader.replica
            if process.loop is not loop and replica is not None and replica.number == number - 1:
                self._nap(process.loop, span + int(SECOND_US * chance.random()))
        return self._nap(loop, span)

    def _nap_us(self) -> int:
        return log_uniform(self._chance, self._age // 2, 4 * self._age) + _ROUNDING_US

    def _doze_off(self, loop: ProcessLoop, span: int) -> None:
        self._nap(loop, span)

    def _nap(self, loop: ProcessLoop, span: int) -> bool:
        """Stop a process, unless no other is awake. Returns False if it was not stopped."""
        awake = [one for one in self.processes if not one.loop.is_dead and not one.loop.is_stopped]
        if self._is_over or loop.is_dead or len(awake) < 2 or self._naps == _NAPS:
            return False
        self._naps += 1
        self.history.add("a process naps for", span)
        loop.stop_for(span, answers_first=self._chance.random() < 0.5)
        return True

    def _run(self) -> None:
        super()._run()
        self._verify()

    def _verify(self) -> None:
        """Check that `verify` finds no damage in what is stored at the end."""
        for key in self._late:
            drive(self._bucket.delete(key))  # what an operator does with a snapshot without parts
        try:
            drive(LedgerStore(self._bucket, FakeClock()).verify(lambda *_: None))
        except CorruptError as error:
            raise Violation(f"verify reports damage: {error}") from error

    # -- what is stored --------------------------------------------------------

    def landed(self, key: str, body: bytes) -> None:
        number = number_in(key)
        if number in self.freed:
            self.phantoms += 1
            self.history.add("log", number, "is written again, long after it was deleted")
            return
        super().landed(key, body)
        name = split_key(key)[1]
        if name.startswith(PARTS):
            self._parts.add(name)
        if name.startswith(MANIFESTS):
            self.snapshots += 1
            self._home = split_key(key)[0]
            if key in self._seen or not self._is_whole(body):
                self._late.add(key)
            self._seen.add(key)
            self._check_snapshot(key, body)

    def deleted(self, key: str) -> None:
        number = number_in(key)
        if number is None or key not in self._bucket._objects:
            return
        covering = [one for one in self._manifests(split_key(key)[0]) if one > number]
        if number not in self.freed and not any(map(self._is_old_and_whole, covering)):
            raise Violation(f"{key} is deleted, and no snapshot that is old enough replaces it")
        self.freed.add(number)

    def _manifests(self, home: str) -> list[int]:
        self._home = home
        folder = f"{home}/{MANIFESTS}"
        return [int(one.key.removeprefix(folder)) for one in drive(self._bucket.list(folder))]

    def _is_old_and_whole(self, number: int) -> bool:
        found = drive(self._bucket.get(f"{self._home}/{MANIFESTS}{number:020}"))
        assert found is not None
        age = self.world.now() - found.modified_us
        return age >= self._age - _ROUNDING_US and self._is_whole(found.body)

    def _is_whole(self, content: bytes) -> bool:
        manifest = decode_manifest(content, "manifest")
        for part in manifest.parts:
            found = drive(self._bucket.get(f"{self._home}/{part_key(part.name)}"))
            if found is None or len(found.body) != part.size:
                return False
        return True

    def _check_snapshot(self, key: str, content: bytes) -> None:
        """Check that a manifest that is now stored names a whole state, and the right one."""
        manifest = decode_manifest(content, key)
        unwritten = {part_key(one.name) for one in manifest.parts} - self._parts
        if unwritten:
            raise Violation(f"{key} is written before its parts {unwritten}")
        if not self._is_whole(content):
            self.history.add("the parts of", key, "are deleted: it came too late")
            return
        builder = Builder(manifest)
        try:
            for one in manifest.parts:
                found = drive(self._bucket.get(f"{self._home}/{part_key(one.name)}"))
                builder.add(found.body if found else b"", one.name)
        except CorruptError:
            return
        mine = contents(builder.finish())
        with self.replay.looking_back(manifest.number) as states:
            for number, state in states:
                told = contents(state) if number == manifest.number else {}
                for part, value in told.items():
                    if mine[part] != value:
                        raise Violation(f"{key} differs in {part}:\n  {mine[part]}\n  {value}")
