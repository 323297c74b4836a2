"""State: everything a store holds, with indexes, so that no operation slows down with more jobs.

Only `evolve` (evolve.py) changes the state; `decide` reads it. All changes since `begin` can be
rolled back, to undo a batch if another writer was faster. `QueueState` is the frozen view that
callers get.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec

from casque.job import Job, JobStatus, Stats
from casque.record import PAUSE, Record
from casque.rules.counts import Tally, counted_state
from casque.rules.lines import Line, Rotation
from casque.rules.operations import BatchStamp
from casque.rules.sorted_keys import SortedKeys
from casque.system.clock import MINUTE_US, NO_STEP

WRITER_MEMORY_US = 15 * MINUTE_US
"""How long the last commit number of a silent writer is kept."""

READER_LEASE_US = 5 * MINUTE_US
"""How long readers, which take no lease, use the earlier time after a clock step."""

_WRITERS_DROPPED_AT_ONCE = 8
NEVER = 2**63 - 1

LineKey = tuple[str, str]
RecordKey = tuple[str, str]

K = TypeVar("K")
V = TypeVar("V")


class QueueIndex:
    """One queue: its lines by entrypoint, and its counts."""

    __slots__ = ("lines", "tally")

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.tally = Tally()


class WriterRow(NamedTuple):
    """The last commit of a writer."""

    number: int
    seen_us: int
    """The time of that commit."""
    answers: bytes = b""
    """The stored answers to that commit, if the writer is remote."""


class _Undo:
    """The data needed to roll back everything since `begin`."""

    def __init__(self, state: State) -> None:
        self.counters = (state.version, state.token, state.seq, state.turn, state.time_us)
        self.jobs: dict[str, Job | None] = {}
        """Each changed job as it was before; None for a new job."""
        self.records: list[tuple[RecordKey, Record | None]] = []
        self.writers: list[tuple[str, WriterRow | None]] = []
        self.lines: dict[LineKey, int | None] = {}
        """Each touched line's first turn; None if there was no such line."""


def _take_back(things: dict[K, V], changes: Iterable[tuple[K, V | None]]) -> None:
    for key, old in changes:
        if old is None:
            things.pop(key, None)
        else:
            things[key] = old


class State:
    """The jobs, records and writers of one store, with their indexes."""

    def __init__(self) -> None:
        self.identity = ""
        """The identity of the store, if the store keeps it with its state."""
        self.version = 0
        """The number of commits."""
        self.token = 0
        """The last token issued: leases, locks and record versions share one counter."""
        self.seq = 0
        """The enqueue order of the newest job."""
        self.turn = 0
        """The last turn given to a line."""
        self.time_us = 0
        """The instant of the last commit, or of the one being decided."""
        self.jobs: dict[str, Job] = {}
        self.records: dict[RecordKey, Record] = {}
        self.writers: dict[str, WriterRow] = {}
        self.queues: dict[str, QueueIndex] = {}
        self.rotation = Rotation()
        self.tally = Tally()
        self.in_progress: dict[str, None] = {}
        self.is_whole = True
        """False from `begin` to `end` or `rollback`. If it stays False, use `repaired`."""
        self.step = NO_STEP
        """The last clock step seen by the process that uses this state."""
        self.touched = 0
        """Index entries read by claims: the unit of the cost guarantees."""
        self._paused: set[str] = set()
        self._job_expiry: SortedKeys[tuple[int, int, str]] = SortedKeys()
        self._record_expiry: SortedKeys[tuple[int, str, str]] = SortedKeys()
        self._writers_seen: SortedKeys[tuple[int, str]] = SortedKeys()
        self._changed: dict[LineKey, Line] = {}
        self._undo = _Undo(self)

    # -- reading ---------------------------------------------------------------

    def find(self, job_id: str, now: int) -> Job | None:
        """The job, unless its record has expired."""
        job = self.jobs.get(job_id)
        return None if job is None or job.is_gone(now) else job

    def record(self, key: RecordKey, now: int) -> Record | None:
        record = self.records.get(key)
        return None if record is None or record.is_gone(now) else record

    def is_paused(self, queue: str) -> bool:
        return queue in self._paused

    def judged_us(self, now: int, lease_us: int = READER_LEASE_US) -> int:
        """The time to compare the ends of leases with: see `Step.judged_us`."""
        return self.step.judged_us(now, lease_us)

    def stats(self, queue: str | None, now: int) -> Stats:
        if queue is None:
            tally = self.tally
        elif queue in self.queues:
            tally = self.queues[queue].tally
        else:
            return Stats()
        stats = tally.stats(now, self.judged_us(now))
        gone = {JobStatus.COMPLETED: 0, JobStatus.DEAD: 0, JobStatus.CANCELLED: 0}
        for job in self.gone_jobs(now):
            if queue is None or job.queue == queue:
                gone[job.status] += 1
        return msgspec.structs.replace(
            stats,
            completed=stats.completed - gone[JobStatus.COMPLETED],
            dead=stats.dead - gone[JobStatus.DEAD],
            cancelled=stats.cancelled - gone[JobStatus.CANCELLED],
        )

    def stats_hold_until(self, now: int) -> int:
        """Return the instant from which `stats(None, …)` differs, if nothing changes the state."""
        change = self.tally.next_change(now)
        expiry = self._job_expiry.first[0] if self._job_expiry else NEVER
        return expiry if change is None else min(change, expiry)

    def gone_jobs(self, now: int) -> Iterator[Job]:
        """Expired jobs that are not pruned yet, oldest first."""
        for expires, _, job_id in self._job_expiry:
            if expires > now:
                return
            yield self.jobs[job_id]

    def gone_records(self, now: int) -> Iterator[Record]:
        for expires, kind, name in self._record_expiry:
            if expires > now:
                return
            yield self.records[kind, name]

    def finished_jobs(self) -> Iterator[Job]:
        for _, _, job_id in self._job_expiry:
            yield self.jobs[job_id]

    def lines(self) -> Iterator[Line]:
        for index in self.queues.values():
            yield from index.lines.values()

    # -- changing: a batch -----------------------------------------------------

    def begin(self, now: int) -> None:
        """Begin a batch: `rollback` undoes every change from here on."""
        self._undo = _Undo(self)  # before is_whole, so that `repaired` finds this batch's undo list
        self.is_whole = False
        self.time_us = now

    def end(self) -> None:
        """Mark the batch as complete. It can still be rolled back."""
        self.is_whole = True

    def stamp(self, stamps: Iterable[BatchStamp]) -> None:
        """Record which batches this commit stores; forget writers that no longer write."""
        self.version += 1
        for one in stamps:
            self._set_writer(one.writer, WriterRow(one.number, self.time_us, one.answers))
        forgotten = self.time_us - WRITER_MEMORY_US
        for seen, name in list(islice(self._writers_seen, _WRITERS_DROPPED_AT_ONCE)):
            if seen < forgotten:
                self._set_writer(name, None)

    def changed_jobs(self) -> dict[str, Job | None]:
        """Return the jobs changed since `begin`, as they were before; None for a new job."""
        return dict(self._undo.jobs)

    def changed_records(self) -> dict[RecordKey, Record | None]:
        """Return the records changed since `begin`, as they are now; None for a deleted one."""
        return {key: self.records.get(key) for key, _ in self._undo.records}

    def rollback(self) -> None:
        """Undo every change since `begin`."""
        undo, self.is_whole = self._undo, False
        # First: restored jobs are counted as of that time, for example as not yet due.
        self.version, self.token, self.seq, self.turn, self.time_us = undo.counters
        for job_id, old_job in undo.jobs.items():
            self._swap(job_id, self.jobs.get(job_id), old_job)
        for key, old_record in reversed(undo.records):
            self._swap_record(key, old_record)
        for name, row in reversed(undo.writers):
            self._put_writer(name, row)
        for key, turn in undo.lines.items():
            line = self._line(*key)
            if line is None:
                continue
            if turn is None:
                self._drop_line(line)
            else:
                self._place(line, turn, line.visit_at(self.time_us))
        self._changed.clear()
        self._undo = _Undo(self)
        self.is_whole = True

    def repaired(self) -> State:
        """The state as it was at `begin`, rebuilt after an interruption.

        An exception can come at any instruction, for example by Ctrl-C, and leave the indexes half
        changed. The jobs, the records and the undo list change in single steps, the undo list
        first. This method rebuilds the state from them.
        """
        undo = self._undo
        jobs, records, writers = dict(self.jobs), dict(self.records), dict(self.writers)
        turns = {line.key: line.turn for line in self.lines()}
        turns |= {key: turn for key, turn in undo.lines.items() if turn is not None}
        _take_back(jobs, undo.jobs.items())
        _take_back(records, reversed(undo.records))
        _take_back(writers, reversed(undo.writers))
        new = State()
        new.identity = self.identity
        new.version, new.token, new.seq, new.turn, new.time_us = undo.counters
        for record in records.values():
            new.put_record(record)
        for job in jobs.values():
            new.put(job)
        new.settle()
        for key, turn in turns.items():
            new.restore_line(*key, turn)
        for name, row in writers.items():
            new.restore_writer(name, row)
        new.turn = undo.counters[3]
        new.begin(new.time_us)
        new.end()
        return new

    # -- changing: jobs --------------------------------------------------------

    def put(self, job: Job) -> None:
        old = self.jobs.get(job.id)
        self._undo.jobs.setdefault(job.id, old)
        self._swap(job.id, old, job)

    def remove(self, job_id: str) -> None:
        old = self.jobs.get(job_id)
        if old is not None:
            self._undo.jobs.setdefault(job_id, old)
            self._swap(job_id, old, None)

    def settle(self, served: tuple[LineKey, ...] = ()) -> None:
        """Reposition the lines of the changed jobs; `served` lines take the last turns."""
        now, changed = self.time_us, self._changed
        if served:
            changed = self._with_served(served)
        self._changed = {}
        for key, line in changed.items():
            earliest = line.earliest_us
            if earliest is None:
                self._drop_line(line)
                continue
            if key in served or not line.turn:
                self.turn += 1
                turn = self.turn
            else:
                turn = line.turn
            is_known = line.turn and line.visit_us is None and not line.lost_due
            self._place(line, turn, None if is_known or earliest <= now else earliest)

    def _with_served(self, served: tuple[LineKey, ...]) -> dict[LineKey, Line]:
        """Return the served lines, in order, and then the other changed lines."""
        lines = {key: line for key in served if (line := self._line(*key)) is not None}
        for key, line in lines.items():
            # A line can have its turn without losing a job: then it is not in the undo list.
            self._undo.lines.setdefault(key, line.turn)
        return lines | self._changed

    def put_right(self, lines: Iterable[Line]) -> None:
        """Move lines that are not due yet from the ring to the waiting index."""
        for line in lines:
            self._place(line, line.turn, line.earliest_us)

    def restore_line(self, queue: str, entrypoint: str, turn: int) -> None:
        """Set the turn of a line from a stored state."""
        line = self._line(queue, entrypoint)
        if line is not None:
            self._place(line, turn, line.visit_us)

    def restore_writer(self, name: str, row: WriterRow) -> None:
        """Set the last commit of a writer from a stored state."""
        self._put_writer(name, row)

    # -- changing: records -----------------------------------------------------

    def put_record(self, record: Record) -> None:
        key = (record.kind, record.name)
        self._undo.records.append((key, self.records.get(key)))
        self._swap_record(key, record)

    def delete_record(self, key: RecordKey) -> None:
        old = self.records.get(key)
        if old is not None:
            self._undo.records.append((key, old))
            self._swap_record(key, None)

    # -- indexes ---------------------------------------------------------------

    def _swap(self, job_id: str, old: Job | None, new: Job | None) -> None:
        if old is not None:
            self._unindex(old)
        if new is not None:
            self.jobs[job_id] = new
            self._index(new)
        elif old is not None:
            del self.jobs[job_id]
            index = self.queues[old.queue]
            if not index.lines and not index.tally.total:
                del self.queues[old.queue]

    def _index(self, job: Job) -> None:
        index = self.queues.get(job.queue)
        if index is None:
            index = self.queues[job.queue] = QueueIndex()
        state = counted_state(job)
        index.tally.add(state, job, self.time_us)
        self.tally.add(state, job, self.time_us)
        due_us = job.due_us
        if due_us is None:
            expires = NEVER if job.expires_us is None else job.expires_us
            self._job_expiry.add((expires, job.seq, job.id))
            return
        line = index.lines.get(job.entrypoint)
        if line is None:
            line = index.lines[job.entrypoint] = Line(job.queue, job.entrypoint)
            self._undo.lines.setdefault(line.key, None)
        line.add(job.priority, (due_us, job.seq, job.id))
        self._touch(line)
        if job.status is JobStatus.IN_PROGRESS:
            self.in_progress[job.id] = None

    def _unindex(self, job: Job) -> None:
        index = self.queues[job.queue]
        state = counted_state(job)
        index.tally.discard(state, job)
        self.tally.discard(state, job)
        due_us = job.due_us
        if due_us is None:
            expires = NEVER if job.expires_us is None else job.expires_us
            self._job_expiry.discard((expires, job.seq, job.id))
            return
        line = index.lines[job.entrypoint]
        self._touch(line)
        line.discard(job.priority, (due_us, job.seq, job.id))
        line.lost_due |= due_us <= self.time_us
        if job.status is JobStatus.IN_PROGRESS:
            del self.in_progress[job.id]

    def _touch(self, line: Line) -> None:
        self._changed[line.key] = line
        self._undo.lines.setdefault(line.key, line.turn)

    def _line(self, queue: str, entrypoint: str) -> Line | None:
        index = self.queues.get(queue)
        return index.lines.get(entrypoint) if index else None

    def _place(self, line: Line, turn: int, visit_us: int | None) -> None:
        line.lost_due = False
        if turn == line.turn and visit_us == line.visit_us:
            return
        self.rotation.leave(line)
        line.turn, line.visit_us = turn, visit_us
        self._enter(line)

    def _enter(self, line: Line) -> None:
        if not self.is_paused(line.queue):
            self.rotation.enter(line)

    def _drop_line(self, line: Line) -> None:
        self.rotation.leave(line)
        index = self.queues[line.queue]
        del index.lines[line.entrypoint]
        if not index.lines and not index.tally.total:
            del self.queues[line.queue]

    def _swap_record(self, key: RecordKey, new: Record | None) -> None:
        old = self.records.pop(key, None)
        if old is not None and old.expires_us is not None:
            self._record_expiry.discard((old.expires_us, *key))
        if new is not None:
            self.records[key] = new
            if new.expires_us is not None:
                self._record_expiry.add((new.expires_us, *key))
        if key[0] == PAUSE and (old is None) != (new is None):
            self._set_paused(key[1], paused=new is not None)

    def _set_paused(self, queue: str, *, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(queue)
        index = self.queues.get(queue)
        for line in index.lines.values() if index else ():
            self.rotation.leave(line)
            self._enter(line)

    def _set_writer(self, name: str, row: WriterRow | None) -> None:
        self._undo.writers.append((name, self.writers.get(name)))
        self._put_writer(name, row)

    def _put_writer(self, name: str, row: WriterRow | None) -> None:
        old = self.writers.get(name)
        if old is not None:
            self._writers_seen.discard((old.seen_us, name))
        if row is None:
            self.writers.pop(name, None)
        else:
            self.writers[name] = row
            self._writers_seen.add((row.seen_us, name))


class QueueState(msgspec.Struct, frozen=True):
    """A frozen copy of a whole store. Copying costs time: for tools and small queues."""

    jobs: tuple[Job, ...]
    version: int

    def queued_jobs(self, entrypoint: str | None = None) -> list[Job]:
        """The queued jobs, ordered by `(priority, created_at)`."""
        queued = [
            job
            for job in self.jobs
            if job.status is JobStatus.QUEUED and entrypoint in (None, job.entrypoint)
        ]
        return sorted(queued, key=lambda job: (job.priority, job.created_us, job.seq))

    def in_progress_jobs(self) -> list[Job]:
        return [job for job in self.jobs if job.status is JobStatus.IN_PROGRESS]

    def find(self, job_id: str) -> Job | None:
        return next((job for job in self.jobs if job.id == job_id), None)
