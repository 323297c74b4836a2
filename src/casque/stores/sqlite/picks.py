"""Picks: which jobs a dequeue takes, and in which order: `casque.rules.picking`, said in SQL.

Nothing is written here, so `peek` and an idle dequeue share it with claims.
Counts what it looks at in `touched`, as the rules do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from heapq import merge
from typing import Any, NamedTuple

from casque.rules.lines import LOOK
from casque.stores.sqlite.rows import HELD, LAST_HELD
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.system.clock import NO_STEP, Step

_LINES_AT_ONCE = 4

Execute = Callable[..., Any]
LineRow = tuple[int, str, str, int | None, int, int]
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
    """The jobs to claim, those to bury on the way, and the lines that were visited."""

    jobs: list[Head]
    spent: list[Head]
    visited: list[LineRow]
    early: list[LineRow]
    """Lines of the ring that are not due yet: somebody's clock is ahead of ours."""
    seen: dict[int, int]
    """By line, how many due jobs were seen: those that were not picked are left."""
    held: list[Head]
    """Those whose lease is over by the time, but not by the earlier one."""

    def leaves(self) -> set[int]:
        """The lines of which a due job is left."""
        taken = Counter(head.line for head in (*self.jobs, *self.spent))
        return {line for line, count in self.seen.items() if count > taken[line]}


def ranks(execute: Execute, line_id: int) -> Iterator[HeadRow]:
    """The first job of each priority of a line."""
    head: HeadRow | None = execute(SQL["heads"], (line_id, 1)).fetchone()
    while head is not None:
        yield head
        head = execute(SQL["next_rank"], (line_id, head[0])).fetchone()


def earliest(execute: Execute, line_id: int) -> int | None:
    """When the first job of a line is due; None when it has none."""
    return min((due_us for _, due_us, _, _ in ranks(execute, line_id)), default=None)


def first_due(execute: Execute, line_id: int, limit: int, now: int) -> tuple[list[HeadRow], bool]:
    """The first due jobs of a line, in their order; and whether others had to be leapt over."""
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


class Picker:
    """Reads what is due at `now`, over one connection, for a dequeue with a lease of `lease_us`."""

    def __init__(self, execute: Execute, now: int, step: Step, lease_us: int) -> None:
        self._execute = execute
        self._now = now
        self._step = step
        self.judged_us = step.judged_us(now, lease_us)
        """The time by which leases are over."""
        self.touched = 0
        self._waiting_us: int | None = None

    def pick(self, entrypoints: Collection[str] | None, queue: str | None, limit: int) -> Pick:
        """Up to `limit` due jobs. Spent ones are met on the way and do not count."""
        picked = Pick([], [], [], [], {}, [])
        for name in self._due_queues(entrypoints, queue, limit, picked.early):
            lines = self._lines(name, entrypoints)
            share = limit // max(len(lines), 1) + 2
            heads = merge(*(self._due_jobs(line[0], share, picked.seen) for line in lines))
            for head in heads:
                if head.stage >= HELD and self._is_held(head):
                    picked.held.append(head)
                    continue
                if head.stage == LAST_HELD:
                    picked.spent.append(head)
                    continue
                picked.jobs.append(head)
                if len(picked.jobs) == limit:
                    break
            picked.visited.extend(line for line in lines if picked.seen[line[0]])
            if len(picked.jobs) == limit:
                break
        return picked

    def is_another_due(self, visited: Collection[LineRow]) -> bool:
        """Whether a line of a queue that was not visited is due."""
        queues = {line[1] for line in visited}
        return any(line[1] not in queues and self._is_due(line) for line in self._places(None, 0))

    def due_queues(self) -> list[str]:
        """The queues with a due line that is not paused, by their turns."""
        due = [line for line in self._places(None, 0) if self._is_due(line)]
        return list(dict.fromkeys(line[1] for line in sorted(due, key=_turn)))

    def _is_held(self, head: Head) -> bool:
        """As in `casque.rules.picking`."""
        if head.due_us > self.judged_us:
            return True
        if self._step is NO_STEP:
            return False
        [heartbeat_us] = self._execute(SQL["heartbeat_of"], (head.seq,)).fetchone()
        return self._step.spares(heartbeat_us, head.due_us, self._now)

    def next_due(self, entrypoints: Collection[str] | None, queue: str | None) -> int | None:
        """The earliest instant at which such a job is due; None: there is none, or it is paused."""
        if queue is not None:
            asked = self._lines_of_queue(queue, entrypoints)
            return self.first_due_of([line for line in asked if not line[5]])
        either = self._first_waiting(entrypoints), self.first_due_of(list(self._ring(entrypoints)))
        return min((due for due in either if due is not None), default=None)

    def next_after(
        self, picked: Pick, entrypoints: Collection[str] | None, queue: str | None
    ) -> int | None:
        """As `next_due`, when nothing was picked."""
        if queue is None and not picked.early and not picked.spent:
            return self._waiting_us  # the ring was empty
        return self.next_due(entrypoints, queue)

    def first_due_of(self, lines: Collection[LineRow]) -> int | None:
        """When the first job of these lines is due."""
        each = (earliest(self._execute, line[0]) for line in lines)
        return min((due for due in each if due is not None), default=None)

    def _is_due(self, line: LineRow) -> bool:
        if line[3] is not None:
            return line[3] <= self._now
        return any(due_us <= self._now for _, due_us, _, _ in ranks(self._execute, line[0]))

    def _due_queues(
        self,
        entrypoints: Collection[str] | None,
        queue: str | None,
        limit: int,
        early: list[LineRow],
    ) -> Iterator[str]:
        """The queues that have something due, in the order of their turns."""
        if queue is not None:
            yield queue
            return
        seen: set[str] = set()
        for line in self._places(entrypoints, limit):
            self.touched += 1
            if line[1] in seen:
                continue
            if self._is_due(line):
                seen.add(line[1])
                yield line[1]
            else:
                early.append(line)

    def _places(self, entrypoints: Collection[str] | None, limit: int) -> Iterator[LineRow]:
        """The lines that may be due, as `Rotation.due` has them."""
        look = LOOK + limit
        come = self._come_due(entrypoints, look)
        if not come:
            yield from self._ring(entrypoints)
            return
        yield from merge(self._ring(entrypoints), sorted(come[:look], key=_turn), key=_turn)
        if len(come) >= look:
            yield from self._come_due(entrypoints, -1)[look:]

    def _ring(self, entrypoints: Collection[str] | None) -> Iterator[LineRow]:
        if entrypoints is None:
            return self._at_first_few(SQL["ring"], ())
        each = SQL["ring_of_entrypoint"]
        lines = [self._at_first_few(each, (name,)) for name in entrypoints]
        return lines[0] if len(lines) == 1 else merge(*lines, key=_turn)

    def _at_first_few(self, statement: str, how: tuple[str, ...]) -> Iterator[LineRow]:
        # To run a statement that is being read from is to prepare it anew, which takes ten times
        # as long. So what is mostly enough is read at once, and the rest when it is needed.
        first = self._execute(statement, (_LINES_AT_ONCE, *how)).fetchall()
        yield from first
        if len(first) == _LINES_AT_ONCE:
            yield from self._execute(statement, (-1, *how)).fetchall()[_LINES_AT_ONCE:]

    def _come_due(self, entrypoints: Collection[str] | None, look: int) -> list[LineRow]:
        """Lines that have waited until now, longest due first."""
        first_us = self._waiting_us = self._first_waiting(entrypoints)
        if first_us is None or first_us > self._now:
            return []
        if entrypoints is None:
            lines: list[LineRow] = self._execute(SQL["come_due"], (self._now, look)).fetchall()
            return lines
        each = SQL["come_due_of_entrypoint"]
        rows = [self._execute(each, (self._now, look, name)).fetchall() for name in entrypoints]
        return list(merge(*rows, key=_visit))

    def _first_waiting(self, entrypoints: Collection[str] | None) -> int | None:
        """When the first of the lines that wait is due."""
        if entrypoints is None:
            first_us: int | None = self._execute(SQL["first_waiting"]).fetchone()[0]
            return first_us
        each = SQL["first_waiting_of_entrypoint"]
        rows = [self._execute(each, (name,)).fetchone() for name in entrypoints]
        return min((due for (due,) in rows if due is not None), default=None)

    def _lines_of_queue(self, queue: str, entrypoints: Collection[str] | None) -> list[LineRow]:
        if entrypoints is None:
            lines: list[LineRow] = self._execute(SQL["lines_of_queue"], (queue,)).fetchall()
            return lines
        each = (self._execute(SQL["line"], (queue, name)).fetchone() for name in entrypoints)
        return [line for line in each if line is not None]

    def _lines(self, queue: str, entrypoints: Collection[str] | None) -> list[LineRow]:
        """The lines of a queue that may be due."""
        lines = self._lines_of_queue(queue, entrypoints)
        self.touched += len(lines)
        return [line for line in lines if not line[5] and (line[3] is None or line[3] <= self._now)]

    def _due_jobs(self, line_id: int, share: int, seen: dict[int, int]) -> Iterator[Head]:
        """The due jobs of a line: as many as its `share` at once, as above."""
        read = 0
        while True:
            due, _ = first_due(self._execute, line_id, share, self._now)
            seen[line_id] = len(due)
            for priority, due_us, seq, stage in due[read:]:
                self.touched += 1
                yield Head(priority, due_us, seq, stage, line_id)
            if len(due) < share:
                return
            read, share = share, share * 8


def _turn(line: LineRow) -> int:
    return line[4]


def _visit(line: LineRow) -> int:
    assert line[3] is not None
    return line[3]
