"""The simulation on a folder: processes of one machine, killed at any disk call, and power cuts.

No request is lost here. But a process may be killed after it made a file visible and
before it synced it; then others see the file, and the power is cut.
"""

from __future__ import annotations

from typing import Any, Literal

from casque.buckets.folder import FolderBucket
from casque.buckets.port import Bucket, Expect, Found, Listed, Version
from casque.errors import StorageError
from casque.stores.ledger.ledger_bucket import is_identity
from casque.stores.ledger.log import key_of, number_in
from casque.testing.disk import GoneError, SimDisk, SimFiles
from casque.testing.simulation.clock import SimClock
from casque.testing.simulation.history import Violation
from casque.testing.simulation.loop import ProcessLoop
from casque.testing.simulation.network import Conditions, log_uniform
from casque.testing.simulation.process import Process
from casque.testing.simulation.simulation import Plan, Simulation, Trouble

_PATH = "/queue"
_KILLS = 10
"""How many processes are killed in the middle of a call."""


class _Armed:
    """Fires after some disk calls from now; or from when one process has linked an entry."""

    def __init__(self, calls: int, linker: SimFiles | None = None) -> None:
        self._calls = calls
        self._linker = linker

    def strikes(self, files: SimFiles, what: str, key: str) -> bool:
        if self._linker is None:
            self._calls -= 1
        elif self._linker is files and what == "link" and number_in(key):
            self._linker = None
        return self._calls <= 0


class FolderSimulation(Simulation):
    """One run on one disk."""

    command = "python -m casque.testing.simulation --folder"

    def __init__(self, seed: int, *, is_told: bool = False) -> None:
        super().__init__(seed, is_told=is_told)
        self.disk = SimDisk(before=self._before)
        self._disks: dict[str, _Disk] = {}
        self.key = ""
        """The key of the object that is being written."""
        self._dead: list[Process] = []
        """The processes that a power cut has just ended."""
        self._armed: _Armed | None = None
        self._cut: _Armed | None = None

    def _changed(self, plan: Plan) -> Plan:
        """Return the plan for one machine: no request is lost, and there is one wall clock."""
        kinds = (Trouble.KILL, Trouble.STOP)
        return plan._replace(
            conditions=Conditions(plan.conditions.delay_us // 50 + 1, 2_000),
            troubles=tuple(trouble for trouble in plan.troubles if trouble in kinds),
            rounds=plan.rounds // 2,
            whole_seconds=False,
        )

    def _skew(self) -> int:
        return 0

    def _reached(self, name: str, loop: ProcessLoop, clock: SimClock) -> Bucket:
        files = self.disk.process()
        bucket = FolderBucket(_PATH, clock, files=files)
        self._disks[name] = _Disk(self, bucket, files, loop)
        return self._disks[name]

    def _died(self, process: Process) -> None:
        """Stop its disk calls: without a network, no request of it is still under way."""
        self._disks[process.name].files.kill()

    # -- the disk --------------------------------------------------------------

    def landed(self, key: str, body: bytes) -> None:
        """Do nothing: `look` sees every entry on the disk."""

    def look(self) -> None:
        """Take every visible entry into the replay, synced or not."""
        if self._dead:
            self._power_is_back()
        while (body := self._on_disk(self.replay.number + 1)) is not None:
            self.replay.landed(self.replay.number + 1, body, self.world.now())

    def _on_disk(self, number: int) -> bytes | None:
        place = self._node(self.disk.root, _PATH[1:])
        homes = [name for name in getattr(place, "names", ()) if is_identity(name)]
        found = self._node(place, f"{homes[0]}/{key_of(number)}") if homes else None
        body: bytes | None = None if found is None else found.body
        return body

    def _node(self, node: Any, path: str) -> Any:
        for name in path.split("/"):
            node = None if node is None else node.names.get(name)
        return node

    def _before(self, files: SimFiles, what: str) -> None:
        if self._is_over:
            return
        if self._cut is not None and self._cut.strikes(files, what, self.key):
            self._cut = None
            self._cut_power(what)
        elif self._armed is not None and self._armed.strikes(files, what, self.key):
            self._armed = None
            files.kill()
            if self.chance.random() < 0.7:
                # By then others may or may not have seen its file, and may have synced something.
                self._cut = _Armed(log_uniform(self.chance, 1, 20))

    # -- troubles --------------------------------------------------------------

    def _trouble(self) -> None:
        super()._trouble()
        for place in range(_KILLS):
            span = int(self.plan.trouble_every_us * (place + self.chance.random()) / 4)
            self.world.after(span, self._arm)

    def _arm(self) -> None:
        """Kill a process at one of its next disk calls, and maybe cut the power after that."""
        living = [one for one in self.processes if not one.loop.is_dead and not one.is_done]
        if self._is_over or not living:
            return
        process = self.chance.choice(living)
        files = self._disks[process.name].files
        if self.chance.random() < 0.3:
            self._armed = _Armed(self.chance.randint(1, 12))
        else:
            self._armed = _Armed(self.chance.randint(1, 3), linker=files)

    def _cut_power(self, what: str) -> None:
        self.history.add("the power is cut before a", what)
        self.disk.power_cut(self.chance)
        self._dead = [one for one in self.processes if not one.loop.is_dead]
        for process in self._dead:
            process.loop.die()

    def _power_is_back(self) -> None:
        dead, self._dead = self._dead, []
        kept = 0
        while kept < self.replay.number and self._on_disk(kept + 1) is not None:
            kept += 1
            if self._on_disk(kept) != self.replay.content(kept):
                raise Violation(f"entry {kept} is not what it was before the power was cut")
        self.history.add("the power is back", kept, "of", self.replay.number, "entries are left")
        self.replay.lost_after(kept)
        for process in dead:
            self._ended(process)
            if process.loop.fate is not None and not self._is_over:
                self._again(process)


class _Disk:
    """The folder as one process uses it. A process that is killed in a disk call is dead."""

    blocking = True

    def __init__(
        self, owner: FolderSimulation, bucket: FolderBucket, files: SimFiles, loop: ProcessLoop
    ) -> None:
        self.name = bucket.name
        self.files = files
        self._owner = owner
        self._bucket = bucket
        self._loop = loop

    async def get(self, key: str) -> Found | None:
        found: Found | None = await self._done(self._bucket.get(key))
        return found

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        self._owner.key = key
        version: Version = await self._done(self._bucket.put(key, body, expect=expect))
        return version

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        listed: list[Listed] = await self._done(self._bucket.list(prefix, after=after))
        return listed

    async def delete(self, key: str) -> None:
        await self._done(self._bucket.delete(key))

    async def close(self) -> None:
        """Nothing to release."""

    async def _done(self, request: Any) -> Any:
        try:
            answer = await request
        except GoneError:
            self._owner.killed_in_call(self._loop)
            raise StorageError("the process is dead") from None
        finally:
            self._owner.key = ""
            self._owner.look()
        return answer
