"""The simulation with a log that is shortened: snapshots are taken, and old entries deleted.

All ages are short: processes sleep longer than it takes until entries are deleted, and requests
arrive after the entry of their number was. So a name that is free may have been used before. An
entry under such a name is not part of the log, and no answer may depend on it.
"""

from __future__ import annotations

from casque.errors import CorruptError
from casque.stores.ledger.ledger_bucket import Upkeep, split_key
from casque.stores.ledger.log import number_in
from casque.stores.ledger.snapshot import Builder, decode_manifest
from casque.stores.ledger.snapshot_listing import MANIFESTS, part_key
from casque.system.clock import SECOND_US, drive
from casque.testing.simulation import facts
from casque.testing.simulation.history import Violation
from casque.testing.simulation.network import log_uniform
from casque.testing.simulation.simulation import Simulation

_ROUNDING_US = SECOND_US


class ShortenedSimulation(Simulation):
    """One run, with ages of seconds or minutes instead of hours."""

    command = "python -m casque.testing.simulation --shortened"

    def __init__(self, seed: int, *, is_told: bool = False) -> None:
        super().__init__(seed, is_told=is_told)
        chance = self.world.chance("upkeep")
        self._age = age = log_uniform(chance, 5 * SECOND_US, 300 * SECOND_US)
        self.upkeep = Upkeep(age, age // chance.randint(2, 12), chance.randint(2, 12))
        self.freed: set[int] = set()
        """The numbers of the entries that were deleted."""
        self.phantoms = 0
        """How many entries were created under such a number again."""
        self.snapshots = 0

    def landed(self, key: str, body: bytes) -> None:
        number = number_in(key)
        if number in self.freed:
            self.phantoms += 1
            self.history.add("log", number, "is written again, long after it was deleted")
            return
        super().landed(key, body)
        if split_key(key)[1].startswith(MANIFESTS):
            self.snapshots += 1
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
        self._home = split_key(key)[0]
        manifest = decode_manifest(content, key)
        if not self._is_whole(content):
            self.history.add("the parts of", key, "are missing: it came too late")
            if manifest.number > max(self.freed, default=0):
                return
        builder = Builder(manifest)
        try:
            for one in manifest.parts:
                found = drive(self._bucket.get(f"{self._home}/{part_key(one.name)}"))
                builder.add(found.body if found else b"", one.name)
        except CorruptError:
            return
        mine = facts.fingerprint(builder.finish())
        with self.replay.looking_back(manifest.number) as states:
            for number, state in states:
                told = facts.fingerprint(state) if number == manifest.number else {}
                for part, value in told.items():
                    if mine[part] != value:
                        raise Violation(f"{key} differs in {part}:\n  {mine[part]}\n  {value}")
