"""picking: which jobs a dequeue takes, and in which order. Reads the state, changes nothing.

Due lines are visited in the order of their turns. The due lines of one queue are visited together,
and their jobs merged by priority, due time and enqueue order. Inside a line, a priority is skipped
if its first job is not due. So a million future jobs with a better priority cost one check.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import chain

import msgspec

from casque.job import Job
from casque.rules.lines import Due, Line
from casque.rules.state import LineKey, State


class Pick(msgspec.Struct, gc=False):
    """The jobs to claim, the spent jobs to mark dead, and the visited lines."""

    jobs: list[Job]
    spent: list[Job]
    visited: list[LineKey]
    early: list[Line]
    """Lines of the ring that are not due yet: another process's clock is ahead of ours."""
    is_held: bool = False
    """True if a job was found whose lease is over by `now`, but not by `judged_us`."""


def pick(
    state: State,
    entrypoints: Collection[str] | None,
    queue: str | None,
    limit: int,
    now: int,
    *,
    judged_us: int,
) -> Pick:
    """Find up to `limit` due jobs, and all spent jobs before them.

    `judged_us` is the time that decides whether leases have ended.
    """
    picked = Pick([], [], [], [])
    if queue is not None:
        if queue in state.queues and not state.is_paused(queue):
            lines = _due_lines(state, queue, entrypoints, now)
            _pick_from(state, lines, picked, now, limit=limit, judged_us=judged_us)
        return picked
    seen: set[str] = set()
    for _, name, entrypoint in state.rotation.due(entrypoints, now, limit):
        state.touched += 1
        if name in seen:
            continue
        line = state.queues[name].lines[entrypoint]
        if line.visit_at(now) is not None:
            picked.early.append(line)
            continue
        seen.add(name)
        lines = _due_lines(state, name, entrypoints, now)
        if _pick_from(state, lines, picked, now, limit=limit, judged_us=judged_us):
            break
    return picked


def _pick_from(
    state: State, lines: list[Line], picked: Pick, now: int, *, limit: int, judged_us: int
) -> bool:
    """Pick jobs from the due lines of one queue. Returns True once `limit` jobs are picked."""
    picked.visited.extend([line.key for line in lines])
    for due_us, _, job_id in _merged(state, lines, now):
        state.touched += 1
        if due_us > now:
            break
        job = state.jobs[job_id]
        if job.lease_until_us is not None:
            if _is_held(state, job, now, judged_us):
                picked.is_held = True
                continue
            if job.is_spent(judged_us):
                picked.spent.append(job)
                continue
        picked.jobs.append(job)
        if len(picked.jobs) == limit:
            return True
    return False


def pick_one(state: State, job_id: str, now: int, judged_us: int) -> Pick:
    """The job with this id, if it is due and its queue is not paused."""
    job = state.find(job_id, now)
    state.touched += 1
    picked = Pick([], [], [], [])
    if job is None or job.due_us is None or job.due_us > now or state.is_paused(job.queue):
        return picked
    if _is_held(state, job, now, judged_us):
        picked.is_held = True
    else:
        (picked.spent if job.is_spent(judged_us) else picked.jobs).append(job)
    return picked


def is_another_due(state: State, visited: Collection[LineKey], now: int) -> bool:
    """True if a queue that was not visited has a due line: then visited lines go last."""
    queues = {queue for queue, _ in visited}
    for _, queue, entrypoint in state.rotation.due(None, now, 0):
        state.touched += 1
        if queue not in queues and state.queues[queue].lines[entrypoint].visit_at(now) is None:
            return True
    return False


def due_queues(state: State, now: int) -> list[str]:
    """The queues with a due line that is not paused, by their turns."""
    rotation = state.rotation
    lines = [state.queues[queue].lines[name] for _, queue, name in rotation.due(None, now, 0)]
    due = [line for line in lines if line.visit_at(now) is None]
    return list(dict.fromkeys(line.queue for line in sorted(due, key=lambda line: line.turn)))


def _is_held(state: State, job: Job, now: int, judged_us: int) -> bool:
    """True if the lease of a due job has not really ended: the clock was stepped."""
    until_us = job.lease_until_us
    if until_us is None:
        return False
    assert job.heartbeat_us is not None
    return until_us > judged_us or state.step.spares(job.heartbeat_us, until_us, now)


def next_due(state: State, entrypoints: Collection[str] | None, queue: str | None) -> int | None:
    """Return when the first matching job is due; None if there is none. Ignores paused queues."""
    if queue is None:
        lines = (state.queues[name].lines[own] for _, name, own in state.rotation.ring(entrypoints))
        first = state.rotation.first_waiting(entrypoints)
        instants = chain((line.earliest_us for line in lines), (first,))
    elif queue not in state.queues or state.is_paused(queue):
        return None
    else:
        asked = state.queues[queue].lines.values()
        instants = chain(
            line.earliest_us
            for line in asked
            if entrypoints is None or line.entrypoint in entrypoints
        )
    return min((due for due in instants if due is not None), default=None)


def _due_lines(
    state: State, queue: str, entrypoints: Collection[str] | None, now: int
) -> list[Line]:
    lines = state.queues[queue].lines
    asked = (
        lines.values()
        if entrypoints is None
        else [lines[name] for name in entrypoints if name in lines]
    )
    state.touched += len(asked)
    return [line for line in asked if line.visit_at(now) is None]


def _merged(state: State, lines: list[Line], now: int) -> Iterable[Due]:
    """Return the jobs of the lines of one queue in order; at least those that are due."""
    if len(lines) == 1 and len(lines[0].priorities) == 1:
        [rank] = lines[0].ranks.values()
        return rank
    return _merged_ranks(state, lines, now)


def _merged_ranks(state: State, lines: list[Line], now: int) -> Iterator[Due]:
    heads: list[tuple[int, Due, Iterator[Due]]] = []
    for line in lines:
        for priority in line.priorities:
            rank = iter(line.ranks[priority])
            first = next(rank)
            state.touched += 1
            if first[0] <= now:
                heads.append((priority, first, rank))
    heapify(heads)
    while heads:
        priority, due, rank = heads[0]
        yield due
        following = next(rank, None)
        if following is not None and following[0] <= now:
            heapreplace(heads, (priority, following, rank))
        else:
            heappop(heads)
