"""Replica: a process's copy of a ledger: the end of its log, and usually the state.

A producer that only adds jobs needs no state. It has a blind replica, which holds only the number
and the digest of the last entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from casque.errors import CorruptError
from casque.rules.evolve import evolve
from casque.rules.operations import BatchStamp
from casque.rules.state import State
from casque.stores.ledger.entry import FIRST, Entry, decode
from casque.stores.ledger.framing import digest_of
from casque.stores.ledger.snapshot import Counters
from casque.stores.ledger.summary import EMPTY, Summary

RECENT = 32
"""How many of the last entries' writers it remembers."""


_REMEMBERED = 20_000
"""Of how many of the last entries it remembers the counters."""


class MisplacedEntryError(Exception):
    """An entry does not follow the previous one. Read the log again before you report this."""


def misplaced(error: MisplacedEntryError) -> CorruptError:
    """Return the error for an entry that is misplaced although the log was read again."""
    return CorruptError(
        f"{error} does not fit the entry before it: it belongs to another log, or one of these two "
        "entries was replaced, by hand or by a server that lets two writers create one object. "
        "Stop all writers, and restore both entries from a copy."
    )


class Replica:
    """The state after entry `number`."""

    def __init__(self, *, blind: bool) -> None:
        # One tuple, so that an interrupt finds both values old or both values new.
        self._end: tuple[int, bytes | None] = (0, FIRST)
        self.state = None if blind else State()
        self.writers: deque[str] = deque(maxlen=RECENT)
        """The writers of the last entries: for each entry, the writer of its first batch."""
        self.summary: Summary | None = EMPTY
        """The counts after the last entry; None if its writer did not know them."""
        self.snapshot = 0
        """The number of the newest snapshot that this process knows."""
        self.snapshot_bytes = 0
        self.log_bytes = 0
        """The size of the entries after that snapshot, as far as this process knows."""
        self._counters: deque[Counters] = deque(maxlen=_REMEMBERED)
        """Those of the last entries."""
        self.is_changing = False
        """True while the state holds changes that are not stored as an entry. If an interrupt
        leaves it True, the state may be half changed: read the log again."""

    @property
    def number(self) -> int:
        """The number of the last entry."""
        return self._end[0]

    @property
    def digest(self) -> bytes | None:
        """The digest of the last entry; None until that entry is read."""
        return self._end[1]

    @property
    def view(self) -> tuple[int, bytes | None]:
        """The number and the digest of the last entry."""
        return self._end

    @property
    def is_blind(self) -> bool:
        return self.state is None

    def counters(self, number: int) -> Counters | None:
        """Return the counters after entry `number`; None if this process does not know them."""
        place = number - self.number - 1
        return self._counters[place] if -len(self._counters) <= place < 0 else None

    def leap(self, number: int) -> None:
        """Move a replica that has no state to the position before entry `number`."""
        self._end, self.summary = (number - 1, None), None

    def restore(self, state: State, number: int, digest: bytes, size: int) -> None:
        """Begin with the state of a snapshot of this size, instead of with nothing."""
        self.state, self._end, self.summary = state, (number, digest), None
        self.snapshot, self.snapshot_bytes = number, size

    def knows_snapshot(self, number: int, size: int) -> None:
        """Count the log from this snapshot on, which has just been written."""
        self.snapshot, self.snapshot_bytes, self.log_bytes = number, size, 0

    def take(self, content: bytes, name: str) -> Entry:
        """Apply the next entry. Raises CorruptError or MisplacedEntryError."""
        entry = decode(content, name)
        if entry.number != self.number + 1 or self.digest not in (None, entry.previous):
            raise MisplacedEntryError(name)
        self.is_changing = True
        if self.state is not None:
            self._evolve(self.state, entry)
        self.decided(entry.stamps, content, entry.summary)
        return entry

    def _evolve(self, state: State, entry: Entry) -> None:
        state.begin(entry.time_us)
        for event in entry.events:
            evolve(state, event)
        state.stamp(entry.stamps)
        state.end()

    def deciding(self) -> State:
        """Return the state to decide a batch on. Call `decided` or `undo` afterwards."""
        self.is_changing = True
        return State() if self.state is None else self.state

    def decided(
        self, stamps: Sequence[BatchStamp], content: bytes, summary: Summary | None
    ) -> None:
        """Remember that the current state was stored, as the next entry."""
        self._end = self.number + 1, digest_of(content)
        self.summary = summary
        self.log_bytes += len(content)
        if (state := self.state) is not None:
            self._counters.append(Counters.of(state))
        self.writers.append(stamps[0].writer)
        self.is_changing = False

    def undo(self) -> None:
        """Revert a batch that was not stored."""
        if self.state is not None and self.is_changing:
            self.state.rollback()
        self.is_changing = False
