"""Lines: the jobs of one queue and one entrypoint, and the rotation they take turns in.

A line knows the earliest instant at which one of its jobs is due, at a cost of
its distinct priorities, whatever its length. The rotation hands out the due
lines in the order of their `turn`: who was served longest ago comes first, so a
line with a million jobs delays another's single job by one visit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from heapq import merge
from itertools import chain, islice, takewhile
from typing import Generic, TypeVar

from casque.rules.sorted_keys import SortedKeys

LOOK = 100
"""How many lines that have come due are brought into order at once, beside one for each job. And
how many that are in the ring too soon are put right at once."""

Due = tuple[int, int, str]
"""When a job is due, its enqueue order, its id."""

InRing = tuple[int, str, str]
"""turn, queue, entrypoint."""

Waiting = tuple[int, int, str, str]
"""visit_us, turn, queue, entrypoint."""

P = TypeVar("P", InRing, Waiting)


class Line:
    """The claimable and to-be-claimable jobs of one queue and entrypoint, by priority."""

    __slots__ = ("entrypoint", "lost_due", "priorities", "queue", "ranks", "turn", "visit_us")

    def __init__(self, queue: str, entrypoint: str) -> None:
        self.queue = queue
        self.entrypoint = entrypoint
        self.turn = 0
        """The line that was served last has the highest; 0 while the line is being made."""
        self.visit_us: int | None = None
        """Of a line that waits, when the first of its jobs is due. None: it is in the ring, being
        due when that was last looked at."""
        self.lost_due = False
        """Whether a due job has left it since then."""
        self.priorities: list[int] = []
        self.ranks: dict[int, SortedKeys[Due]] = {}

    def add(self, priority: int, due: Due) -> None:
        rank = self.ranks.get(priority)
        if rank is None:
            rank = self.ranks[priority] = SortedKeys()
            insort(self.priorities, priority)
        rank.add(due)

    def discard(self, priority: int, due: Due) -> None:
        rank = self.ranks[priority]
        rank.discard(due)
        if not rank:
            del self.ranks[priority]
            del self.priorities[bisect_left(self.priorities, priority)]

    def earliest(self) -> int | None:
        """When the first of its jobs is due; None when it has none."""
        ranks = self.ranks
        if len(ranks) == 1:
            return ranks[self.priorities[0]].first[0]
        return min((rank.first[0] for rank in ranks.values()), default=None)

    def visit_at(self, now: int) -> int | None:
        """When it is worth a look; None: now."""
        earliest = self.earliest()
        return None if earliest is None or earliest <= now else earliest

    def ids(self) -> Iterator[str]:
        for rank in self.ranks.values():
            for _, _, job_id in rank:
                yield job_id


class _Places(Generic[P]):
    """Places of lines in their order, all together and by entrypoint."""

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
        wanted = (self.own.get(name) for name in entrypoints)
        return merge(*(some for some in wanted if some is not None))


class Rotation:
    """Which lines may be due. Each is in one of two indexes, or in none while it is paused.

    The ring has those that were due when that was last looked at, by `turn`. The others wait
    there, by the instant at which the first of their jobs is due: this is exact, and no clock
    has a part in it. So a clock that is wrong can put a line into the ring too soon, where it
    costs a look, and never hides one.
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
        """Take the line out, if it is in."""
        name = (line.turn, line.queue, line.entrypoint)
        if line.visit_us is None:
            self._ring.discard(name)
        else:
            self._waiting.discard((line.visit_us, *name))

    def ring(self, entrypoints: Collection[str] | None) -> Iterator[InRing]:
        """What is in the ring, by turn; it may be not due yet."""
        return self._ring.of(entrypoints)

    def first_waiting(self, entrypoints: Collection[str] | None) -> int | None:
        """When the first of the lines that wait is due."""
        return next((place[0] for place in self._waiting.of(entrypoints)), None)

    def due(self, entrypoints: Collection[str] | None, now: int, limit: int) -> Iterator[InRing]:
        """The lines that may be due, by turn.

        When very many come due together, they are brought into order some at a time.
        """
        waiting = takewhile(lambda place: place[0] <= now, self._waiting.of(entrypoints))
        names = (place[1:] for place in waiting)
        some = sorted(islice(names, LOOK + limit))
        return chain(merge(self.ring(entrypoints), some), names)
