"""Dequeue: which jobs a dequeue takes, in which order, and what it writes.

`Picker` is `casque.rules.picking` in SQL. It writes nothing, so `peek` and an idle
dequeue use it too. It counts the rows it reads in `touched`, as the rules do.

`Dequeues` claims. Usually few lines are due, and they are in the cache. Then it
reads only the first jobs of the lines whose turn it is. If only one line is due,
a run of dequeues is one read of the index.

This file has over 400 lines: the order and the claim are one rule, and change together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec

from casque.job import Job
from casque.rules import transitions
from casque.rules.decide import Leased, next_token
from casque.rules.lines import LOOK
from casque.rules.operations import Dequeue
from casque.rules.retention import DEAD_RETENTION, expiry_by
from casque.stores.sqlite.cache import Execute, HeadRow, earliest, first_due, ranks
from casque.stores.sqlite.known_lines import first_of, is_another_due, lines_at_turn
from casque.stores.sqlite.rows import HELD, LAST_HELD, claimed_jobs, job_of
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.transaction import Transaction
from casque.system.clock import LOOK_US, NO_STEP, Step

_as_json = msgspec.json.Encoder().encode

_LINES_AT_ONCE = 4

LineRow = tuple[int, str, str, int | None, int, int]
"""id, queue, entrypoint, visit_us, turn, paused."""


class Head(NamedTuple):
    """The index entry of a due job. Heads sort in the order in which jobs are claimed."""

    priority: int
    due_us: int
    seq: int
    stage: int
    line: int


class PickedRows(NamedTuple):
    """The jobs to claim, the spent jobs to mark dead, and the visited lines."""

    jobs: list[Head]
    spent: list[Head]
    visited: list[LineRow]
    early: list[LineRow]
    """Lines of the ring that are not due yet: another process's clock is ahead of ours."""
    seen: dict[int, int]
    """By line, the number of due jobs seen; those that were not picked are left."""
    held: list[Head]
    """Jobs whose lease is over by `now`, but not by `judged_us`."""

    def leaves(self) -> set[int]:
        """Return the lines that have a due job left after this pick."""
        taken = Counter(head.line for head in (*self.jobs, *self.spent))
        return {line for line, count in self.seen.items() if count > taken[line]}


class Picker:
    """Reads what is due at `now`, over one connection, for a dequeue with a lease of `lease_us`."""

    def __init__(self, execute: Execute, now: int, step: Step, lease_us: int) -> None:
        self._execute = execute
        self._now = now
        self._step = step
        self._lease_us = lease_us
        self.judged_us = step.judged_us(now, lease_us)
        """The time that decides whether leases have ended."""
        self.touched = 0
        self._waiting_us: int | None = None

    def pick(
        self, entrypoints: Collection[str] | None, queue: str | None, limit: int
    ) -> PickedRows:
        """Find up to `limit` due jobs, and all spent jobs before them."""
        picked = PickedRows([], [], [], [], {}, [])
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
        """True if a line is due in a queue that was not visited."""
        queues = {line[1] for line in visited}
        return any(line[1] not in queues and self._is_due(line) for line in self._places(None, 0))

    def due_queues(self) -> list[str]:
        """The queues with a due line that is not paused, by their turns."""
        due = [line for line in self._places(None, 0) if self._is_due(line)]
        return list(dict.fromkeys(line[1] for line in sorted(due, key=_turn)))

    def entrypoints(self) -> Iterator[str]:
        """The entrypoints that have a line in the ring or waiting, in order."""
        row = self._execute(SQL["next_entrypoint"], ("",)).fetchone()
        while row is not None:
            yield row[0]
            row = self._execute(SQL["next_entrypoint"], row).fetchone()

    def earlier(self, span_us: int) -> Picker:
        """Return a picker of what was due this long ago."""
        return Picker(self._execute, self._now - span_us, self._step, self._lease_us)

    def due_counts(self, entrypoint: str, served: Collection[str], limit: int) -> dict[str, int]:
        """The same as `casque.rules.views._due_counts`."""
        looked, counts = 0, {}
        look = -1 if served else limit
        for line in chain(self._come_due([entrypoint], look), self._ring([entrypoint])):
            if line[1] in served:
                continue
            due, _ = first_due(self._execute, line[0], limit - looked, self._now)
            count = sum(stage != LAST_HELD for _, _, _, stage in due)
            if count:
                counts[line[1]] = count
            looked += len(due)
            if looked == limit:
                break
        return counts

    def _is_held(self, head: Head) -> bool:
        """The same as `casque.rules.picking._is_held`."""
        if head.due_us > self.judged_us:
            return True
        if self._step is NO_STEP:
            return False
        [heartbeat_us] = self._execute(SQL["heartbeat_of"], (head.seq,)).fetchone()
        return self._step.spares(heartbeat_us, head.due_us, self._now)

    def next_due(self, entrypoints: Collection[str] | None, queue: str | None) -> int | None:
        """Return when the first matching job is due, or None. Ignores paused lines."""
        if queue is not None:
            asked = self._lines_of_queue(queue, entrypoints)
            return self.first_due_of([line for line in asked if not line[5]])
        either = self._first_waiting(entrypoints), self.first_due_of(list(self._ring(entrypoints)))
        return min((due for due in either if due is not None), default=None)

    def next_after(
        self, picked: PickedRows, entrypoints: Collection[str] | None, queue: str | None
    ) -> int | None:
        """Return the same as `next_due`, after `pick` has found no job."""
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
        """Yield `queue`; or the queues with a due line, by turn. Lines not due go to `early`."""
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
        """The lines that may be due, in the order of `Rotation.due`."""
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
        # Running a statement while its rows are being read prepares it again, which takes ten times
        # as long. So read at once what usually suffices, and the rest only if it is needed.
        first = self._execute(statement, (_LINES_AT_ONCE, *how)).fetchall()
        yield from first
        if len(first) == _LINES_AT_ONCE:
            yield from self._execute(statement, (-1, *how)).fetchall()[_LINES_AT_ONCE:]

    def _come_due(self, entrypoints: Collection[str] | None, look: int) -> list[LineRow]:
        """Waiting lines that are due now, longest due first."""
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
        """When the first waiting line is due."""
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
        """Yield the due jobs of a line; the first read fetches `share` of them."""
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


class Dequeues:
    """The dequeues of one transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.touched = 0

    def dequeue_all(self, run: Sequence[Dequeue]) -> list[Leased]:
        """Answer a run of dequeues in order; each takes from what those before it left."""
        transaction = self._transaction
        transaction.reserves = run[0].limit if len(run) == 1 else 0
        answers: list[Leased] = []
        transaction.cache.look(transaction.execute)
        while len(answers) < len(run):
            alike = _alike(run[len(answers) :])
            done = self._from_the_only_line(alike) if len(alike) > 1 else []
            answers.extend(done or [self._dequeue_at_turn(alike[0]) or self._dequeue(alike[0])])
        return answers

    def _dequeue_at_turn(self, one: Dequeue) -> Leased | None:
        """Carry out one dequeue in the simple case; None if the case is not simple."""
        transaction, cache = self._transaction, self._transaction.cache
        lines = lines_at_turn(cache, one, transaction.now)
        self.touched += 2
        if lines is None:
            return None
        rotates = is_another_due(transaction.execute, cache, lines[0].queue, transaction.now)
        heads = first_of(transaction.execute, cache, lines, one.limit, transaction.now)
        if heads is None:
            return None
        self.touched += len(heads) + 2 * len(lines)
        jobs = self._claim(heads, one)
        if rotates:
            cache.rotate(transaction.executemany, lines)
        return Leased(jobs, None)

    def _from_the_only_line(self, run: Sequence[Dequeue]) -> list[Leased]:
        """Answer the dequeues that the only due line can fill; [] if other lines may be due."""
        transaction, first = self._transaction, run[0]
        lines = lines_at_turn(transaction.cache, first, transaction.now)
        self.touched += 2
        if lines is None or transaction.cache.ring != lines or len(lines) > 1:
            return []
        [line] = lines
        wanted = sum(one.limit for one in run)
        heads, transaction.cache.leaps = first_due(
            transaction.execute, line.id, wanted + 1, transaction.now
        )
        self.touched += len(heads)
        for place, (_, _, _, stage) in enumerate(heads):
            if stage >= HELD:
                del heads[place:]
                break
        # One more due job must be left: then the line stays due, and stays in its place.
        filled = taken = 0
        while filled < len(run) and taken + run[filled].limit < len(heads):
            taken += run[filled].limit
            filled += 1
        if not filled:
            return []
        line.front = []  # it may hold some of these jobs
        jobs = iter(self._claim(heads[:taken], first))
        return [Leased(list(islice(jobs, one.limit)), None) for one in run[:filled]]

    def _dequeue(self, one: Dequeue) -> Leased:
        """Carry out one dequeue in the general case, by the rules of `casque.rules.picking`."""
        transaction = self._transaction
        picker = Picker(transaction.execute, transaction.now, transaction.step, one.lease_us)
        picked = picker.pick(one.entrypoints, one.queue, one.limit)
        rotates = bool(picked.jobs) and picker.is_another_due(picked.visited)
        self.touched += picker.touched
        visited, early = (
            [transaction.cache.line_of(row) for row in rows]
            for rows in (picked.visited, picked.early[:LOOK])
        )
        for head in picked.spent:
            self._bury(head)
        for line in early:
            transaction.wrote = True
            transaction.settle(line)
        if picked.held and not picked.jobs:
            return Leased([], LOOK_US)
        if not picked.jobs:
            due = picker.next_after(picked, one.entrypoints, one.queue)
            return Leased([], None if due is None else max(due - transaction.now, 0))
        jobs = self._claim([head[:4] for head in picked.jobs], one)
        leaves = picked.leaves()
        for line in visited:
            line.front = []
            if line.id not in transaction.cache.lines_by_id:
                continue  # its last job was spent, so the line is deleted
            if rotates:
                transaction.serve(line, is_due=line.id in leaves)
            elif line.id not in leaves:
                transaction.settle(line)
            else:
                transaction.place(line, None, line.turn)
        return Leased(jobs, None)

    def _claim(self, heads: Sequence[HeadRow], one: Dequeue) -> list[Job]:
        """Lease these jobs, with tokens in their order."""
        transaction, cache = self._transaction, self._transaction.cache
        transaction.wrote = transaction.stamps = True
        by = (one.worker, transaction.now, transaction.now + one.lease_us)
        if all(stage < HELD for _, _, _, stage in heads):
            first = next_token(cache.token, transaction.now)
            rows = claim_queued(transaction.execute, heads, first, by)
            cache.token = first + len(heads) - 1
            return claimed_jobs(rows, by)
        jobs: list[Job] = []
        for head in heads:
            cache.token = next_token(cache.token, transaction.now)
            if head[3] < HELD:
                jobs += claimed_jobs(claim_queued(transaction.execute, [head], cache.token, by), by)
            else:
                jobs.append(self._take_over(head[2], one, cache.token, by[2]))
        return jobs

    def _take_over(self, seq: int, one: Dequeue, token: int, until: int) -> Job:
        """Claim a job whose previous lease has ended."""
        lost = self._job(seq)
        job = transitions.claimed(
            lost, worker=one.worker, token=token, now=self._transaction.now, lease_until=until
        )
        self._transaction.change(lost, job)
        return job

    def _bury(self, head: Head) -> None:
        self._transaction.wrote = self._transaction.stamps = True
        now, spent = self._transaction.now, self._job(head.seq)
        expires = expiry_by(self._transaction.record(*DEAD_RETENTION), now)
        self._transaction.change(spent, transitions.buried(spent, now=now, expires=expires))

    def _job(self, seq: int) -> Job:
        return job_of(self._transaction.execute(SQL["job_by_seq"], (seq,)).fetchone())


def claim_queued(
    execute: Execute, heads: Sequence[HeadRow], first_token: int, by: tuple[str, int, int]
) -> list[tuple[Any, ...]]:
    """Lease queued jobs, tokens in the order of `heads`. The returned rows are unordered.

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
    """Return the first dequeue, and those right after it that differ only in their limit."""
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
