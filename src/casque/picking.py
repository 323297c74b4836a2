"""picking: which jobs a dequeue takes, and in which order. Reads the state, changes nothing.

Due lines are visited in the order of the rotation. The due lines of one queue
are visited together, and their jobs merged by priority, due time and enqueue
order; inside a line only the head of each priority is looked at, so a million
future jobs of a better priority cost one look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heapreplace

import msgspec

from casque.job import Job
from casque.lines import Due, Line
from casque.state import LineKey, State


class Pick(msgspec.Struct, gc=False):
    """The jobs to claim, those to bury on the way, and the lines that had their turn."""

    jobs: list[Job]
    spent: list[Job]
    visited: list[LineKey]


def pick(
    state: State, entrypoints: Collection[str] | None, queue: str | None, limit: int, now: int
) -> Pick:
    """Up to `limit` due jobs. Spent ones are met on the way and do not count."""
    picked = Pick([], [], [])
    for name in _due_queues(state, entrypoints, queue, now):
        lines = _due_lines(state, name, entrypoints, now)
        picked.visited.extend((line.queue, line.entrypoint) for line in lines)
        for job in _merged(state, lines, now):
            if job.is_spent(now):
                picked.spent.append(job)
                continue
            picked.jobs.append(job)
            if len(picked.jobs) == limit:
                return picked
    return picked


def pick_one(state: State, job_id: str, now: int) -> Pick:
    """The named job, if it is due and its queue is not paused."""
    job = state.find(job_id, now)
    state.touched += 1
    if job is None or job.due_us is None or job.due_us > now or state.is_paused(job.queue):
        return Pick([], [], [])
    return Pick([], [job], []) if job.is_spent(now) else Pick([job], [], [])


def next_due(state: State, entrypoints: Collection[str] | None, queue: str | None) -> int | None:
    """The earliest instant at which such a job is due; None when there is none, or it is paused."""
    if queue is None:
        return state.rotation.next_visit(entrypoints)
    if queue not in state.queues or state.is_paused(queue):
        return None
    lines = state.queues[queue].lines.values()
    asked = [line for line in lines if entrypoints is None or line.entrypoint in entrypoints]
    return min((due for line in asked if (due := line.earliest()) is not None), default=None)


def _due_queues(
    state: State, entrypoints: Collection[str] | None, queue: str | None, now: int
) -> Iterator[str]:
    if queue is not None:
        if queue in state.queues and not state.is_paused(queue):
            yield queue
        return
    seen: set[str] = set()
    for place in state.rotation.due(entrypoints, now):
        state.touched += 1
        if place[2] not in seen:
            seen.add(place[2])
            yield place[2]


def _due_lines(
    state: State, queue: str, entrypoints: Collection[str] | None, now: int
) -> list[Line]:
    lines = state.queues[queue].lines
    asked = (
        lines.values()
        if entrypoints is None
        else [lines[name] for name in entrypoints if name in lines]
    )
    due = [line for line in asked if line.visit_us <= now]
    state.touched += len(asked)
    return due


def _merged(state: State, lines: list[Line], now: int) -> Iterator[Job]:
    heads: list[tuple[int, int, int, str, Iterator[Due]]] = []
    for line in lines:
        for priority in line.priorities:
            rank = iter(line.ranks[priority])
            due_us, seq, job_id = next(rank)
            state.touched += 1
            if due_us <= now:
                heads.append((priority, due_us, seq, job_id, rank))
    heapify(heads)
    while heads:
        priority, _, _, job_id, rank = heads[0]
        yield state.jobs[job_id]
        state.touched += 1
        following = next(rank, None)
        if following is not None and following[0] <= now:
            heapreplace(heads, (priority, *following, rank))
        else:
            heappop(heads)
