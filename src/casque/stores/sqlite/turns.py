"""Turns: the simple case of `picks`, by what a handle knows of the lines that are due.

All of them are known, and each that is visited stays due when the jobs are
taken. Then nothing is asked of the file but the first jobs of those lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from casque.operations import Dequeue
from casque.stores.sqlite.picks import Execute, HeadRow, first_due, ranks
from casque.stores.sqlite.rows import HELD
from casque.stores.sqlite.work import Known, Line


def lines_at_turn(known: Known, one: Dequeue, now: int) -> list[Line] | None:
    """The lines that a dequeue visits together, if all that may be due are known."""
    ring, queue, names = known.ring, one.queue, one.entrypoints
    if ring is None or now >= known.next_us or one.id is not None:
        return None
    if queue is None:
        for line in ring:
            if names is None or line.entrypoint in names:
                queue = line.queue
                break
    lines = [line for line in ring if line.queue == queue]
    if names is not None:
        lines = [line for line in lines if line.entrypoint in names]
    return lines or None


def first_of(
    execute: Execute, known: Known, lines: Sequence[Line], limit: int, now: int
) -> list[HeadRow] | None:
    """The jobs to claim; None unless all are there, none was lost, and each line stays due."""
    if len(lines) == 1:
        [line] = lines
        heads, known.leaps = first_due(execute, line.id, limit + 1, now)
        if len(heads) <= limit:
            return None
        line.due_us = heads.pop()[1]
    else:
        merged: list[tuple[int, int, int, int, int]] = []
        for line in lines:
            some, known.leaps = first_due(execute, line.id, limit // len(lines) + 2, now)
            merged += [(*head, line.id) for head in some]
        merged.sort()
        left = {line_id: due_us for _, due_us, _, _, line_id in merged[limit:]}
        for line in lines:
            if line.id not in left:  # or there may be jobs of it that go before some of these
                return None
            line.due_us = left[line.id]
        heads = [head[:4] for head in merged[:limit]]
    for _, _, _, stage in heads:
        if stage >= HELD:
            return None
    return heads


def is_another_due(execute: Execute, known: Known, queue: str, now: int) -> bool:
    """Whether a line of another queue is due: then those that were visited go behind it."""
    for line in known.ring or ():
        if line.queue != queue:
            if line.due_us is not None and line.due_us <= now:
                return True
            for _, due_us, _, _ in ranks(execute, line.id):
                if due_us <= now:
                    line.due_us = due_us
                    return True
    return False
