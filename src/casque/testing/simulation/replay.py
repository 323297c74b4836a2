"""Replay: follows the log in the bucket entry by entry, and checks each one.

The events of an entry must be those that the rules decide for the requested
operations, on the state before it. And whatever the rules say: no job exists
twice, no job is claimed during a lease, no job is removed without a request, and
tokens and time only rise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from casque.errors import CasqueError, CorruptError
from casque.job import Job
from casque.rules.evolve import evolve
from casque.rules.operations import Batch, BatchStamp, Enqueue, Event, Operation
from casque.rules.state import State, _Undo
from casque.rules.transaction import transact
from casque.stores.ledger.entry import FIRST, Entry, decode
from casque.stores.ledger.framing import digest_of
from casque.stores.ledger.log import key_of
from casque.stores.ledger.replica import MisplacedEntryError, Replica
from casque.system.clock import NO_STEP, SECOND_US, Step
from casque.testing.simulation import facts
from casque.testing.simulation.history import History, Violation

Commit = tuple[str, int]
"""A writer, and the number of its commit."""

AHEAD_US = SECOND_US // 2
"""How far a drifting clock may put an entry ahead of the bucket's time."""
BEHIND_US = 3 * SECOND_US // 2
"""How far it may be behind, besides a round trip: a bucket may round down to seconds."""


class Asked:
    """A batch that was passed to a store, and its outcome."""

    __slots__ = ("batch", "began_at", "expected", "is_refused", "number", "steps")

    def __init__(self, batch: Batch, began_at: int, steps: Mapping[int, Step]) -> None:
        self.batch = batch
        self.began_at = began_at
        """The last entry when the call began."""
        self.steps = steps
        """For each instant, the clock step that its process had seen."""
        self.number: int | None = None
        """The entry that stores it."""
        self.expected: list[Any] = []
        """The expected answer, if an entry stores it."""
        self.is_refused = False
        """True if the error to its caller said that nothing was written."""

    @property
    def can_be_blind(self) -> bool:
        return all(
            isinstance(one, Enqueue) and all(request.minted for request in one.jobs)
            for one in self.batch.operations
        )


class _Watched(Replica):
    """A replica that passes each event to a checker before it applies it."""

    check: Callable[[State, Entry, Event], None] | None = None

    def _evolve(self, state: State, entry: Entry) -> None:
        state.begin(entry.time_us)
        for event in entry.events:
            if self.check is not None:
                self.check(state, entry, event)
            evolve(state, event)
        state.stamp(entry.stamps)
        state.end()


class Replay:
    """The state after the log in the bucket, and the states before it."""

    def __init__(self, history: History, *, longest_trip_us: int) -> None:
        self._history = history
        self._behind_us = BEHIND_US + longest_trip_us
        self._replica = _Watched(blind=False)
        self._contents: list[bytes] = []
        self._undos: list[_Undo] = []
        self._sent: dict[bytes, int] = {}
        """The times at which these bytes were first sent."""
        self._time_us = 0
        self.commits: dict[Commit, Asked] = {}
        self.facts = facts.Facts()
        self.believed = 0
        """The last entry that an answer depends on."""
        self.is_damaged = False
        """True if somebody has deleted entries: then a CorruptError is a correct answer."""

    @property
    def number(self) -> int:
        return self._replica.number

    @property
    def state(self) -> State:
        assert self._replica.state is not None
        return self._replica.state

    # -- the log grows ---------------------------------------------------------

    def sent(self, content: bytes, now_us: int) -> None:
        """Note when these bytes were sent; the first time counts."""
        self._sent.setdefault(content, now_us)

    def landed(self, number: int, content: bytes, now_us: int) -> None:
        """Check an entry that is now in the bucket, and apply it."""
        name = key_of(number)
        if number != self.number + 1:
            raise Violation(f"{name} was written, though the log ends at {self.number}")
        try:
            entry = decode(content, name)
        except CorruptError as error:
            raise Violation(f"{name} is not an entry: {error}") from error
        whose = " ".join(f"{one.writer[-4:]}/{one.number}" for one in entry.stamps)
        self._history.add("log", number, whose, entry.events)
        asked = [self._asked_for(name, number, one) for one in entry.stamps]
        self._check_time(name, entry, self._sent[content], now_us)
        self._expect(name, asked, entry)
        operations = [operation for one in asked for operation in one.batch.operations]
        self._take(content, entry, operations)
        self._check_summary(name, entry)
        for one in asked:
            one.number = number

    def _asked_for(self, name: str, number: int, stamp: BatchStamp) -> Asked:
        asked = self.commits.get((stamp.writer, stamp.number))
        if asked is None:
            raise Violation(f"{name} stores a commit that nobody requested")
        if asked.number is not None:
            raise Violation(
                f"commit {stamp.number} of writer {stamp.writer} is in the log twice: as entry "
                f"{asked.number} and as {number}"
            )
        if asked.is_refused:
            raise Violation(f"{name} stores a commit that was refused")
        return asked

    def _check_time(self, name: str, entry: Entry, sent_us: int, now_us: int) -> None:
        if entry.time_us < self._time_us:
            raise Violation(f"{name}: time goes back by {self._time_us - entry.time_us} us")
        if entry.time_us > now_us + AHEAD_US:
            raise Violation(f"{name} is dated {entry.time_us - now_us} us ahead of the bucket")
        if entry.time_us < sent_us - self._behind_us:
            late = sent_us - entry.time_us
            raise Violation(
                f"{name} was dated {late} us behind the bucket when it was sent, and a round trip "
                f"explains at most {self._behind_us}: time stands still or runs too slowly"
            )
        self._time_us = entry.time_us

    def _expect(self, name: str, asked: Sequence[Asked], entry: Entry) -> None:
        """Check that the rules decide this entry for the batches, and keep their answers."""
        batches, is_blind = [one.batch for one in asked], False
        if all(one.can_be_blind for one in asked):
            # A blind producer prunes nothing, so its entry may have fewer events.
            done = transact(State(), batches, entry.time_us)
            is_blind = facts.same_events(done.events, entry.events)
        state = self.state
        state.step = asked[0].steps.get(entry.time_us, NO_STEP)
        done = transact(state, batches, entry.time_us)
        for one, outcomes in zip(asked, done.outcomes, strict=True):
            one.expected = outcomes
        if done.events:
            state.rollback()
        if not is_blind and not facts.same_events(done.events, entry.events):
            raise Violation(
                f"{name} does not follow from the entries before it:\n  it has {entry.events}\n"
                f"  the rules decide {done.events}"
            )

    def _check_summary(self, name: str, entry: Entry) -> None:
        """Check that the counts in an entry are those of the state after it, until they change."""
        if entry.summary is None:
            return
        self.state.step = NO_STEP
        stats, until_us = entry.summary
        for time in (entry.time_us, until_us - 1):
            told = self.state.stats(None, max(time, entry.time_us))
            if told != stats and until_us > entry.time_us:
                raise Violation(f"{name} says {stats} until {until_us}, and at {time} it is {told}")

    def _take(self, content: bytes, entry: Entry, asked: Sequence[Operation]) -> None:
        def check(state: State, entry: Entry, event: Event) -> None:
            self.facts.check(state, entry, event, asked)

        self._replica.check = check
        try:
            self._replica.take(content, key_of(entry.number))
        except MisplacedEntryError as error:
            raise Violation(f"{error} does not follow the entry before it") from error
        finally:
            self._replica.check = None
        self._contents.append(content)
        self._undos.append(self.state._undo)

    # -- looking back ----------------------------------------------------------

    @contextmanager
    def looking_back(self, oldest: int) -> Iterator[Iterator[tuple[int, State]]]:
        """Yield the states from the last back to that after entry `oldest`, one by one."""
        last = self.number

        def states() -> Iterator[tuple[int, State]]:
            yield self.number, self.state
            while self.number > oldest:
                self._step_back()
                yield self.number, self.state

        try:
            yield states()
        finally:
            self._go_forward(last)

    def _step_back(self) -> None:
        replica, state = self._replica, self.state
        state._undo = undo = self._undos.pop()
        version, token, seq, turn, time_us = undo.counters
        # At time 0, before every delay, so that the counts are right for any time.
        undo.counters = (version, token, seq, turn, 0)
        state.rollback()
        state.time_us = time_us
        number = replica.number - 1
        replica._end = number, digest_of(self._contents[number - 1]) if number else FIRST

    def _go_forward(self, last: int) -> None:
        while self.number < last:
            self._replica.take(self._contents[self.number], "log")
            self._undos.append(self.state._undo)

    def lost_after(self, number: int) -> None:
        """Drop the entries above `number`, lost in a power cut. No answer may depend on them."""
        if number < self.believed:
            raise Violation(
                f"entry {number + 1} is lost, though an answer depends on entry {self.believed}"
            )
        while self.number > number:
            self._step_back()
            content = self._contents.pop()
            entry = decode(content, "log")
            for one in entry.stamps:
                self.commits[one.writer, one.number].number = None
        self.facts.forget_after(number, self.state.token)
        self._time_us = self.state.time_us

    def wiped(self) -> Replay:
        """Return the replay of the new log that starts in place of this one, which was wiped.

        Earlier requests may still arrive. Tokens must continue to rise: an old token must not fit
        a claim on a job that was enqueued again.
        """
        new = Replay(self._history, longest_trip_us=self._behind_us - BEHIND_US)
        new.commits, new._sent, new.facts.token = self.commits, self._sent, self.facts.token
        for asked in self.commits.values():
            asked.number = None
        return new

    def is_next(self, number: int, content: bytes) -> bool:
        """True if these bytes follow the last entry."""
        entry = decode(content, key_of(number))
        return number == self.number + 1 and entry.previous == self._replica.digest

    def content(self, number: int) -> bytes:
        return self._contents[number - 1]

    # -- answers ---------------------------------------------------------------

    def explained(
        self, what: str, began_at: int, times: set[int], explains: Callable[[State, int], bool]
    ) -> None:
        """Check that the state after some entry since `began_at` explains an answer."""
        with self.looking_back(began_at) as states:
            for number, state in states:
                if any(explains(state, time) for time in sorted(times)):
                    self.believed = max(self.believed, number)
                    return
        raise Violation(
            f"{what}: nothing in the log from entry {began_at} to {self.number} explains this"
        )

    def answered(self, asked: Asked, outcomes: list[Any], times: set[int]) -> None:
        """Check a commit's answer against its entry; if it wrote nothing, against the states."""
        writer, commit = asked.batch.writer, asked.batch.number
        if asked.number is not None:
            if not facts.same(outcomes, asked.expected) and not (
                asked.can_be_blind and facts.same(outcomes, _without_places(asked.expected))
            ):
                raise Violation(
                    f"commit {commit} of writer {writer} is entry {asked.number}, and was "
                    f"answered\n  {outcomes}\n  and the log gives\n  {asked.expected}"
                )
            self.believed = max(self.believed, asked.number)
            return

        def explains(state: State, time: int) -> bool:
            state.step = asked.steps[time]
            done = transact(state, [asked.batch], time)
            if done.events:
                state.rollback()
                return False
            return facts.same(done.outcomes[0], outcomes)

        told = f"commit {commit} of writer {writer} is not in the log and was answered {outcomes}"
        self.explained(told, asked.began_at, times, explains)

    def refused(self, asked: Asked, error: CasqueError) -> None:
        """Check a commit whose error said that nothing was written."""
        if asked.number is not None:
            raise Violation(
                f"the error of a commit said that nothing was written ({error}), but it is entry "
                f"{asked.number}"
            )
        asked.is_refused = True


def _without_places(outcomes: list[Any]) -> list[Any]:
    return [
        [replace(job, seq=0) if isinstance(job, Job) else job for job in outcome]
        if isinstance(outcome, list)
        else outcome
        for outcome in outcomes
    ]
