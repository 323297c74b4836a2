"""Replica: what a process knows of a ledger: where its log ends, and mostly the state it leads to.

A producer that only adds jobs needs no state, so it reads none: a blind
replica knows the last entry alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from casque.rules.evolve import evolve
from casque.rules.operations import BatchStamp
from casque.rules.state import State
from casque.stores.ledger.entry import FIRST, Entry, decode, digest_of

RECENT = 32
"""Of how many entries it remembers who wrote them."""


class MisplacedEntryError(Exception):
    """An entry does not follow the one before it. Read the log again before you tell."""


class Replica:
    """The state after entry `number`."""

    def __init__(self, *, blind: bool) -> None:
        # Both at once, in one step: an interrupt finds the one before or the one after.
        self._end: tuple[int, bytes | None] = (0, FIRST)
        self.state = None if blind else State()
        self.writers: deque[str] = deque(maxlen=RECENT)
        """The writers of the last entries: of each, that of its first batch."""
        self.is_changing = False
        """True while the state holds what is not, or not yet, an entry. If an interrupt leaves it
        so, the state may be half changed: read the log again."""

    @property
    def number(self) -> int:
        """Of the last entry."""
        return self._end[0]

    @property
    def digest(self) -> bytes | None:
        """Of the last entry; None when that is not known yet."""
        return self._end[1]

    @property
    def is_blind(self) -> bool:
        return self.state is None

    def leap(self, number: int) -> None:
        """Of a blind one: go on from before entry `number`."""
        self._end = number - 1, None

    def take(self, content: bytes, name: str) -> Entry:
        """Take in the next entry. Raises CorruptError, or MisplacedEntryError."""
        entry = decode(content, name)
        if entry.number != self.number + 1 or self.digest not in (None, entry.previous):
            raise MisplacedEntryError(name)
        self.is_changing = True
        if self.state is not None:
            self._evolve(self.state, entry)
        self.decided(entry.stamps, content)
        return entry

    def _evolve(self, state: State, entry: Entry) -> None:
        state.begin(entry.time_us)
        for event in entry.events:
            evolve(state, event)
        state.stamp(entry.stamps)
        state.end()

    def deciding(self) -> State:
        """The state to decide a batch on; it is kept by `decided`, or taken back by `undo`."""
        self.is_changing = True
        return State() if self.state is None else self.state

    def decided(self, stamps: Sequence[BatchStamp], content: bytes) -> None:
        """What the state holds now is stored, as the next entry."""
        self._end = self.number + 1, digest_of(content)
        self.writers.append(stamps[0].writer)
        self.is_changing = False

    def undo(self) -> None:
        """Take back a batch that was not stored."""
        if self.state is not None and self.is_changing:
            self.state.rollback()
        self.is_changing = False
