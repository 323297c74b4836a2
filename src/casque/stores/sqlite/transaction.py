"""Transaction: one transaction in progress, with its counters, lines and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from casque.job import Job
from casque.record import PAUSE, Record
from casque.rules.answers import kept_answers
from casque.rules.operations import Batch, Request
from casque.rules.state import WRITER_MEMORY_US
from casque.rules.transaction import PRUNED_AT_ONCE
from casque.stores.sqlite.cache import WRITERS_CACHED, Cache, CachedLine, earliest
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.rows import (
    Connection,
    addition_of,
    copy_of,
    find_job,
    plain_addition_of,
    record_of,
    update_of,
)
from casque.system.clock import MINUTE_US, NO_STEP, SECOND_US, Clock, Step
from casque.system.ids import order_of

SEEN_EVERY_US = MINUTE_US
"""How old a writer's `seen_us` may be: writing it each time would change two more pages."""

CLAIMS_AT_ONCE = 100
"""For how many more claims a claim reserves tokens, if no other process takes any."""

_TURNS_AT_ONCE = 1_000
_WRITERS_DROPPED_AT_ONCE = 8
_PRUNE_LOOK_US = SECOND_US


class Upkeep:
    """When a handle next has to prune, or to update `seen_us` of its writers."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        """By writer, the `seen_us` that this handle last wrote."""
        self.prune_us = 0


class Transaction:
    """One transaction. Its creator commits it if it wrote, or rolls it back."""

    def __init__(
        self,
        connection: Connection,
        cache: Cache,
        clock: Clock,
        now: int,
        step: Step = NO_STEP,
    ) -> None:
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.cache = cache
        self.now = now
        self.step = step
        self._clock = clock
        self.wrote = False
        """True if the current batch changed something."""
        self.stamps = False
        """True if the writer's number must be stored too. Not for adds and acks: only this process
        repeats such a commit, and it has the number in memory; a repeated id is recognised anyway.
        So these commits change one page less."""
        self.rings = False
        """True if a job may have become claimable."""
        self.reserves = 0
        """For how many jobs per claim to reserve tokens; 0: for none."""
        self.touched = 0
        """Rows that the dequeues have read."""
        self.found_nothing: bool | None = None
        """True if the last dequeue found nothing; None if there was no dequeue."""

    # -- writers and counters --------------------------------------------------

    def number_of(self, writer: str) -> int:
        """The number of the writer's last stored commit; 0 if there is none."""
        number = self.cache.numbers.get(writer)
        if number is None:
            row = self.execute(SQL["writer"], (writer,)).fetchone()
            number = self.cache.numbers[writer] = row[0] if row else 0
        return number

    def stamp(self, batch: Batch, outcomes: Sequence[Any], upkeep: Upkeep) -> None:
        """Store the batch's number for its writer, if that is needed."""
        cache, now, writer, number = self.cache, self.now, batch.writer, batch.number
        is_due = writer not in upkeep.seen or now - upkeep.seen[writer] > SEEN_EVERY_US
        if not (self.stamps or is_due or batch.is_remote):
            return
        if is_due or batch.is_remote or cache.numbers.get(writer, 0) == 0:
            answers = kept_answers(batch.operations, outcomes) if batch.is_remote else None
            self.execute(SQL["stamp_and_see"], (writer, number, now, answers))
            self.execute(SQL["forget_writers"], (now - WRITER_MEMORY_US, _WRITERS_DROPPED_AT_ONCE))
            cache.numbers.clear()
            if len(upkeep.seen) > WRITERS_CACHED:
                upkeep.seen.clear()
            upkeep.seen[writer] = now
        else:
            self.execute(SQL["stamp"], (writer, number))
        cache.numbers[writer] = number

    def count(self) -> None:
        """Write the token and turn counters, unless the reserved ones suffice."""
        cache = self.cache
        if cache.token <= cache.reserved and cache.turn <= cache.turns:
            return
        # Reserve only if alone: another process that takes tokens or turns voids the reservation.
        if cache.token > cache.reserved:
            cache.reserved = cache.token + cache.is_alone * CLAIMS_AT_ONCE * self.reserves
            cache.is_alone = True
        if cache.turn > cache.turns:
            cache.turns = cache.turn + cache.turns_alone * _TURNS_AT_ONCE
            cache.turns_alone = True
        self.execute(SQL["count"], (cache.reserved, cache.turns))

    # -- lines -----------------------------------------------------------------

    def line(self, queue: str, entrypoint: str) -> CachedLine | None:
        found = self.cache.lines.get((queue, entrypoint))
        if found is None:
            row = self.execute(SQL["line"], (queue, entrypoint)).fetchone()
            return None if row is None else self.cache.line_of(row)
        return found

    def line_by_id(self, line_id: int) -> CachedLine:
        found = self.cache.lines_by_id.get(line_id)
        return found or self.cache.line_of(self.execute(SQL["line_by_id"], (line_id,)).fetchone())

    def new_line(self, queue: str, entrypoint: str, due_us: int) -> CachedLine:
        paused = int(self.execute(SQL["record"], (PAUSE, queue)).fetchone() is not None)
        cache = self.cache
        cache.turn += 1
        visit, turn = due_us if due_us > self.now else None, cache.turn
        made = self.execute(SQL["insert_line"], (queue, entrypoint, visit, turn, paused))
        line = cache.line_of((made.lastrowid, queue, entrypoint, visit, turn, paused))
        cache.place(line, visit, turn)
        return line

    def came(self, line: CachedLine, due_us: int) -> None:
        """Note that a line got a job due at `due_us`, so that the line is visited by then."""
        line.front = []
        if line.visit_us is not None:
            first = min(due_us, line.visit_us)
            self.place(line, first if first > self.now else None, line.turn)

    def left(self, line: CachedLine, due_us: int) -> None:
        """Update a line that a job due at `due_us` left: visit the line later, or drop it."""
        if due_us <= (self.now if line.visit_us is None else line.visit_us):
            self.settle(line)
        elif line.visit_us is None and not self.execute(SQL["heads"], (line.id, 1)).fetchone():
            self.drop(line)

    def settle(self, line: CachedLine, *, turn: int | None = None) -> None:
        """Move a line to its place: into the ring if it is due, otherwise to the waiting index."""
        first = earliest(self.execute, line.id)
        if first is None:
            self.drop(line)
        else:
            line.front = []
            self.place(line, first if first > self.now else None, turn or line.turn)

    def serve(self, line: CachedLine, *, is_due: bool) -> None:
        """Move a line that had its turn to the back. `is_due`: the line is certainly still due."""
        self.cache.turn += 1
        if is_due:
            self.place(line, None, self.cache.turn)
        else:
            self.settle(line, turn=self.cache.turn)

    def place(self, line: CachedLine, visit_us: int | None, turn: int) -> None:
        if visit_us != line.visit_us or turn != line.turn:
            self.cache.place(line, visit_us, turn)
            self.execute(SQL["place_line"], (line.id, visit_us, turn))

    def drop(self, line: CachedLine) -> None:
        self.cache.take_out(line)
        self.execute(SQL["delete_line"], (line.id,))
        self.cache.lines.pop((line.queue, line.entrypoint), None)
        self.cache.lines_by_id.pop(line.id, None)

    # -- jobs ------------------------------------------------------------------

    def job(self, job_id: str) -> Job | None:
        return find_job(self.execute, job_id)

    def add_one(self, request: Request) -> int | None:
        """Insert a new job and return its `seq`; None, without a change, if its id exists."""
        now = self.now
        due = now + request.delay_us if request.run_us is None else request.run_us
        queue, entrypoint = request.queue, request.entrypoint
        line = self.cache.lines.get((queue, entrypoint)) or self.line(queue, entrypoint)
        is_new = line is None
        if line is None:
            line = self.new_line(queue, entrypoint, due)
        seq = self._insert(request, line.id, due)
        if seq is None:
            if is_new:
                self.drop(line)
            return None
        self.came(line, due)
        return seq

    def _insert(self, request: Request, line: int, due: int) -> int | None:
        if request.minted:
            seq, named = request.order, False
        else:
            if self._is_minted(request.id):
                return None
            seq, named = request.order or self._new_order(), True
        while True:
            row = addition_of(request, seq, named=named, line=line, due=due, now=self.now)
            if self.execute(SQL["add"], row).rowcount:
                return seq
            # The id exists; or, rarely, another process minted an id of the same order in the same
            # millisecond. Then this job is found by its name instead.
            there = self.execute(SQL["id_of"], (seq,)).fetchone()
            if there is None or there[0] == request.id:
                return None
            seq, named = self._new_order(), True

    def insert(self, job: Job) -> int:
        """Insert a job of another store as it is, with a new id in the enqueue order."""
        due, line = job.due_us, None
        if due is not None:
            line = self.line(job.queue, job.entrypoint)
            if line is None:
                line = self.new_line(job.queue, job.entrypoint, due)
            else:
                self.came(line, due)
        while True:
            seq = self._new_order()
            row = copy_of(job, seq, None if line is None else line.id)
            if self.execute(SQL["insert_job"], row).rowcount:
                return seq

    def add_all(self, requests: Sequence[Request]) -> list[int] | None:
        """Insert new jobs in order, and return the `seq` of each; None if an id exists.

        If it returns None, some rows may be inserted: the caller must roll back.
        """
        now, lines = self.now, self.cache.lines
        rows: list[tuple[Any, ...] | None] = []
        for request in requests:
            due = now + request.delay_us if request.run_us is None else request.run_us
            queue, entrypoint = request.queue, request.entrypoint
            line = lines.get((queue, entrypoint)) or self.line(queue, entrypoint)
            if line is None:
                line = self.new_line(queue, entrypoint, due)
            else:
                self.came(line, due)
            rows.append(plain_addition_of(request, line.id, now))
        if None in rows:
            return self._insert_all(requests)
        if self.executemany(SQL["add_plain"], rows).rowcount < len(rows):
            return None
        return [request.order for request in requests]

    def _insert_all(self, requests: Sequence[Request]) -> list[int] | None:
        rows = []
        for request in requests:
            named = not request.minted
            if named and self._is_minted(request.id):
                return None
            seq = request.order or self._new_order()
            due = self.now + request.delay_us if request.run_us is None else request.run_us
            line = self.line(request.queue, request.entrypoint)
            assert line is not None
            rows.append(addition_of(request, seq, named=named, line=line.id, due=due, now=self.now))
        if self.executemany(SQL["add"], rows).rowcount < len(rows):
            return None
        return [row[0] for row in rows]

    def _is_minted(self, job_id: str) -> bool:
        """True if a job with this generated id exists."""
        order = order_of(job_id)
        if order is None:
            return False
        there = self.execute(SQL["id_of"], (order,)).fetchone()
        return bool(there) and there[0] == job_id

    def _new_order(self) -> int:
        return self._clock.mint(1)[1][0]

    def change(self, old: Job, new: Job | None) -> None:
        """Update a job's row, and move its line to its place."""
        was, due = old.due_us, None if new is None else new.due_us
        line = None
        if was is not None or due is not None:
            line = self.line(old.queue, old.entrypoint)
        if due is not None:
            if line is None:
                line = self.new_line(old.queue, old.entrypoint, due)
            else:
                self.came(line, due)
        if new is None:
            self.execute(SQL["delete_job"], (old.seq,))
        else:
            at = None if due is None or line is None else line.id
            self.execute(SQL["update_job"], update_of(new, at))
        if was is not None:
            assert line is not None
            self.left(line, was)

    # -- records ---------------------------------------------------------------

    def record(self, kind: str, name: str) -> Record | None:
        row = self.execute(SQL["record"], (kind, name)).fetchone()
        return None if row is None else record_of(row)

    def put_record(self, record: Record) -> None:
        self.execute(
            SQL["put_record"],
            (record.kind, record.name, record.value, record.version, record.expires_us),
        )
        if record.kind == PAUSE:
            self._pause(record.name, paused=True)

    def delete_record(self, kind: str, name: str) -> None:
        self.execute(SQL["delete_record"], (kind, name))
        if kind == PAUSE:
            self._pause(name, paused=False)

    def _pause(self, queue: str, *, paused: bool) -> None:
        self.execute(SQL["pause_lines"], (queue, int(paused)))
        self.cache.forget_lines()

    # -- pruning ---------------------------------------------------------------

    def prune(self, upkeep: Upkeep) -> None:
        """Delete a bounded number of expired jobs and records.

        It runs when a job or record that this handle has seen expires. Otherwise it runs once a
        second, for jobs and records of other processes.
        """
        now = self.now
        self.execute(SQL["delete_expired_jobs"], (now, PRUNED_AT_ONCE))
        for key in self.execute(SQL["expired_records"], (now, PRUNED_AT_ONCE)).fetchall():
            self.delete_record(*key)
        [job_us] = self.execute(SQL["next_job_expiry"]).fetchone()
        [record_us] = self.execute(SQL["next_record_expiry"]).fetchone()
        later = now + _PRUNE_LOOK_US
        upkeep.prune_us = min(job_us or later, record_us or later, later)
