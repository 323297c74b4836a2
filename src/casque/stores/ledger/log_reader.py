"""LogReader: follows the log of a ledger, and has the replica that it leads to.

It makes sure that the place is a ledger and still the same one, reads the log to
its end, and takes in what other processes append. The store calls the reader,
never the other way round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from casque.errors import CorruptError, StorageError
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.bucket_time import BEHIND_US, BucketTime
from casque.stores.ledger.entry import FIRST, digest_of
from casque.stores.ledger.format_check import find_ledger, open_ledger
from casque.stores.ledger.log import ListedEntries, Log, MissingEntryError
from casque.stores.ledger.pacing import Pacing
from casque.stores.ledger.replica import MisplacedEntryError, Replica
from casque.stores.ledger.sent_commits import SentCommits
from casque.stores.ledger.tryout import ask_time
from casque.stores.listeners import Listeners
from casque.system.clock import SECOND_US, Stopwatch

LOOK_EVERY_US = SECOND_US
"""How long the mark is believed to be ours still, where looking costs a request."""
IDLE_LOOK_US = 10 * SECOND_US
"""The same, to answer that there is nothing to do."""
CHECK_EVERY_US = 30 * SECOND_US
"""How long an entry that was there is believed to be there still, where looking costs a request."""

_FEW = 4
"""Where another has taken the next entry, as many are read at once."""
_AT_ONCE = 32
"""How many entries are read together at most."""
_BYTES_AT_ONCE = 4 * 1024 * 1024
"""How much is read together at most, but for a single entry that is larger."""

T = TypeVar("T")


class LogReader:
    """Used by one call at a time: the store's lock is held, except for `read_next`."""

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
        """How many entries are asked for where another has taken the next."""
        self._is_to_race = False
        """True if creates are to race the next time that the bucket is tried out."""
        self._bucket = requests.bucket
        self._requests = requests
        self._log = log
        self._time = time
        self._pacing = pacing
        self._sent = sent
        self._listeners = listeners
        self._is_read = False
        """True once the replica was read to the end of the log. Nothing is written before."""
        self._known = (0, FIRST)
        """The last entry that the log had before it was read again: its number and its digest."""
        self._is_open = False
        """True once the bucket was tried out, and is a ledger."""
        self._is_seen = False
        """True if it is a ledger, for all that can be seen without writing."""
        self._checked = Stopwatch(self.clock)
        """Since the last entry that we know of was seen to be there."""
        self._marked = Stopwatch(self.clock)
        """Since the mark was seen to be ours."""

    def race_next_time(self) -> None:
        """Try the bucket out again at the next call, and let creates race."""
        self._is_to_race, self._is_open = True, False

    def close(self) -> None:
        """Forget everything: the next use may find another queue here."""
        self._forget()
        self._bucket.expected, self._known = "", (0, FIRST)

    def _note_known(self) -> None:
        """Keep the end of the log as we know it, to find it there when the log is read again."""
        replica = self.replica
        if replica is not None and self._is_read and replica.digest is not None:
            self._known = max(self._known, (replica.number, replica.digest))

    def _forget(self) -> None:
        self.replica, self._is_open, self._is_seen = None, False, False
        self._time.forget()

    async def with_a_second_read(self, work: Callable[[], Awaitable[T]]) -> T:
        """If what we know and what is stored do not fit together, forget it and read again."""
        try:
            return await work()
        except (MissingEntryError, MisplacedEntryError):
            # It may be another queue by now, or none.
            self._note_known()
            self._forget()
        try:
            return await work()
        except MissingEntryError as error:
            raise CorruptError(
                f"{self._log.name_of(error.number)} is missing: it was there before, or later "
                "entries are. Something deletes objects of this queue, an expiry rule of the "
                "bucket say. Stop that, and restore what was deleted."
            ) from error
        except MisplacedEntryError as error:
            raise CorruptError(
                f"{error} does not follow the entry before it: it belongs to another log, or one "
                "of the two was replaced, by somebody or by a server that lets two writers create "
                "one object. Stop all who write, and restore both from a copy."
            ) from error

    async def enter(self, watch: Stopwatch, *, to_write: bool) -> bool:
        """Make sure that this is a ledger. False: it is none yet, and a reader makes none."""
        is_to_open = not self._is_open and (to_write or self._bucket.timed is None)
        if not is_to_open and (self._is_open or self._is_seen):
            return True
        if not to_write:
            identity = await find_ledger(self._requests, watch)
            self._bucket.bind(identity or "")
            self._is_seen = identity is not None
        if is_to_open and (to_write or self._is_seen):
            self._bucket.bind(
                await open_ledger(self._requests, self._time, watch, racing=self._is_to_race)
            )
            self._is_open, self._is_to_race = True, False
        self._marked = Stopwatch(self.clock)
        return self._is_open or self._is_seen

    async def mark_check(
        self, watch: Stopwatch, every_us: int = LOOK_EVERY_US
    ) -> list[Coroutine[Any, Any, None]]:
        """What to ask beside the next request, to know whether the ledger is still the one we read.

        Nothing, if that was seen just now. In a folder it is seen at once: it costs next to
        nothing, and what is written to a folder that is not mounted would be in the way.
        """
        if self._bucket.blocking:
            await self._check_mark(watch)
        elif self._marked.elapsed_us() > every_us:
            return [self._check_mark(watch)]
        return []

    async def _check_mark(self, watch: Stopwatch) -> None:
        seen = Stopwatch(self.clock)
        await find_ledger(self._requests, watch)
        self._marked = seen

    async def ready(self, watch: Stopwatch, *, blind: bool, to_write: bool) -> tuple[Replica, bool]:
        """The log as we know it, and whether it has just been read to its end."""
        replica = self.replica
        if not await self.enter(watch, to_write=to_write):
            # Kept: after a read we know how many jobs came before those that we add.
            self.replica = Replica(blind=False)
            return self.replica, True
        if replica is None or replica.is_changing or (replica.is_blind and not blind):
            self._note_known()
            replica, self._is_read = Replica(blind=blind), False
        elif self._is_read:
            await self._check_head(replica, watch)
            return replica, False
        for look in await self.mark_check(watch):
            await look
        if replica.is_blind:
            await self._leap_to_end(replica)
        else:
            # Kept from its first entry on: a call that gives up on a long log goes on from there.
            self.replica = replica
            await self._read_to_end(replica)
        await self._log.check_list(replica.number)
        await self._check_known()
        self.replica, self._is_read = replica, True
        self._checked = Stopwatch(self.clock)
        return replica, True

    async def _leap_to_end(self, replica: Replica) -> None:
        ahead = await self._log.ahead(0, Stopwatch(self.clock))
        while not ahead.is_end:
            ahead = await self._log.ahead(ahead.last, Stopwatch(self.clock))
        if ahead.last:
            replica.leap(ahead.last)
            await self._take_all(replica, ahead)

    async def _read_to_end(self, replica: Replica) -> None:
        """Read the log to where it ended when it was listed."""
        is_end = False
        while not is_end:
            ahead = await self._log.ahead(replica.number, Stopwatch(self.clock))
            await self._take_all(replica, ahead)
            is_end = ahead.is_end

    async def _check_known(self) -> None:
        """Check that the log was not shortened before it was read again.

        The missing entries may hold commits that this process has acknowledged or shown.
        """
        number, digest = self._known
        if number:
            content = await self._log.read(number, Stopwatch(self.clock))
            if digest_of(content or FIRST) != digest:
                raise CorruptError(
                    f"{self._log.name_of(number)} is missing, or another is in its place: this "
                    "process has seen it there. Stop whatever deletes or replaces objects of this "
                    "queue, and restore them. If you put back an older copy on purpose, start this "
                    "process again."
                )
        self._known = (0, FIRST)

    async def _check_head(self, replica: Replica, watch: Stopwatch) -> None:
        """Now and then, check that the last entry is still stored. Raises MissingEntryError if not.

        An entry written after a gap would never be found. In a folder the check is
        cheap, so there each call makes it.
        """
        if self._bucket.blocking or self._checked.elapsed_us() > CHECK_EVERY_US:
            head = await self._log.read(replica.number, watch)
            if digest_of(head or FIRST) != replica.digest:
                raise MissingEntryError(replica.number)
            self._checked = Stopwatch(self.clock)

    async def _take_all(self, replica: Replica, ahead: ListedEntries) -> None:
        """Read the entries that are listed."""
        # All share the line: large ones together would take longer than one request may.
        at_once = min(_AT_ONCE, max(_BYTES_AT_ONCE // max(ahead.largest, 1), 1))
        await self._log.read_each(
            replica.number + 1,
            ahead.last,
            lambda content: self.take(replica, content),
            at_once=at_once,
            size=ahead.largest,
        )

    async def catch_up(self, replica: Replica, watch: Stopwatch) -> bool:
        """Read the log to where it ends, or ended after this was asked; whether it had grown.

        Not until nothing follows: to a slow process that may never happen.
        """
        content = await self.read_next(replica.number, watch, IDLE_LOOK_US)
        if content is None:
            return False
        self.take(replica, content)
        await self._read_to_end(replica)
        return True

    async def read_next(
        self, number: int, watch: Stopwatch, every_us: int = LOOK_EVERY_US
    ) -> bytes | None:
        """The entry after that one; None when there is none yet."""
        beside = await self.mark_check(watch, every_us)
        read = self._log.read(number + 1, watch)
        if not beside:
            return await read
        content, *_ = await self._requests.together(read, *beside)
        return cast("bytes | None", content)

    async def read_on(self, replica: Replica, watch: Stopwatch, most: int) -> bool:
        """Take in what follows, up to so many entries; whether there was any."""
        count = min(self.ahead, most)
        contents = await self._log.read_ahead(replica.number + 1, count, watch)
        await self.take_others(replica, contents)
        return bool(contents)

    async def take_others(self, replica: Replica, contents: Sequence[bytes]) -> None:
        """Take in what others wrote meanwhile, to the end of the log."""
        before = replica.number
        for content in contents:
            self.take(replica, content)
        if len(contents) == self.ahead:
            await self._read_to_end(replica)
        if contents:
            missed = replica.number - before
            self.ahead = min(max(missed + missed // 2 + 1, self.ahead // 3, _FEW), _AT_ONCE)

    def take(self, replica: Replica, content: bytes) -> None:
        """Take in an entry, and see what it means for the commits we are in doubt about."""
        entry = replica.take(content, self._log.name_of(replica.number + 1))
        self._time.saw(entry.time_us)
        self._pacing.saw(entry.time_us, entry.guest)
        self._listeners.ring_for(entry.events)
        self._sent.settle(entry.number, content)

    async def learn_time(self, watch: Stopwatch, *, to_write: bool) -> None:
        """Learn the bucket's time. With `to_write`, raises if the log is too far ahead of it."""
        if self._time.is_due() or self._time.behind_us() > BEHIND_US:
            await ask_time(self._requests, self._time, watch)
        if not self._time.may_write() and to_write:
            assert self.replica is not None
            raise StorageError(
                f"{self._log.name_of(self.replica.number)} is dated "
                f"{self._time.behind_us() // SECOND_US} s after the storage's own clock: the clock "
                f"of a process that writes here runs ahead (writer {self.replica.writers[-1]}), "
                "or the storage's was set back. Nothing was written. Stop that process, or wait "
                "for the time to come.",
                outcome_unknown=False,
            )
