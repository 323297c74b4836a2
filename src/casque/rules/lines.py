"""Lines: the jobs of one queue and one entrypoint, and the rotation in which lines take turns.

A line keeps the earliest instant at which one of its jobs is due. The cost grows with the number of
distinct priorities, not of jobs. The rotation returns the due lines in the order of their
`turn`: the line that was served longest ago comes first. So a line with a million jobs delays the
only job of another line by one visit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from heapq import merge
from itertools import chain, islice, takewhile
from typing import Generic, TypeVar

from casque.rules.sorted_keys import SortedKeys

LOOK = 100
"""How many lines that have become due are sorted at once, in addition to one per job; and how many
lines that entered the ring too early are moved back at once."""

Due = tuple[int, int, str]
"""The instant at which a job is due, its enqueue order, its id."""

InRing = tuple[int, str, str]
"""turn, queue, entrypoint."""

Waiting = tuple[int, int, str, str]
"""visit_us, turn, queue, entrypoint."""

P = TypeVar("P", InRing, Waiting)


class Line:
    """The jobs of one queue and entrypoint that are claimable now or later, by priority."""

    __slots__ = (
        "earliest_us",
        "entrypoint",
        "key",
        "lost_due",
        "priorities",
        "queue",
        "ranks",
        "turn",
        "visit_us",
    )

    def __init__(self, queue: str, entrypoint: str) -> None:
        self.queue = queue
        self.entrypoint = entrypoint
        self.key = (queue, entrypoint)
        self.turn = 0
        """The line that was served last has the highest turn; 0 while the line is being made."""
        self.visit_us: int | None = None
        """When the first job of a waiting line is due. None: the line is in the ring, because it
        was due at the last check."""
        self.lost_due = False
        """True if a due job has left the line since that check."""
        self.earliest_us: int | None = None
        """When the first job is due; None if there are no jobs."""
        self.priorities: list[int] = []
        self.ranks: dict[int, SortedKeys[Due]] = {}

    def add(self, priority: int, due: Due) -> None:
        rank = self.ranks.get(priority)
        if rank is None:
            rank = self.ranks[priority] = SortedKeys()
            insort(self.priorities, priority)
        rank.add(due)
        if self.earliest_us is None or due[0] < self.earliest_us:
            self.earliest_us = due[0]

    def discard(self, priority: int, due: Due) -> None:
        ranks = self.ranks
        rank = ranks[priority]
        rank.discard(due)
        if not rank:
            del ranks[priority]
            del self.priorities[bisect_left(self.priorities, priority)]
        if due[0] != self.earliest_us:
            return
        if len(ranks) == 1:  # almost every line
            self.earliest_us = ranks[self.priorities[0]].first[0]
        else:
            self.earliest_us = min((one.first[0] for one in ranks.values()), default=None)

    def visit_at(self, now: int) -> int | None:
        """Return when the line becomes due; None if it is due now, or empty."""
        earliest = self.earliest_us
        return None if earliest is None or earliest <= now else earliest

    def ids(self) -> Iterator[str]:
        for rank in self.ranks.values():
            for _, _, job_id in rank:
                yield job_id


class _Places(Generic[P]):
    """Sorted positions of lines: a set of all lines, and a set for each entrypoint."""

    def __init__(self) -> None:
        self.all: SortedKeys[P] = SortedKeys()
        self.own: dict[str, SortedKeys[P]] = {}
        """By entrypoint."""

    def add(self, place: P) -> None:
        self.all.add(place)
        some = self.own.get(place[-1])
        if some is None:
            some = self.own[place[-1]] = SortedKeys()
        some.add(place)

    def discard(self, place: P) -> None:
        if not self.all.discard(place):
            return
        some = self.own[place[-1]]
        some.discard(place)
        if not some:
            del self.own[place[-1]]

    def of(self, entrypoints: Collection[str] | None) -> Iterator[P]:
        if entrypoints is None:
            return iter(self.all)
        wanted = [self.own[name] for name in entrypoints if name in self.own]
        return merge(*wanted) if len(wanted) > 1 else iter(wanted[0] if wanted else ())


class Rotation:
    """The lines that may be due. Each line is in one of two indexes, or in none while paused.

    The ring has the lines that were due at the last check, by `turn`. The waiting index has the
    others, by the instant at which their first job is due. That instant comes from the job. So a
    wrong clock can put a line into the ring too early, which costs one more check, but it never
    hides a line.
    """

    def __init__(self) -> None:
        self._ring: _Places[InRing] = _Places()
        self._waiting: _Places[Waiting] = _Places()

    def enter(self, line: Line) -> None:
        name = (line.turn, line.queue, line.entrypoint)
        if line.visit_us is None:
            self._ring.add(name)
        else:
            self._waiting.add((line.visit_us, *name))

    def leave(self, line: Line) -> None:
        """Take the line out of its index, if it is in one."""
        name = (line.turn, line.queue, line.entrypoint)
        if line.visit_us is None:
            self._ring.discard(name)
        else:
            self._waiting.discard((line.visit_us, *name))

    def entrypoints(self) -> list[str]:
        """The entrypoints that have a line in one of the indexes, sorted."""
        return sorted(self._ring.own.keys() | self._waiting.own.keys())

    def ring(self, entrypoints: Collection[str] | None) -> Iterator[InRing]:
        """The lines in the ring, by turn; some may not be due yet."""
        return self._ring.of(entrypoints)

    def first_waiting(self, entrypoints: Collection[str] | None) -> int | None:
        """When the first waiting line is due."""
        return next((place[0] for place in self._waiting.of(entrypoints)), None)

    def due(self, entrypoints: Collection[str] | None, now: int, limit: int) -> Iterator[InRing]:
        """The lines that may be due, by turn.

        If very many lines become due together, only the first of them are sorted by turn.
        """
        if not self._waiting.all or self._waiting.all.first[0] > now:
            return self.ring(entrypoints)
        waiting = takewhile(lambda place: place[0] <= now, self._waiting.of(entrypoints))
        names = (place[1:] for place in waiting)
        some = sorted(islice(names, LOOK + limit))
        return chain(merge(self.ring(entrypoints), some), names)
