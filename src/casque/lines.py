"""Lines: the jobs of one queue and one entrypoint, and the rotation they take turns in.

A line knows the earliest instant at which one of its jobs is due, at a cost of
its distinct priorities, whatever its length. The rotation orders lines by
`(visit_us, turn)`: a line that was served goes to the back, so one with a
million jobs delays another's single job by one visit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from heapq import merge
from itertools import takewhile

from casque.sortedkeys import SortedKeys

Due = tuple[int, int, str]
"""When a job is due, its enqueue order, its id."""

Place = tuple[int, int, str, str]
"""A line's place in the rotation: visit_us, turn, queue, entrypoint."""


class Line:
    """The claimable and to-be-claimable jobs of one queue and entrypoint, by priority."""

    __slots__ = ("entrypoint", "place", "priorities", "queue", "ranks", "turn", "visit_us")

    def __init__(self, queue: str, entrypoint: str) -> None:
        self.queue = queue
        self.entrypoint = entrypoint
        self.visit_us = 0
        self.turn = 0
        self.place: Place | None = None
        """Where it stands in the rotation; None while it does not (paused, or being made)."""
        self.priorities: list[int] = []
        self.ranks: dict[int, SortedKeys[Due]] = {}

    def __len__(self) -> int:
        return sum(len(rank) for rank in self.ranks.values())

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

    def ids(self) -> Iterator[str]:
        for rank in self.ranks.values():
            for _, _, job_id in rank:
                yield job_id


class Rotation:
    """Lines in the order of their next visit, all together and by entrypoint."""

    def __init__(self) -> None:
        self._all: SortedKeys[Place] = SortedKeys()
        self._by_entrypoint: dict[str, SortedKeys[Place]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, line: Line) -> None:
        """Give the line the place that its `visit_us` and `turn` say, leaving its old one."""
        self.leave(line)
        place = (line.visit_us, line.turn, line.queue, line.entrypoint)
        line.place = place
        self._all.add(place)
        own = self._by_entrypoint.get(line.entrypoint)
        if own is None:
            own = self._by_entrypoint[line.entrypoint] = SortedKeys()
        own.add(place)

    def leave(self, line: Line) -> None:
        place = line.place
        if place is None:
            return
        line.place = None
        self._all.discard(place)
        own = self._by_entrypoint[line.entrypoint]
        own.discard(place)
        if not own:
            del self._by_entrypoint[line.entrypoint]

    def next_visit(self, entrypoints: Collection[str] | None) -> int | None:
        """When the first line, of all or of those asked for, is to be visited."""
        if entrypoints is None:
            return self._all.first[0] if self._all else None
        wanted = [self._by_entrypoint.get(name) for name in entrypoints]
        return min((own.first[0] for own in wanted if own is not None), default=None)

    def due(self, entrypoints: Collection[str] | None, now: int) -> Iterator[Place]:
        """The places whose visit is due, in order, of all lines or of those asked for."""
        if entrypoints is None:
            places: Iterator[Place] = iter(self._all)
        else:
            wanted = [self._by_entrypoint.get(name) for name in entrypoints]
            places = merge(*(own for own in wanted if own is not None))
        return takewhile(lambda place: place[0] <= now, places)
