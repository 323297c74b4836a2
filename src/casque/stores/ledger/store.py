"""LedgerStore: a queue in a bucket: a log of committed batches, and its state in memory.

A commit is decided on the state that this process has and created as the next
entry, if nobody else has created that one; whoever was first, the others read
it and decide anew. docs/design/ledger.md argues why nothing is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from casque.buckets.port import Bucket
from casque.errors import CASConflictError, CorruptError, StorageError
from casque.record import EPHEMERAL, Record
from casque.rules.operations import Enqueue, Operation
from casque.rules.state import State
from casque.rules.transaction import transact
from casque.stores.last_answers import Answers
from casque.stores.ledger.bucket_requests import Asking
from casque.stores.ledger.bucket_time import BEHIND_US, BucketTime
from casque.stores.ledger.entry import FIRST, Entry, Guest, digest_of, encode
from casque.stores.ledger.exclusive import new_turn
from casque.stores.ledger.format_check import find_ledger, open_place
from casque.stores.ledger.home import Home
from casque.stores.ledger.log import Ahead, Log, Vanished
from casque.stores.ledger.pacing import Pacing
from casque.stores.ledger.presence import Presence, is_ephemeral
from casque.stores.ledger.replica import Broken, Replica
from casque.stores.ledger.tryout import ask_time
from casque.stores.listeners import Bells, makes_claimable
from casque.stores.port import COMMIT_DEADLINE_US
from casque.stores.state_reads import Looking
from casque.system.clock import SECOND_US, Bell, Clock, Stopwatch, SystemClock

POLL_US = 500_000
"""How long a waiting dequeue sleeps before it looks whether another process wrote."""
POLL_LOCAL_US = 50_000
"""The same, where looking costs next to nothing."""

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


class _Sent(NamedTuple):
    """A decided commit: `content` may be, or become, entry `number`. Empty: nothing to store."""

    number: int
    content: bytes
    commit: int
    outcomes: list[Any]
    decided_us: int
    guest: Guest | None
    rings: bool


class LedgerStore(Looking):
    """A store in a bucket. Nothing is read or written before its first use."""

    instant = False

    def __init__(self, bucket: Bucket, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.name = bucket.name
        self.blocking = bucket.blocking
        self._home = Home(bucket)
        self._asking = Asking(self._home, self.clock)
        self._log = Log(self._asking)
        self._time = BucketTime(self.clock)
        self._turn = new_turn(blocking=bucket.blocking)
        self._replica: Replica | None = None
        self._is_read = False
        """Whether the replica was read to the end of the log. Nothing is written before it was."""
        self._known = (0, FIRST)
        """The last entry that the log is known to have had before it was read anew: its number and
        its digest."""
        self._is_open = False
        """Whether it was tried out, and is a ledger."""
        self._is_seen = False
        """Whether it is a ledger, for all that can be seen without writing."""
        self._is_to_race = False
        """Whether the next time that it is tried out creates are to race."""
        self._checked = Stopwatch(self.clock)
        """Since the last entry that we know of was seen to be there."""
        self._marked = Stopwatch(self.clock)
        """Since the mark was seen to be ours."""
        self._answers = Answers()
        self._doubts: dict[str, _Sent] = {}
        """By writer: what it sent and does not know the fate of."""
        self._ahead = _FEW
        """How many entries are asked for where another has taken the next."""
        self._bells = Bells()
        self._pacing = Pacing(self._asking, self._time)
        self._presence = Presence(self._asking)

    def try_out(self) -> None:
        self._is_to_race, self._is_open = True, False

    def require_existing(self) -> None:
        self._home.must_exist = True

    # -- changing --------------------------------------------------------------

    async def commit(
        self,
        writer: str,
        number: int,
        operations: Sequence[Operation],
        *,
        max_conflicts: int | None = None,
    ) -> list[Any]:
        lasting = [one for one in operations if not is_ephemeral(one)]
        if len(lasting) == len(operations):
            return await self._commit_lasting(writer, number, operations, max_conflicts)
        now = await self._time_to_write()
        stored: Iterator[Any] = iter(())
        if lasting:
            try:
                stored = iter(await self._commit_lasting(writer, number, lasting, max_conflicts))
            except StorageError as error:
                # One that answers may refuse the log alone, when that is dated after its clock say.
                if error.outcome_unknown or self._asking.is_silent:
                    raise
                stored = repeat(error)
        # From here on nothing is raised, and nobody waits for long: the others are stored.
        return [
            await self._presence.change(one, now, briefly=bool(lasting))
            if is_ephemeral(one)
            else next(stored)
            for one in operations
        ]

    async def _commit_lasting(
        self,
        writer: str,
        number: int,
        operations: Sequence[Operation],
        max_conflicts: int | None,
    ) -> list[Any]:
        async def work() -> list[Any]:
            outcomes = await self._commit(writer, number, operations, max_conflicts, watch)
            await self._pacing.got_in()
            return outcomes

        called = Stopwatch(self.clock)
        async with self._turn:
            try:
                watch = self._asking.begin(called)
                return await self._with_a_second_look(work)
            except StorageError as error:
                sent = self._doubts.get(writer)
                if error.outcome_unknown or sent is None or sent.commit != number:
                    raise
                # Whatever was refused now, what was sent before may be stored, or yet become so.
                raise self._log.unknown(sent.number, error) from error

    async def _commit(
        self,
        writer: str,
        number: int,
        operations: Sequence[Operation],
        max_conflicts: int | None,
        watch: Stopwatch,
    ) -> list[Any]:
        blind = _can_be_blind(operations)
        replica, is_current = await self._ready(watch, blind=blind, to_write=True)
        if is_current:  # a long log takes long to read, and that is not counted
            watch = Stopwatch(self.clock)
        conflicts = 0
        while True:
            told = self._answers.recall(self._last_commit(replica, writer), writer, number)
            if told is not None:
                return told
            sent = self._doubts.get(writer)
            if sent is None or sent.commit != number:
                self._check_patience(conflicts, max_conflicts, watch)
                await self._tell_time(watch, to_write=True)
                losing = watch if conflicts else None
                await self._pacing.wait(replica, losing, partial(self._read_on, replica, watch))
                sent = self._decide(replica, writer, number, operations)
            elif sent.number > replica.number + 1:  # the log was cut off before it
                raise Vanished(replica.number + 1)
            if not sent.content:
                if is_current or not await self._catch_up(replica, watch):
                    return sent.outcomes
                is_current = True
            else:
                if await self._append(replica, writer, sent, watch):
                    return sent.outcomes
                conflicts += 1

    def _decide(
        self, replica: Replica, writer: str, number: int, operations: Sequence[Operation]
    ) -> _Sent:
        """Decide the batch on the state we have."""
        now, state = self._time.now(), replica.deciding()
        state.step = self._time.step
        done = transact(state, writer, number, operations, now)
        if not done.events:
            replica.undo()
            return _Sent(0, b"", number, done.outcomes, now, None, rings=False)
        assert replica.digest is not None
        guest = self._pacing.next_guest(now)
        entry = Entry(replica.number + 1, writer, number, now, replica.digest, done.events, guest)
        outcomes = _without_places(done.outcomes) if replica.is_blind else done.outcomes
        rings = any(map(makes_claimable, done.events))
        return _Sent(entry.number, encode(entry), number, outcomes, now, guest, rings)

    async def _append(self, replica: Replica, writer: str, sent: _Sent, watch: Stopwatch) -> bool:
        """Store a commit as the next entry; False when another came first, and is read."""
        # Noted before it is sent: whatever strikes from here on, its fate is not forgotten, and
        # nothing else is decided for this commit until it is known.
        is_new = self._doubts.get(writer) is not sent
        self._doubts[writer] = sent
        try:
            others = await self._write(sent, watch)
        except BaseException as error:
            replica.undo()
            if is_new and isinstance(error, StorageError) and not error.outcome_unknown:
                del self._doubts[writer]
            raise
        if not others and replica.is_changing:
            replica.decided(writer, sent.content)
            self._landed(writer, sent)
        elif not others:
            self._take(replica, sent.content)
        else:
            replica.undo()
            await self._take_others(replica, others)
        return not others

    async def _write(self, sent: _Sent, watch: Stopwatch) -> list[bytes]:
        # If there is no answer as to the mark, the entry is stored all the same, and in its place.
        beside = [self._asking.briefly(one) for one in await self._look_beside(watch)]
        # In a folder all are equally near, and nobody has to be let in.
        words = None if self.blocking else self._pacing.beside(sent.number)
        if words is not None:
            beside.append(words)
        write = self._log.append(sent.number, sent.content, watch, ahead=self._ahead)
        if not beside:
            return await write
        others, *_ = await self._asking.together(write, *beside)
        return cast("list[bytes]", others)

    def _landed(self, writer: str, sent: _Sent) -> None:
        del self._doubts[writer]
        self._answers.keep(writer, sent.commit, sent.outcomes, sent.decided_us)
        self._time.saw(sent.decided_us)
        self._pacing.saw(sent.decided_us, sent.guest)
        self._pacing.wrote(writer, sent.number)
        if sent.rings:
            self._bells.ring()

    def _last_commit(self, replica: Replica, writer: str) -> int:
        """The last commit of a writer that is known to be stored; 0 when none is."""
        stored = 0 if replica.state is None else replica.state.number_of(writer)
        return max(stored, self._answers.last_number(writer))

    def _check_patience(self, conflicts: int, max_conflicts: int | None, watch: Stopwatch) -> None:
        if max_conflicts is not None and conflicts > max_conflicts:
            raise CASConflictError(
                f"{self.name}: other writers won the write {conflicts} times; nothing was written. "
                "Try again later, or raise max_retries."
            )
        if watch.elapsed_us() > COMMIT_DEADLINE_US:
            raise StorageError(
                f"{self.name}: other writers won the write for {COMMIT_DEADLINE_US // SECOND_US} s "
                f"({conflicts} times); nothing was written. Use fewer writing processes.",
                outcome_unknown=False,
            )

    # -- what is known of the log ----------------------------------------------

    async def _with_a_second_look(self, work: Callable[[], Awaitable[T]]) -> T:
        """If what we know and what is stored do not fit together, forget it and read it anew."""
        try:
            return await work()
        except (Vanished, Broken):
            # It may be another queue by now, or none.
            replica = self._replica
            if replica is not None and self._is_read and replica.digest is not None:
                self._known = max(self._known, (replica.number, replica.digest))
            self._replica, self._is_open, self._is_seen = None, False, False
            self._time.forget()
        try:
            return await work()
        except Vanished as error:
            raise CorruptError(
                f"{self._log.name_of(error.number)} is missing: it was there before, or later "
                "entries are. Something deletes objects of this queue, an expiry rule of the "
                "bucket say. Stop that, and restore what was deleted."
            ) from error
        except Broken as error:
            raise CorruptError(
                f"{error} does not follow the entry before it: it belongs to another log, or one "
                "of the two was replaced, by somebody or by a server that lets two writers create "
                "one object. Stop all who write, and restore both from a copy."
            ) from error

    async def _enter(self, watch: Stopwatch, *, to_write: bool) -> bool:
        """Make sure that this is a ledger. False: it is none yet, and who only looks makes none."""
        if not self._is_open and (to_write or self._home.timed is None):
            self._home.identity = await open_place(
                self._asking, self._time, watch, racing=self._is_to_race
            )
            self._is_open, self._is_to_race = True, False
        elif not (self._is_open or self._is_seen):
            identity = await find_ledger(self._asking, watch)
            self._home.identity = identity or ""
            self._is_seen = identity is not None
        else:
            return True
        self._marked = Stopwatch(self.clock)
        return self._is_open or self._is_seen

    async def _look_beside(
        self, watch: Stopwatch, every_us: int = LOOK_EVERY_US
    ) -> list[Coroutine[Any, Any, None]]:
        """What to ask beside the next request, to know whether the ledger is still the one we read.

        Nothing, if that was seen just now. In a folder it is seen at once: it costs next to
        nothing, and what is written to a folder that is not mounted would be in the way.
        """
        if self.blocking:
            await self._look_at_mark(watch)
        elif self._marked.elapsed_us() > every_us:
            return [self._look_at_mark(watch)]
        return []

    async def _look_at_mark(self, watch: Stopwatch) -> None:
        seen = Stopwatch(self.clock)
        await find_ledger(self._asking, watch)
        self._marked = seen

    async def _ready(
        self, watch: Stopwatch, *, blind: bool, to_write: bool
    ) -> tuple[Replica, bool]:
        """The log as we know it, and whether it has just been read to its end."""
        replica = self._replica
        if replica is not None:
            replica.undo()
        if not await self._enter(watch, to_write=to_write):
            # Kept: who has looked knows how many jobs came before those that it adds.
            self._replica = Replica(blind=False)
            return self._replica, True
        if replica is None or (replica.is_blind and not blind):
            replica, self._is_read = Replica(blind=blind), False
        elif self._is_read:
            await self._check_head(replica, watch)
            return replica, False
        for look in await self._look_beside(watch):
            await look
        if replica.is_blind:
            await self._leap_to_end(replica)
        else:
            # Kept from its first entry on: whoever gives up on a long log goes on from there.
            self._replica = replica
            await self._read_to_end(replica)
        await self._log.check_list(replica.number)
        await self._check_known()
        self._replica, self._is_read = replica, True
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
        """See that the log was not shortened before it was read anew.

        What this process has acknowledged, or has shown, may be in what is gone.
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
        """Now and then, see whether what we know of is still stored. Raises Vanished if not.

        Whoever removed it, what is written after it would be where nobody finds
        it. In a folder it costs little, so there each call looks for the last entry.
        """
        if self.blocking or self._checked.elapsed_us() > CHECK_EVERY_US:
            head = await self._log.read(replica.number, watch)
            if digest_of(head or FIRST) != replica.digest:
                raise Vanished(replica.number)
            self._checked = Stopwatch(self.clock)

    async def _take_all(self, replica: Replica, ahead: Ahead) -> None:
        """Read the entries that are listed."""
        # All share the line: large ones together would take longer than one request may.
        at_once = min(_AT_ONCE, max(_BYTES_AT_ONCE // max(ahead.largest, 1), 1))
        await self._log.read_each(
            replica.number + 1,
            ahead.last,
            lambda content: self._take(replica, content),
            at_once=at_once,
            size=ahead.largest,
        )

    async def _catch_up(self, replica: Replica, watch: Stopwatch) -> bool:
        """Read the log to where it ends, or ended after this was asked; whether it had grown.

        Not until nothing follows: to a slow process that may never happen.
        """
        content = await self._read_next(replica.number, watch, IDLE_LOOK_US)
        if content is None:
            return False
        self._take(replica, content)
        await self._read_to_end(replica)
        return True

    async def _read_next(
        self, number: int, watch: Stopwatch, every_us: int = LOOK_EVERY_US
    ) -> bytes | None:
        """The entry after that one; None when there is none yet."""
        beside = await self._look_beside(watch, every_us)
        read = self._log.read(number + 1, watch)
        if not beside:
            return await read
        content, *_ = await self._asking.together(read, *beside)
        return cast("bytes | None", content)

    async def _read_on(self, replica: Replica, watch: Stopwatch, most: int) -> bool:
        """Take in what follows, up to so many entries; whether there was any."""
        count = min(self._ahead, most)
        contents = await self._log.read_ahead(replica.number + 1, count, watch)
        await self._take_others(replica, contents)
        return bool(contents)

    async def _take_others(self, replica: Replica, contents: Sequence[bytes]) -> None:
        """Take in what others wrote meanwhile, to the end of the log."""
        before = replica.number
        for content in contents:
            self._take(replica, content)
        if len(contents) == self._ahead:
            await self._read_to_end(replica)
        if contents:
            missed = replica.number - before
            self._ahead = min(max(missed + missed // 2 + 1, self._ahead // 3, _FEW), _AT_ONCE)

    def _take(self, replica: Replica, content: bytes) -> None:
        """Take in an entry, and see what it means for the commits we are in doubt about."""
        entry = replica.take(content, self._log.name_of(replica.number + 1))
        self._time.saw(entry.time_us)
        self._pacing.saw(entry.time_us, entry.guest)
        self._bells.ring_for(entry.events)
        for writer, sent in list(self._doubts.items()):
            if sent.content == content:
                self._landed(writer, sent)
            elif sent.number <= entry.number:
                del self._doubts[writer]  # its place is taken: it never will be stored

    async def _tell_time(self, watch: Stopwatch, *, to_write: bool) -> None:
        """See to it that we know the time. Raises, to write, if the log is too far ahead of it."""
        if self._time.is_due() or self._time.behind_us() > BEHIND_US:
            await ask_time(self._asking, self._time, watch)
        if not self._time.may_write() and to_write:
            assert self._replica is not None
            raise StorageError(
                f"{self._log.name_of(self._replica.number)} is dated "
                f"{self._time.behind_us() // SECOND_US} s after the storage's own clock: the clock "
                f"of a process that writes here runs ahead (writer {self._replica.writers[-1]}), "
                "or the storage's was set back. Nothing was written. Stop that process, or wait "
                "for the time to come.",
                outcome_unknown=False,
            )

    async def _time_to_write(self) -> int:
        """The bucket's time, and that this is a ledger, for what is not written to the log."""
        called = Stopwatch(self.clock)
        async with self._turn:
            watch = self._asking.begin(called)
            await self._enter(watch, to_write=True)
            for look in await self._look_beside(watch):
                await look
            if self._time.is_due():
                await ask_time(self._asking, self._time, watch)
            return self._time.asked()

    # -- waiting ---------------------------------------------------------------

    @contextmanager
    def listen(self, bell: Bell) -> Iterator[int | None]:
        with self._bells.hung(bell):
            yield POLL_LOCAL_US if self.blocking else POLL_US

    # -- reading ---------------------------------------------------------------

    async def _read(self, look: Callable[[State, int], T]) -> T:
        """What is seen of the log read to its end: no answer may rest on old memory."""

        async def work() -> T:
            called = Stopwatch(self.clock)
            async with self._turn:
                watch = self._asking.begin(called)
                replica, is_current = await self._ready(watch, blind=False, to_write=False)
                if is_current:
                    called = watch = Stopwatch(self.clock)
                await self._tell_time(watch, to_write=False)
                number = replica.number
            # Outside of our turn, so that those who only look hold up nobody.
            if not is_current:
                is_current = await self._read_next(number, watch) is None
            async with self._turn:
                watch = self._asking.begin(called)
                replica, _ = await self._ready(watch, blind=False, to_write=False)
                if not is_current:
                    await self._catch_up(replica, watch)
                assert replica.state is not None
                now, replica.state.step = self._time.now(), self._time.step
                return look(replica.state, now)

        return await self._with_a_second_look(work)

    async def records(self, kind: str) -> list[Record]:
        if kind not in EPHEMERAL:
            return await super().records(kind)
        return await self._presence.records(kind, await self._read(lambda *_: self._time.asked()))

    async def close(self) -> None:
        # What is here when it is used again may be another queue.
        self._replica, self._is_open, self._is_seen = None, False, False
        self._home.identity, self._known = "", (0, FIRST)
        self._time.forget()
        await self._home.close()


def _can_be_blind(operations: Sequence[Operation]) -> bool:
    """Whether no answer depends on what is stored: new jobs, under ids that nobody has."""
    return all(
        isinstance(one, Enqueue) and all(request.minted for request in one.jobs)
        for one in operations
    )


def _without_places(outcomes: list[Any]) -> list[Any]:
    """The answers of one who does not know how many jobs came before."""
    return [
        [replace(job, seq=0) for job in outcome] if isinstance(outcome, list) else outcome
        for outcome in outcomes
    ]
