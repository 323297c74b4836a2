"""Picks: which jobs a dequeue takes, and in which order: `casque.picking`, said in SQL.

Nothing is written here, so `peek` and an idle dequeue share it with claims.
Counts what it looks at in `touched`, as the rules do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from casque.stores.sqlite.rows import LAST_HELD
from casque.stores.sqlite.rows import STATEMENTS as SQL

_LINES_AT_ONCE = 4

Execute = Callable[..., Any]
LineRow = tuple[int, str, str, int, int, int]
"""id, queue, entrypoint, visit_us, turn, paused."""


HeadRow = tuple[int, int, int, int]
"""priority, due_us, seq, stage."""


class Head(NamedTuple):
    """A due job as the index has it; ordered as a queue is worked off."""

    priority: int
    due_us: int
    seq: int
    stage: int
    line: int


class Pick(NamedTuple):
    """The jobs to claim, those to bury on the way, and the lines that had their turn."""

    jobs: list[Head]
    spent: list[Head]
    visited: list[LineRow]
    seen: dict[int, int]
    """By line, how many due jobs were seen: those that were not picked are left."""

    def leaves(self) -> set[int]:
        """The lines of which a due job is left."""
        taken = Counter(head.line for head in (*self.jobs, *self.spent))
        return {line for line, count in self.seen.items() if count > taken[line]}


def first_due(execute: Execute, line_id: int, limit: int, now: int) -> tuple[list[HeadRow], bool]:
    """The first due jobs of a line, in their order; and whether others had to be leapt over."""
    heads: list[HeadRow] = execute(SQL["heads"], (line_id, limit)).fetchall()
    for _, due_us, _, _ in heads:
        if due_us > now:  # better ones are not due yet: leap over them
            due: list[HeadRow] = execute(SQL["due_jobs"], (line_id, now)).fetchmany(limit)
            return due, True
    return heads, False


class Picker:
    """Reads what is due at `now`, over one connection."""

    def __init__(self, execute: Execute, now: int) -> None:
        self._execute = execute
        self._now = now
        self.touched = 0

    def pick(self, entrypoints: Collection[str] | None, queue: str | None, limit: int) -> Pick:
        """Up to `limit` due jobs. Spent ones are met on the way and do not count."""
        picked = Pick([], [], [], {})
        for name in self._due_queues(entrypoints, queue):
            lines = self._due_lines(name, entrypoints)
            picked.visited.extend(lines)
            share = limit // max(len(lines), 1) + 2
            for head in merge(*(self._due_jobs(line[0], share, picked.seen) for line in lines)):
                if head.stage == LAST_HELD:
                    picked.spent.append(head)
                    continue
                picked.jobs.append(head)
                if len(picked.jobs) == limit:
                    return picked
        return picked

    def next_due(self, entrypoints: Collection[str] | None, queue: str | None) -> int | None:
        """The earliest instant at which such a job is due; None: there is none, or it is paused."""
        if queue is not None:
            asked = [
                line
                for line in self._execute(SQL["lines_of_queue"], (queue,))
                if not line[5] and (entrypoints is None or line[2] in entrypoints)
            ]
            return self.first_due_of(asked)
        if entrypoints is None:
            rows = [self._execute(SQL["next_visit"]).fetchone()]
        else:
            each = SQL["next_visit_of_entrypoint"]
            rows = [self._execute(each, (name,)).fetchone() for name in entrypoints]
        return min((due for (due,) in rows if due is not None), default=None)

    def first_due_of(self, lines: Collection[LineRow]) -> int | None:
        """When the first job of these lines is due."""
        each = (self._execute(SQL["earliest"], (line[0],)).fetchone()[0] for line in lines)
        return min((due for due in each if due is not None), default=None)

    def _due_queues(self, entrypoints: Collection[str] | None, queue: str | None) -> Iterator[str]:
        if queue is not None:
            yield queue
            return
        seen: set[str] = set()
        for line in self._due_places(entrypoints):
            self.touched += 1
            if line[1] not in seen:
                seen.add(line[1])
                yield line[1]

    def _due_places(self, entrypoints: Collection[str] | None) -> Iterator[LineRow]:
        if entrypoints is None:
            yield from self._execute(SQL["due_lines"], (self._now,))
            return
        wanted = [self._due_lines_of(name) for name in entrypoints]
        yield from merge(*wanted, key=lambda line: (line[3], line[4]))

    def _due_lines_of(self, entrypoint: str) -> Iterator[LineRow]:
        # To run a statement that is being read from is to prepare it anew, which takes ten times
        # as long: what is mostly enough is read at once, and the rest only when it is needed.
        each, how = SQL["due_lines_of_entrypoint"], (self._now, entrypoint)
        first = self._execute(each, how).fetchmany(_LINES_AT_ONCE)
        yield from first
        if len(first) == _LINES_AT_ONCE:
            yield from islice(self._execute(each, how), _LINES_AT_ONCE, None)

    def _due_lines(self, queue: str, entrypoints: Collection[str] | None) -> list[LineRow]:
        if entrypoints is None:
            lines = self._execute(SQL["lines_of_queue"], (queue,)).fetchall()
        else:
            each = (self._execute(SQL["line"], (queue, name)).fetchone() for name in entrypoints)
            lines = [line for line in each if line is not None]
        self.touched += len(lines)
        return [line for line in lines if not line[5] and line[3] <= self._now]

    def _due_jobs(self, line_id: int, share: int, seen: dict[int, int]) -> Iterator[Head]:
        """The due jobs of a line: as many as its `share` at once, as above."""
        first, _ = first_due(self._execute, line_id, share, self._now)
        seen[line_id] = len(first)
        for priority, due_us, seq, stage in first:
            self.touched += 1
            yield Head(priority, due_us, seq, stage, line_id)
        if len(first) == share:
            rest = self._execute(SQL["due_jobs"], (line_id, self._now))
            for priority, due_us, seq, stage in islice(rest, share, None):
                self.touched += 1
                seen[line_id] += 1
                yield Head(priority, due_us, seq, stage, line_id)
