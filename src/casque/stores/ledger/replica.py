"""Replica: what a process knows of a ledger: where its log ends, and mostly the state it leads to.

A producer that only adds jobs needs no state, so it reads none: a blind
replica knows the last entry alone.
"""

from __future__ import annotations

from collections import deque

from casque.evolve import evolve
from casque.state import State
from casque.stores.ledger.entry import FIRST, Entry, decode, digest_of

RECENT = 32
"""Of how many entries it remembers who wrote them."""


class Broken(Exception):  # noqa: N818 - no failure of the storage: a reason to look again
    """An entry does not follow the one before it."""


class Replica:
    """The state after entry `number`."""

    def __init__(self, *, blind: bool) -> None:
        self.number = 0
        self.digest: bytes | None = FIRST
        """Of the last entry; None when that is not known yet."""
        self.state = None if blind else State()
        self.writers: deque[str] = deque(maxlen=RECENT)
        """Who wrote the last entries."""
        self.is_deciding = False
        """Whether its state holds a batch that is not stored yet."""

    @property
    def is_blind(self) -> bool:
        return self.state is None

    def leap(self, number: int) -> None:
        """Of a blind one: go on from before entry `number`."""
        self.number, self.digest = number - 1, None

    def take(self, content: bytes, name: str) -> Entry:
        """Take in the next entry. Raises CorruptError, or Broken if it does not belong here."""
        entry = decode(content, name)
        if entry.number != self.number + 1 or self.digest not in (None, entry.previous):
            raise Broken(name)
        if self.state is not None:
            self._evolve(self.state, entry)
        self._moved(entry.writer, digest_of(content))
        return entry

    def _evolve(self, state: State, entry: Entry) -> None:
        state.begin(entry.time_us)
        for event in entry.events:
            evolve(state, event)
        state.stamp(entry.writer, entry.commit)
        state.end()

    def deciding(self) -> State:
        """The state to decide a batch on; it is kept by `decided`, or taken back by `undo`."""
        self.is_deciding = True
        return State() if self.state is None else self.state

    def decided(self, writer: str, content: bytes) -> None:
        """The batch is stored, as the next entry."""
        self.is_deciding = False
        self._moved(writer, digest_of(content))

    def undo(self) -> None:
        """Take back a batch that was not stored, or that an interrupt has left half done."""
        if self.state is not None:
            if not self.state.is_whole:
                self.state = self.state.mended()
            elif self.is_deciding:
                self.state.rollback()
        self.is_deciding = False

    def _moved(self, writer: str, digest: bytes) -> None:
        self.number, self.digest = self.number + 1, digest
        self.writers.append(writer)
