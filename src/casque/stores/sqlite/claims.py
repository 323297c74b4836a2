"""Claims: what a dequeue does, in a transaction.

Mostly few lines are due, and it is known which. Then nothing is asked of the
file but the first jobs of the lines whose turn it is; and if just one line is
due, a run of dequeues is one look at the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from casque.job import Job
from casque.rules import transitions
from casque.rules.decide import DEAD_RETENTION_US, Leased, next_token
from casque.rules.lines import LOOK
from casque.rules.operations import Dequeue
from casque.stores.sqlite.picks import (
    Execute,
    Head,
    HeadRow,
    Picker,
    first_due,
)
from casque.stores.sqlite.rows import HELD, claimed_jobs, job_of
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.transaction import Work
from casque.stores.sqlite.turns import first_of, is_another_due, lines_at_turn
from casque.system.clock import LOOK_US

_as_json = msgspec.json.Encoder().encode


class Claims:
    """Dequeues of one transaction."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.touched = 0

    def dequeue_all(self, run: Sequence[Dequeue]) -> list[Leased]:
        """Answer a run of dequeues, in their order, each on what those before it left."""
        work = self._work
        work.reserves = run[0].limit if len(run) == 1 else 0
        answers: list[Leased] = []
        work.known.look(work.execute)
        while len(answers) < len(run):
            alike = _alike(run[len(answers) :])
            done = self._from_the_only_line(alike) if len(alike) > 1 else []
            answers.extend(done or [self._at_turn(alike[0]) or self._dequeue(alike[0])])
        return answers

    def _at_turn(self, one: Dequeue) -> Leased | None:
        """One dequeue in the simple case; None when it is not so simple."""
        work, known = self._work, self._work.known
        lines = lines_at_turn(known, one, work.now)
        self.touched += 2
        if lines is None:
            return None
        rotates = is_another_due(work.execute, known, lines[0].queue, work.now)
        heads = first_of(work.execute, known, lines, one.limit, work.now)
        if heads is None:
            return None
        self.touched += len(heads) + 2 * len(lines)
        jobs = self._claim(heads, one)
        if rotates:
            known.rotate(work.executemany, lines)
        return Leased(jobs, None)

    def _from_the_only_line(self, run: Sequence[Dequeue]) -> list[Leased]:
        """Answer as many of the run as the one due line fills whole; none when it is not so."""
        work, first = self._work, run[0]
        lines = lines_at_turn(work.known, first, work.now)
        self.touched += 2
        if lines is None or work.known.ring != lines or len(lines) > 1:
            return []
        [line] = lines
        wanted = sum(one.limit for one in run)
        heads, work.known.leaps = first_due(work.execute, line.id, wanted + 1, work.now)
        self.touched += len(heads)
        for place, (_, _, _, stage) in enumerate(heads):
            if stage >= HELD:
                del heads[place:]
                break
        # One more must be left, and due: then the line is, and stays where it is.
        filled = taken = 0
        while filled < len(run) and taken + run[filled].limit < len(heads):
            taken += run[filled].limit
            filled += 1
        if not filled:
            return []
        jobs = iter(self._claim(heads[:taken], first))
        return [Leased(list(islice(jobs, one.limit)), None) for one in run[:filled]]

    def _dequeue(self, one: Dequeue) -> Leased:
        """One dequeue as `casque.rules.picking` has it, with whatever it may meet."""
        work = self._work
        picker = Picker(work.execute, work.now, work.step, one.lease_us)
        picked = picker.pick(one.entrypoints, one.queue, one.limit)
        rotates = bool(picked.jobs) and picker.is_another_due(picked.visited)
        self.touched += picker.touched
        met, early = (
            [work.known.met(row) for row in rows] for rows in (picked.visited, picked.early[:LOOK])
        )
        for head in picked.spent:
            self._bury(head)
        for line in early:
            work.wrote = True
            work.settle(line)
        if picked.held and not picked.jobs:
            return Leased([], LOOK_US)
        if not picked.jobs:
            due = picker.next_after(picked, one.entrypoints, one.queue)
            return Leased([], None if due is None else max(due - work.now, 0))
        jobs = self._claim([head[:4] for head in picked.jobs], one)
        leaves = picked.leaves()
        for line in met:
            line.front = []
            if line.id not in work.known.lines_by_id:
                continue  # what was spent was the last of it
            if rotates:
                work.serve(line, is_due=line.id in leaves)
            elif line.id not in leaves:
                work.settle(line)
            else:
                work.place(line, None, line.turn)
        return Leased(jobs, None)

    def _claim(self, heads: Sequence[HeadRow], one: Dequeue) -> list[Job]:
        """Lease these jobs; tokens in their order."""
        work, known = self._work, self._work.known
        work.wrote = work.stamps = True
        by = (one.worker, work.now, work.now + one.lease_us)
        if all(stage < HELD for _, _, _, stage in heads):
            first = next_token(known.token, work.now)
            rows = claim_queued(work.execute, heads, first, by)
            known.token = first + len(heads) - 1
            return claimed_jobs(rows, by)
        jobs: list[Job] = []
        for head in heads:
            known.token = next_token(known.token, work.now)
            if head[3] < HELD:
                jobs += claimed_jobs(claim_queued(work.execute, [head], known.token, by), by)
            else:
                jobs.append(self._take_over(head[2], one, known.token, by[2]))
        return jobs

    def _take_over(self, seq: int, one: Dequeue, token: int, until: int) -> Job:
        """Claim a job whose holder was lost."""
        lost = self._job(seq)
        job = transitions.claimed(
            lost, worker=one.worker, token=token, now=self._work.now, lease_until=until
        )
        self._work.change(lost, job)
        return job

    def _bury(self, head: Head) -> None:
        self._work.wrote = self._work.stamps = True
        now, spent = self._work.now, self._job(head.seq)
        dead = transitions.buried(spent, now=now, expires=now + DEAD_RETENTION_US)
        self._work.change(spent, dead)

    def _job(self, seq: int) -> Job:
        return job_of(self._work.execute(SQL["job_by_seq"], (seq,)).fetchone())


def claim_queued(
    execute: Execute, heads: Sequence[HeadRow], first_token: int, by: tuple[str, int, int]
) -> list[tuple[Any, ...]]:
    """Lease queued jobs in one statement, tokens in their order; its rows, in any.

    `by` is the worker, the time, and the end of the lease.
    """
    rows: list[tuple[Any, ...]]
    if len(heads) == 1:
        rows = execute(SQL["claim"], (heads[0][2], first_token, *by)).fetchall()
    else:
        seqs = _as_json([seq for _, _, seq, _ in heads]).decode()
        rows = execute(SQL["claim_all"], (seqs, first_token, *by)).fetchall()
    return rows


def _alike(run: Sequence[Dequeue]) -> Sequence[Dequeue]:
    """The first of the run, and those right after it that ask the same, whatever their number."""
    first = run[0]
    for place, one in enumerate(run):
        if one is not first and (
            one.entrypoints != first.entrypoints
            or one.queue != first.queue
            or one.worker != first.worker
            or one.lease_us != first.lease_us
        ):
            return run[:place]
    return run
