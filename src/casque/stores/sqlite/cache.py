"""Cache: the counters and lines that a handle has read, and the first jobs of a line.

A handle uses its cache as long as `PRAGMA data_version` shows that no other connection
has written. It checks under the write lock, so the cache is correct.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from casque.stores.sqlite.rows import STATEMENTS as SQL

_RING_CACHED = 128
_LINES_CACHED = 10_000
WRITERS_CACHED = 1_000
_NEVER = 2**63 - 1

Execute = Callable[..., Any]
HeadRow = tuple[int, int, int, int]
"""priority, due_us, seq, stage."""
LineKey = tuple[str, str]


class CachedLine(msgspec.Struct, gc=False, eq=False):
    """A row of casque_line."""

    id: int
    queue: str
    entrypoint: str
    visit_us: int | None
    turn: int
    paused: int
    front: list[HeadRow] = []
    """Its first jobs, if they are cached: queued, due, and of one priority. So no job that is held
    now can come between them."""


def _turn(line: CachedLine) -> int:
    return line.turn


class Cache:
    """The cached part of the database: valid until another connection writes."""

    def __init__(self, execute: Any, data_version: int) -> None:
        self.numbers: dict[str, int] = {}
        """By writer, the number of its last commit."""
        self.lines: dict[LineKey, CachedLine] = {}
        self.lines_by_id: dict[int, CachedLine] = {}
        self.ring: list[CachedLine] | None = None
        """The lines of the ring, by turn; None: not read yet, or too many."""
        self.next_us = 0
        """No waiting line is due before this; 0: not read yet."""
        self.leaps = False
        """True if the last claim had to skip jobs of its line that are not due yet."""
        self.token = 0
        """The last token issued."""
        self.reserved = 0
        """The last token issued according to the file. The tokens up to this one belong to this
        handle while the file has this value: another handle takes higher tokens and changes it."""
        self._is_crowded = False
        self.is_alone = False
        """True if this handle was the last to take tokens from the file."""
        self.turn = 0
        """The last turn given to a line."""
        self.turns = 0
        """The last turn given according to the file; reserved like tokens."""
        self.turns_alone = False
        self.identity = ""
        """The identity of the store."""
        self.reread(execute, data_version)

    def reread(self, execute: Any, data_version: int) -> None:
        """Read the counters again and drop the rest, because another connection has written."""
        self.data_version = data_version
        reserved, turns, self.identity = execute(SQL["counters"]).fetchone()
        if reserved != self.reserved:
            self.token = self.reserved = reserved
            self.is_alone = False
        if turns != self.turns:
            self.turn = self.turns = turns
            self.turns_alone = False
        self.numbers.clear()
        self.forget_lines()

    def look(self, execute: Any) -> None:
        """Read the ring, unless it is too long to cache, and when the next line is due."""
        if self.ring is None and not self._is_crowded:
            rows = execute(SQL["ring"], (_RING_CACHED + 1,)).fetchall()
            self._is_crowded = len(rows) > _RING_CACHED
            if not self._is_crowded:
                self.ring = [self.line_of(row) for row in rows]
        if not self.next_us:
            [first_us] = execute(SQL["first_waiting"]).fetchone()
            self.next_us = _NEVER if first_us is None else first_us

    def place(self, line: CachedLine, visit_us: int | None, turn: int) -> None:
        """Put a line in the ring, or let it wait until `visit_us`."""
        self.take_out(line)
        line.visit_us, line.turn = visit_us, turn
        if line.paused:
            return
        if visit_us is not None:
            self.next_us = min(self.next_us, visit_us)
        elif self.ring is not None:
            insort(self.ring, line, key=_turn)
            if len(self.ring) > _RING_CACHED:
                self.ring, self._is_crowded = None, True

    def rotate(self, executemany: Any, lines: Sequence[CachedLine]) -> None:
        """Move lines that had their turn, and are still due, to the end of the ring."""
        assert self.ring is not None
        ring, rows = [line for line in self.ring if line not in lines], []
        for line in lines:
            self.turn = line.turn = self.turn + 1
            rows.append((line.id, line.turn))
        self.ring = [*ring, *lines]
        executemany(SQL["turn_line"], rows)

    def take_out(self, line: CachedLine) -> None:
        """Remove a line from its old place."""
        if line.visit_us is not None:
            if line.visit_us <= self.next_us:
                self.next_us = 0
        elif self.ring is not None and line in self.ring:
            self.ring.remove(line)

    def line_of(self, row: tuple[Any, ...]) -> CachedLine:
        """The line for a row of casque_line."""
        line = self.lines_by_id.get(row[0])
        if line is None:
            line = self.lines_by_id[row[0]] = CachedLine(*row)
            self.lines[line.queue, line.entrypoint] = line
        return line

    def trim(self) -> None:
        """Drop entries, so that the cache stays bounded."""
        if len(self.lines) > _LINES_CACHED:
            self.forget_lines()
        if len(self.numbers) > WRITERS_CACHED:
            self.numbers.clear()

    def forget_lines(self) -> None:
        self.lines.clear()
        self.lines_by_id.clear()
        self.ring, self._is_crowded, self.next_us = None, False, 0


def ranks(execute: Execute, line_id: int) -> Iterator[HeadRow]:
    """The first job of each priority of a line."""
    head: HeadRow | None = execute(SQL["heads"], (line_id, 1)).fetchone()
    while head is not None:
        yield head
        head = execute(SQL["next_rank"], (line_id, head[0])).fetchone()


def earliest(execute: Execute, line_id: int) -> int | None:
    """When the first job of a line is due; None if there are no jobs."""
    return min((due_us for _, due_us, _, _ in ranks(execute, line_id)), default=None)


def first_due(execute: Execute, line_id: int, limit: int, now: int) -> tuple[list[HeadRow], bool]:
    """Return the first due jobs of a line, in order, and whether jobs not yet due were skipped."""
    heads: list[HeadRow] = execute(SQL["heads"], (line_id, limit)).fetchall()
    for _, due_us, _, _ in heads:
        if due_us > now:
            break
    else:
        return heads, False
    due: list[HeadRow] = []
    for priority, due_us, _, _ in ranks(execute, line_id):
        if due_us <= now:
            rest = limit - len(due)
            due += execute(SQL["due_of_rank"], (line_id, priority, now, rest)).fetchall()
            if len(due) == limit:
                break
    return due, True
