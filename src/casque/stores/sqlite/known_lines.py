"""Known lines: the simple case of a dequeue, which uses the cached due lines of a handle.

In this case all due lines are cached, and each visited line stays due after its jobs are taken.
So only the first jobs of those lines are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from casque.rules.operations import Dequeue
from casque.stores.sqlite.cache import Cache, CachedLine, Execute, HeadRow, first_due
from casque.stores.sqlite.rows import HELD
from casque.stores.sqlite.rows import STATEMENTS as SQL

_AHEAD = 8
"""How many jobs of a line are read at once, so that the next claims need no read."""


def lines_at_turn(cache: Cache, one: Dequeue, now: int) -> list[CachedLine] | None:
    """The lines that a dequeue visits together, if all lines that may be due are cached."""
    ring, queue, names = cache.ring, one.queue, one.entrypoints
    if ring is None or now >= cache.next_us or one.id is not None:
        return None
    if queue is None:
        for line in ring:
            if names is None or line.entrypoint in names:
                queue = line.queue
                break
    return [
        line for line in ring if line.queue == queue and (names is None or line.entrypoint in names)
    ] or None


def first_of(
    execute: Execute, cache: Cache, lines: Sequence[CachedLine], limit: int, now: int
) -> list[HeadRow] | None:
    """Return the jobs to claim; None if one is in progress, or if a line may not stay due.

    The caller must claim these jobs or drop the cache, because this removes them from `front`.
    """
    if len(lines) == 1:
        heads = _first_few(execute, cache, lines[0], limit + 1, now)
        if len(heads) <= limit:
            return None
        heads = heads[:limit]
    else:
        merged: list[tuple[int, int, int, int, int]] = []
        for line in lines:
            some = _first_few(execute, cache, line, limit // len(lines) + 2, now)
            merged += [(*head, line.id) for head in some]
        merged.sort()
        left = {head[4] for head in merged[limit:]}
        if len(left) < len(lines):  # jobs of the other lines may come before some of these
            return None
        heads = [head[:4] for head in merged[:limit]]
    for _, _, _, stage in heads:
        if stage >= HELD:
            return None
    taken = {seq for _, _, seq, _ in heads}
    for line in lines:
        line.front = [head for head in line.front if head[2] not in taken]
    return heads


def is_another_due(execute: Execute, cache: Cache, queue: str, now: int) -> bool:
    """True if another queue has a due line: then the visited lines must go last."""
    return any(
        line.queue != queue and _first_few(execute, cache, line, 1, now)
        for line in cache.ring or ()
    )


def _first_few(
    execute: Execute, cache: Cache, line: CachedLine, wanted: int, now: int
) -> list[HeadRow]:
    """The first due jobs of a line, at most `wanted`."""
    cache.leaps = False
    if len(line.front) >= wanted and line.front[wanted - 1][1] <= now:
        return line.front[:wanted]
    heads: list[HeadRow] = execute(SQL["heads"], (line.id, max(wanted, _AHEAD))).fetchall()
    due = alike = 0
    for priority, due_us, _, stage in heads:
        if due_us > now:
            break
        if alike == due and priority == heads[0][0] and stage < HELD:
            alike += 1
        due += 1
    line.front = heads[:alike]
    if due < min(wanted, len(heads)):
        heads, cache.leaps = first_due(execute, line.id, wanted, now)
        return heads
    return heads[: min(wanted, due)]
