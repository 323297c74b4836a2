"""Verification: reads a whole ledger, checks every object, and reports the first damage.

It writes nothing, and the queue may be in use. Entries that are written meanwhile are not checked.
If others delete old entries meanwhile, it begins again.
"""

from __future__ import annotations

from casque.errors import CorruptError
from casque.rules.comparison import difference, inconsistency
from casque.rules.state import State
from casque.stores.ledger.apart_payload import ApartPayload
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.entry import FIRST
from casque.stores.ledger.format_check import find_ledger
from casque.stores.ledger.framing import digest_of
from casque.stores.ledger.inventory import Inventory, gaps, take_inventory
from casque.stores.ledger.log import Log, MissingEntryError, missing
from casque.stores.ledger.replica import MisplacedEntryError, Replica, misplaced
from casque.stores.ledger.snapshot import Builder, Frozen, Manifest
from casque.stores.ledger.snapshot_listing import manifest_key
from casque.stores.ledger.snapshot_loader import read_manifest, read_parts
from casque.stores.maintenance import LEDGER_PAGE, Progress, Verification, damaged
from casque.stores.place_errors import absent
from casque.system.clock import Stopwatch

_TRIES = 5
"""How often it begins again because the queue was shortened meanwhile."""
_AT_ONCE = 32
_BYTES_AT_ONCE = 4 * 1024 * 1024


async def verify(requests: BucketRequests, progress: Progress) -> Verification:
    """Check the ledger. Raises CorruptError, with the name of the object, at the first damage."""
    bound, inventory = await _look(requests)
    for left in reversed(range(_TRIES)):
        try:
            return await _Check(bound, inventory, progress).run()
        except CorruptError as error:
            before = inventory
            bound, inventory = await _look(requests)
            if not left or not before.has_lost(inventory):
                raise damaged(error, LEDGER_PAGE) from error
    raise AssertionError


async def _look(requests: BucketRequests) -> tuple[BucketRequests, Inventory]:
    """Return the ledger that is here now, and the names of its objects."""
    mark = await find_ledger(requests, Stopwatch(requests.clock))
    if mark is None:
        raise absent(f"{requests.bucket.name} holds no queue")
    bound = BucketRequests(requests.bucket.of(mark.identity), requests.clock)
    return bound, await take_inventory(bound, mark)


class _Check:
    """One pass over the objects of an inventory."""

    def __init__(self, requests: BucketRequests, inventory: Inventory, progress: Progress) -> None:
        self._requests = requests
        self._inventory = inventory
        self._progress = progress
        self._log = Log(requests)
        self._replica = Replica(blind=False)
        self._done = 0

    async def run(self) -> Verification:
        inventory = self._inventory
        base = await self._base()
        for number in sorted(inventory.snapshots):
            manifest, state = await self._load(number)
            if number == base:
                self._replica.restore(state, number, manifest.entry_digest, 0)
            elif number > base:
                await self._replay(number)
                self._compare(manifest, state)
            await self._check_entry_of(manifest)
        await self._replay(inventory.head)
        await self._check_payloads()
        return self._result(base)

    async def _base(self) -> int:
        """Return the number of the snapshot to replay the log from; 0: from its beginning.

        Entries that a snapshot replaces may be missing: they are deleted, an adopted queue never
        had them, and a backup has those of an earlier backup and not all up to this one.
        """
        inventory, base = self._inventory, 0
        newest = max(inventory.snapshots, default=0)
        if newest and newest not in inventory.entries:
            # Producers that hold no state need it.
            if await self._log.read(newest, Stopwatch(self._requests.clock)) is None:
                raise missing(self._log.name_of(newest))
            # It was written after the entries were listed.
            inventory.snapshots = {one for one in inventory.snapshots if one <= inventory.head}
        for gap in gaps(inventory):
            base = min((one for one in inventory.snapshots if one > gap.last), default=0)
            if not base:
                raise missing(self._log.name_of(gap.first))
        return base

    async def _load(self, number: int) -> tuple[Manifest, State]:
        """Read a snapshot, and check it without the log."""
        name = self._requests.full_name(manifest_key(number))
        manifest = await read_manifest(self._requests, number)
        builder = Builder(manifest)

        def take(content: bytes, part: str) -> None:
            builder.add(content, part)
            self._read(len(content))

        await read_parts(self._requests, manifest, take)
        state = builder.finish()
        wrong = inconsistency(state)
        if Frozen.of(state, number, manifest.entry_digest).counts != manifest.counts:
            wrong = "it does not have as many jobs as it counts"
        if wrong is not None:
            raise CorruptError(f"{name} is inconsistent: {wrong}")
        return manifest, state

    def _compare(self, manifest: Manifest, state: State) -> None:
        """Check that a snapshot is the state that the log gives."""
        replica, name = self._replica, self._requests.full_name(manifest_key(manifest.number))
        assert replica.state is not None
        wrong = difference(state, replica.state)
        if wrong is not None:
            raise CorruptError(f"{name}: its {wrong} differ from those of the log")

    async def _check_entry_of(self, manifest: Manifest) -> None:
        if manifest.number in self._inventory.entries:
            name = self._log.name_of(manifest.number)
            content = await self._log.read(manifest.number, Stopwatch(self._requests.clock))
            if content is None:
                raise missing(name)
            if digest_of(content or FIRST) != manifest.entry_digest:
                raise CorruptError(f"{name} is not the entry that the snapshot of it was taken at")

    async def _replay(self, last: int) -> None:
        first, sizes = self._replica.number + 1, self._inventory.entries
        largest = max((sizes[number] for number in range(first, last + 1)), default=0)
        at_once = min(_AT_ONCE, max(_BYTES_AT_ONCE // max(largest, 1), 1))
        try:
            await self._log.read_each(first, last, self._take, at_once=at_once, size=largest)
        except MissingEntryError as error:
            raise missing(self._log.name_of(error.number)) from error
        except MisplacedEntryError as error:
            raise misplaced(error) from error

    async def _check_payloads(self) -> None:
        """Check that the payloads of the jobs exist.

        A payload is deleted after the entry that removes its job. So if one is missing, the log
        says whether its job has ended meanwhile.
        """
        assert self._replica.state is not None
        for job in list(self._replica.state.jobs.values()):
            payload = job.payload
            if not isinstance(payload, ApartPayload) or await self._is_there(payload):
                continue
            await self._read_on()
            after = self._replica.state.jobs.get(job.id)
            if after is not None and after.payload is payload:
                raise CorruptError(
                    f"{self._requests.full_name(payload.key)} is missing, or has another size: it "
                    f"is the payload of job {job.id}"
                )

    async def _is_there(self, payload: ApartPayload) -> bool:
        if self._inventory.payloads.get(payload.key) == len(payload):
            return True
        found = await self._requests.get(payload.key, Stopwatch(self._requests.clock))
        return found is not None and len(found.body) == len(payload)

    async def _read_on(self) -> None:
        """Replay the entries that were written since the inventory."""
        first = self._replica.number + 1
        ahead = await self._log.ahead(first - 1, Stopwatch(self._requests.clock))
        await self._log.read_each(first, ahead.last, self._take, at_once=_AT_ONCE, size=0)

    def _take(self, content: bytes) -> None:
        replica = self._replica
        name = self._log.name_of(replica.number + 1)
        assert replica.state is not None
        before = replica.state.time_us
        try:
            entry = replica.take(content, name)
        except (LookupError, AssertionError) as error:
            raise CorruptError(f"{name}: its events do not fit the jobs before it") from error
        if entry.time_us < before:
            raise CorruptError(f"{name} is dated before the entry before it")
        self._read(len(content))

    def _read(self, size: int) -> None:
        self._done += size
        inventory = self._inventory
        self._progress(min(self._done, inventory.size_bytes), inventory.size_bytes)

    def _result(self, base: int) -> Verification:
        inventory, state = self._inventory, self._replica.state
        assert state is not None
        wrong = inconsistency(state)
        if wrong is not None:
            raise CorruptError(f"{self._log.name_of(inventory.head)}: after this entry {wrong}")
        return Verification(
            self._requests.bucket.name,
            "ledger",
            state.stats(None, max(state.time_us, self._requests.clock.now())),
            inventory.size_bytes,
            entries=self._replica.number - base,
            first_entry=base + 1,
            snapshots=len(inventory.snapshots),
            strangers=tuple(inventory.strangers),
            left=tuple(sorted(inventory.left)),
        )
