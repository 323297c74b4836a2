"""LogReader: follows a ledger's log and keeps the replica up to date.

It checks that the place still holds the same ledger. It reads the log to its end, and applies the
entries that other processes append. The store calls the reader, never the other way round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar, cast

from casque.errors import CorruptError, StorageError
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.bucket_time import BEHIND_US, BucketTime
from casque.stores.ledger.entry import FIRST
from casque.stores.ledger.format_check import find_ledger, open_ledger
from casque.stores.ledger.framing import digest_of
from casque.stores.ledger.log import ListedEntries, Log, MissingEntryError, missing
from casque.stores.ledger.pacing import Pacing
from casque.stores.ledger.proof import OvertakenError, Proof, View
from casque.stores.ledger.replica import MisplacedEntryError, Replica, misplaced
from casque.stores.ledger.sent_commits import SentCommits
from casque.stores.ledger.snapshot_listing import snapshots_after
from casque.stores.ledger.snapshot_loader import load_newest
from casque.stores.ledger.tryout import ask_time
from casque.stores.listeners import Listeners
from casque.system.clock import SECOND_US, Stopwatch

LOOK_EVERY_US = SECOND_US
"""How long a check of the mark stays valid, where a check costs a request."""
IDLE_LOOK_US = 60 * SECOND_US
"""The same for a call that finds nothing new."""
CHECK_EVERY_US = 30 * SECOND_US
"""How long a check of the last entry stays valid, where a check costs a request."""

_FEW = 4
"""How many entries are read in parallel after another process took the next one."""
_AT_ONCE = 32
"""How many entries are read in parallel at most."""
_BYTES_AT_ONCE = 4 * 1024 * 1024
"""How many bytes are read in parallel at most, except for a single larger entry."""

T = TypeVar("T")


class LogReader:
    """Follows the log. Hold the store's lock to call its methods, except `read_next`."""

    def __init__(
        self,
        requests: BucketRequests,
        log: Log,
        *,
        time: BucketTime,
        pacing: Pacing,
        sent: SentCommits,
        listeners: Listeners,
    ) -> None:
        self.clock = requests.clock
        self.replica: Replica | None = None
        self.ahead = _FEW
        """How many entries to request after another process took the next one."""
        self._is_to_race = False
        """True if the next test of the bucket must include racing creates."""
        self._bucket = requests.bucket
        self._requests = requests
        self._log = log
        self._time = time
        self._pacing = pacing
        self._sent = sent
        self._listeners = listeners
        self._proof = Proof(requests, log)
        self._unproven: list[tuple[int, bytes]] = []
        """Entries that were applied, and are not known to be part of the log."""
        self._proven: View = (0, FIRST)
        """The last entry that is known to be part of the log, in the snapshot or after it."""
        self._is_read = False
        """True once the replica was read to the end of the log. Nothing is written before."""
        self._known = (0, FIRST)
        """The number and digest of the last entry before the log was read again."""
        self._is_open = False
        """True once the bucket has passed its test and holds a ledger."""
        self._is_seen = False
        """True if a check without writing found a ledger."""
        self._checked = Stopwatch(self.clock)
        """The time since the last entry of the replica was seen in the bucket."""
        self._marked = Stopwatch(self.clock)
        """The time since the mark was last checked."""

    def race_next_time(self) -> None:
        """Make the next call test the bucket again, also with concurrent creates."""
        self._is_to_race, self._is_open = True, False

    def close(self) -> None:
        """Forget everything: the next use may find another queue here."""
        self._forget()
        self._bucket.expected, self._known = "", (0, FIRST)

    @property
    def current(self) -> Replica | None:
        """The replica, if it was read to the end of the log, and all of it is proven."""
        return self.replica if self._is_read and not self._unproven else None

    async def prove(
        self, replica: Replica, begun: Stopwatch, watch: Stopwatch, *, shows_end: bool
    ) -> None:
        """Check that what was read is the log: see `Proof.check`. Then settle what it decides."""
        await self._proof.check(self._proven, begun, watch, shows_end=shows_end)
        for number, content in self._unproven:
            self._sent.settle(number, content)
        self._unproven.clear()
        self.extended(replica)

    def extended(self, replica: Replica) -> None:
        """Note that the end of the replica is part of the log."""
        self._proven = replica.view

    def _note_known(self) -> None:
        """Remember the end of the log, to check that it is still there after the next read."""
        replica = self.replica
        if replica is not None and self._is_read and replica.digest is not None:
            self._known = max(self._known, (replica.number, replica.digest))

    def _forget(self) -> None:
        self.replica, self._is_open, self._is_seen = None, False, False
        self._time.forget()
        self._proof.forget()
        self._unproven.clear()

    async def with_a_second_read(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work`; if the replica does not fit the stored log, read the log again and retry."""
        try:
            return await work()
        except (MissingEntryError, MisplacedEntryError, OvertakenError):
            # The place may hold another queue by now, or none; or this process slept.
            self._note_known()
            self._forget()
        try:
            return await work()
        except OvertakenError as error:
            raise _went_on_without_us(str(error)) from error
        except MissingEntryError as error:
            if await self._is_replaced(error.number):
                raise _went_on_without_us(self._log.name_of(error.number)) from error
            raise missing(self._log.name_of(error.number)) from error
        except MisplacedEntryError as error:
            raise misplaced(error) from error

    async def _is_replaced(self, number: int) -> bool:
        """True if a snapshot replaces the entry, which may be deleted then."""
        return bool(await snapshots_after(self._requests, number, Stopwatch(self.clock)))

    async def enter(self, watch: Stopwatch, *, to_write: bool) -> bool:
        """Check that this is a ledger. Returns False if there is none: a reader creates none."""
        is_to_open = not self._is_open and (to_write or self._bucket.timed is None)
        if not is_to_open and (self._is_open or self._is_seen):
            return True
        if not to_write:
            mark = await find_ledger(self._requests, watch)
            self._bucket.bind(mark)
            self._is_seen = mark is not None
        if is_to_open and (to_write or self._is_seen):
            self._bucket.bind(
                await open_ledger(self._requests, self._time, watch, racing=self._is_to_race)
            )
            self._is_open, self._is_to_race = True, False
        self._marked = Stopwatch(self.clock)
        return self._is_open or self._is_seen

    async def mark_check(
        self, watch: Stopwatch, every_us: int = LOOK_EVERY_US
    ) -> list[Callable[[], Awaitable[None]]]:
        """Return functions that check the ledger's identity, to call in parallel with a request.

        The list is empty if a check ran recently. In a folder this method itself checks, before
        any write: it costs almost nothing, and an unmounted folder must not get files.
        """
        if self._bucket.blocking:
            await self._check_mark(watch)
        elif self._marked.elapsed_us() > every_us:
            return [partial(self._check_mark, watch)]
        return []

    async def _check_mark(self, watch: Stopwatch) -> None:
        seen = Stopwatch(self.clock)
        await find_ledger(self._requests, watch)
        self._marked = seen

    async def ready(self, watch: Stopwatch, *, blind: bool, to_write: bool) -> tuple[Replica, bool]:
        """Return the replica, and whether it has just been read to the end of the log."""
        replica = self.replica
        if not await self.enter(watch, to_write=to_write):
            # Kept, because after this read the positions of new jobs are known.
            self.replica = Replica(blind=False)
            return self.replica, True
        if replica is None or replica.is_changing or (replica.is_blind and not blind):
            self._note_known()
            replica, self._is_read = Replica(blind=blind), False
            self._unproven.clear()  # they may be entries under names that were freed
        elif self._is_read:
            await self._check_head(replica, watch)
            if self._unproven:  # an earlier call ended in between
                await self.prove(replica, Stopwatch(self.clock), watch, shows_end=False)
            return replica, False
        for look in await self.mark_check(watch):
            await look()
        if replica.is_blind:
            await self._leap_to_end(replica)
        else:
            if not replica.number:
                await self._load_snapshot(replica)
            # Kept from its first entry on: after a timeout on a long log, the next call continues.
            self.replica = replica
            await self._read_to_end(replica)
        begun = Stopwatch(self.clock)
        await self._log.check_list(replica.number)
        await self.prove(replica, begun, Stopwatch(self.clock), shows_end=True)
        await self._check_known(replica)
        self.replica, self._is_read = replica, True
        self._checked = Stopwatch(self.clock)
        return replica, True

    async def _load_snapshot(self, replica: Replica) -> None:
        """Begin with the newest snapshot, if there is one."""
        begun = Stopwatch(self.clock)
        loaded = await load_newest(self._requests)
        if loaded is not None:
            replica.restore(loaded.state, *loaded.view, loaded.size)
            self._time.saw(loaded.state.time_us)
            self._sent.settle_covered(loaded.state, loaded.view[0])
        self._proven = replica.view
        self._proof.renew(begun)

    async def _leap_to_end(self, replica: Replica) -> None:
        begun = Stopwatch(self.clock)
        snapshots = await snapshots_after(self._requests, 0, Stopwatch(self.clock))
        # The entry of the newest snapshot is never deleted: it has the time and the digest.
        replica.snapshot = snapshots[-1].number if snapshots else 0
        self._proven = (replica.snapshot, None)
        self._proof.renew(begun)
        ahead = await self._log.ahead(max(replica.snapshot - 1, 0), Stopwatch(self.clock))
        while not ahead.is_end:
            ahead = await self._log.ahead(ahead.last, Stopwatch(self.clock))
        if ahead.last:
            replica.leap(ahead.last)
            await self._take_all(replica, ahead)

    async def _read_to_end(self, replica: Replica) -> None:
        """Read the log up to the end that the list showed."""
        is_end = False
        while not is_end:
            ahead = await self._log.ahead(replica.number, Stopwatch(self.clock))
            await self._take_all(replica, ahead)
            is_end = ahead.is_end

    async def _check_known(self, replica: Replica) -> None:
        """After the log was read again, check that its old end is still there.

        The missing entries may hold commits that this process has acknowledged or shown. Entries
        before a snapshot may have been deleted.
        """
        number, digest = self._known
        if number and number >= replica.snapshot:
            content = await self._log.read(number, Stopwatch(self.clock))
            if digest_of(content or FIRST) != digest:
                if await self._is_replaced(number):
                    raise OvertakenError(self._log.name_of(number))
                raise CorruptError(
                    f"{self._log.name_of(number)} is missing, or no longer has the content that "
                    "this process has read. Something deletes or replaces objects of this queue: "
                    "stop that, and restore the objects. If you restored an older copy on "
                    "purpose, restart this process."
                )
        self._known = (0, FIRST)

    async def _check_head(self, replica: Replica, watch: Stopwatch) -> None:
        """Check at intervals that the last entry is still stored. Raises MissingEntryError if not.

        No process would find an entry written after a gap. In a folder every call checks, because
        the check is cheap there.
        """
        if self._bucket.blocking or self._checked.elapsed_us() > CHECK_EVERY_US:
            head = await self._log.read(replica.number, watch)
            if digest_of(head or FIRST) != replica.digest:
                raise MissingEntryError(replica.number)
            self._checked = Stopwatch(self.clock)

    async def _take_all(self, replica: Replica, ahead: ListedEntries) -> None:
        """Read and apply the listed entries."""
        # All reads share the bandwidth: large ones in parallel would exceed the time limit.
        at_once = min(_AT_ONCE, max(_BYTES_AT_ONCE // max(ahead.largest, 1), 1))
        await self._log.read_each(
            replica.number + 1,
            ahead.last,
            lambda content: self.take(replica, content),
            at_once=at_once,
            size=ahead.largest,
        )

    async def catch_up(self, replica: Replica, watch: Stopwatch) -> bool:
        """Read the log to the end it had at some point during this call. True if it had grown.

        Entries that are appended later are not read: a slow process might never reach the end.
        """
        begun = Stopwatch(self.clock)
        content = await self.read_next(replica.number, watch, IDLE_LOOK_US)
        if content is not None:
            self.take(replica, content)
            await self._read_to_end(replica)
        await self.prove(replica, begun, watch, shows_end=content is None)
        return content is not None

    async def read_next(
        self, number: int, watch: Stopwatch, every_us: int = LOOK_EVERY_US
    ) -> bytes | None:
        """Return the entry after `number`; None if there is none yet."""
        beside = await self.mark_check(watch, every_us)
        read = self._log.read(number + 1, watch)
        if not beside:
            return await read
        content, *_ = await self._requests.together(read, *(look() for look in beside))
        return cast("bytes | None", content)

    async def read_on(self, replica: Replica, watch: Stopwatch, most: int) -> bool:
        """Read and apply up to `most` entries that follow. True if there were any."""
        count, begun = min(self.ahead, most), Stopwatch(self.clock)
        contents = await self._log.read_ahead(replica.number + 1, count, watch)
        await self.take_others(replica, contents)
        await self.prove(replica, begun, watch, shows_end=not contents)
        return bool(contents)

    async def take_others(self, replica: Replica, contents: Sequence[bytes]) -> None:
        """Apply the entries that others wrote meanwhile, to the end of the log."""
        before = replica.number
        for content in contents:
            self.take(replica, content)
        if len(contents) == self.ahead:
            await self._read_to_end(replica)
        if contents:
            missed = replica.number - before
            self.ahead = min(max(missed + missed // 2 + 1, self.ahead // 3, _FEW), _AT_ONCE)

    def take(self, replica: Replica, content: bytes) -> None:
        """Apply an entry. Call `prove` before anything depends on it."""
        entry = replica.take(content, self._log.name_of(replica.number + 1))
        self._time.saw(entry.time_us)
        self._pacing.saw(entry.time_us, entry.guest)
        self._listeners.ring_for(entry.events)
        self._unproven.append((entry.number, content))

    async def learn_time(self, watch: Stopwatch, *, to_write: bool) -> None:
        """Read the bucket's time if due. If `to_write`, raise if the log is too far ahead of it."""
        if self._time.is_due() or self._time.behind_us() > BEHIND_US:
            await ask_time(self._requests, self._time, watch)
        if not self._time.may_write() and to_write:
            assert self.replica is not None
            raise StorageError(
                f"{self._log.name_of(self.replica.number)} is dated "
                f"{self._time.behind_us() // SECOND_US} s after the storage's own clock: the clock "
                f"of a process that writes here runs ahead (writer {self.replica.writers[-1]}), "
                "or the storage's clock was set back. Nothing was written. Stop that process, or "
                "wait until the storage's clock has caught up.",
                outcome_unknown=False,
            )


def _went_on_without_us(entry: str) -> StorageError:
    return StorageError(
        f"{entry} was written and deleted while this process read the log: it was suspended, or "
        "the storage is very slow. Nothing was written; try again.",
        outcome_unknown=False,
    )
