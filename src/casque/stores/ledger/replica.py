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
        self._changing_after: int | None = None
        """After which entry the state was last begun to be changed."""

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

    @property
    def is_changing(self) -> bool:
        """Whether the state holds a batch that is not, or not yet, an entry."""
        return self._changing_after == self.number

    def leap(self, number: int) -> None:
        """Of a blind one: go on from before entry `number`."""
        self._end = number - 1, None

    def take(self, content: bytes, name: str) -> Entry:
        """Take in the next entry. Raises CorruptError, or MisplacedEntryError."""
        entry = decode(content, name)
        if entry.number != self.number + 1 or self.digest not in (None, entry.previous):
            raise MisplacedEntryError(name)
        if self.state is not None:
            self._begin_after(self.state)
            self._evolve(self.state, entry)
        self._moved(entry.stamps, content)
        return entry

    def _evolve(self, state: State, entry: Entry) -> None:
        state.begin(entry.time_us)
        for event in entry.events:
            evolve(state, event)
        state.stamp(entry.stamps)
        state.end()

    def deciding(self) -> State:
        """The state to decide a batch on; it is kept by `decided`, or taken back by `undo`."""
        state = State() if self.state is None else self.state
        self._begin_after(state)
        return state

    def _begin_after(self, state: State) -> None:
        # In this order: the notes are still those of the last entry, which an interrupt between
        # here and the first change must not make `undo` take back.
        state.keep()
        self._changing_after = self.number

    def decided(self, stamps: Sequence[BatchStamp], content: bytes) -> None:
        """What was decided is stored, as the next entry."""
        self._moved(stamps, content)

    def undo(self) -> None:
        """Take back a batch that was not stored, or that an interrupt has left half done."""
        if self.state is not None:
            if not self.state.is_whole:
                self.state = self.state.mended()
            elif self.is_changing:
                self.state.rollback()
        self._changing_after = None

    def _moved(self, stamps: Sequence[BatchStamp], content: bytes) -> None:
        self._end = self.number + 1, digest_of(content)
        self.writers.append(stamps[0].writer)
