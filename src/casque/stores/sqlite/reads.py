"""Reads: the queries of a reader at one instant. They are `casque.rules.views` in SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from casque.job import Job, JobStatus, Stats
from casque.record import Record
from casque.rules.decide import shown
from casque.rules.state import READER_LEASE_US, QueueState
from casque.rules.views import MOST_UNSERVED, JobFilter, Served, Unserved
from casque.stores.sqlite.dequeue import Picker
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.rows import STORE, find_job, job_of, record_of
from casque.system.clock import LOOK_US, Step

_ALL = -1
"""No LIMIT, in SQLite."""


class Reads:
    """The reads of one snapshot."""

    def __init__(
        self, execute: Callable[..., Any], now: int, step: Step, lease_us: int = READER_LEASE_US
    ) -> None:
        self._execute = execute
        self._now = now
        self._picker = Picker(execute, now, step, lease_us)
        self._judged_us = self._picker.judged_us

    @property
    def touched(self) -> int:
        return self._picker.touched

    def job(self, job_id: str) -> Job | None:
        job = find_job(self._execute, job_id)
        return None if job is None or job.is_gone(self._now) else shown(job, self._judged_us)

    def jobs(self, wanted: JobFilter, limit: int, after: int) -> list[Job]:
        filters = (wanted.queue, wanted.entrypoint, wanted.view)
        # Few jobs are in progress, and the index of due jobs has them.
        statement = SQL["jobs_in_progress" if wanted.view == "processing" else "jobs"]
        rows = self._execute(statement, (after, self._now, *filters, limit, self._judged_us))
        return [shown(job_of(row), self._judged_us) for row in rows]

    def held(self, seqs: Sequence[int], tokens: Sequence[int]) -> list[Job]:
        """Return the jobs with these `seq` that are in progress with these tokens."""
        rows = (self._execute(SQL["job_by_seq"], (seq,)).fetchone() for seq in seqs)
        jobs = [None if row is None else job_of(row) for row in rows]
        return [
            job
            for job, token in zip(jobs, tokens, strict=True)
            if job is not None and job.token == token and job.status is JobStatus.IN_PROGRESS
        ]

    def peek(self, entrypoints: Collection[str] | None, queue: str | None, limit: int) -> list[Job]:
        picked = self._picker.pick(entrypoints, queue, limit)
        each = SQL["job_by_seq"]
        return [job_of(self._execute(each, (head.seq,)).fetchone()) for head in picked.jobs]

    def nothing_due(
        self, entrypoints: Collection[str] | None, queue: str | None
    ) -> int | Literal[False] | None:
        """Return False if a dequeue has work; else how long until it may (None: no job)."""
        picked = self._picker.pick(entrypoints, queue, 1)
        if picked.jobs or picked.spent or picked.early:
            return False
        if picked.held:
            return LOOK_US
        due = self._picker.next_after(picked, entrypoints, queue)
        return None if due is None else max(due - self._now, 0)

    def stats(self, queue: str | None) -> Stats:
        if queue is None:
            live = self._execute(SQL["live_stats"], (self._now, self._judged_us)).fetchone()
        else:
            how = (self._now, queue, self._judged_us)
            live = self._execute(SQL["live_stats_of_queue"], how).fetchone()
        over = self._execute(SQL["finished_stats"], (self._now, queue)).fetchone()
        pending, scheduled, failed, processing, spent = map(int, live)
        completed, dead, cancelled = map(int, over)
        return Stats(
            pending=pending,
            scheduled=scheduled,
            failed=failed,
            processing=processing,
            completed=completed,
            dead=dead + spent,
            cancelled=cancelled,
        )

    def queues(self, *, due: bool) -> list[str]:
        if due:
            return self._picker.due_queues()
        names = {name for (name,) in self._execute(SQL["live_queues"])}
        names.update(name for (name,) in self._execute(SQL["finished_queues"], (self._now,)))
        return sorted(names)

    def unserved(self, served: Served, limit: int, waited_us: int) -> Unserved:
        found: Unserved = {}
        picker = self._picker.earlier(waited_us)
        for name in picker.entrypoints():
            queues = served.get(name, ())
            if queues is not None and (counts := picker.due_counts(name, queues, limit)):
                found[name] = counts
                if len(found) == MOST_UNSERVED:
                    break
        return found

    def mismatched(self, queue: str | None) -> int:
        statement, how = ("mismatched", (queue,)) if queue else ("mismatched_in_all", ())
        count: int = self._execute(SQL[statement], how).fetchone()[0]
        return count

    def next_run(self, queue: str) -> int | None:
        lines = self._execute(SQL["lines_of_queue"], (queue,)).fetchall()
        return self._picker.first_due_of(lines)

    def record(self, kind: str, name: str) -> Record | None:
        row = self._execute(SQL["record"], (kind, name)).fetchone()
        record = None if row is None else record_of(row)
        return None if record is None or record.is_gone(self._now) else record

    def records(self, kind: str) -> list[Record]:
        return list(map(record_of, self._execute(SQL["records"], (kind, self._now))))

    def last_token(self) -> int:
        token: int = self._execute(SQL["counters"]).fetchone()[0]
        return token

    def last_joined(self) -> int:
        """The number of the last transaction of a caller that jobs were added to."""
        number: int = self._execute(SQL["writer"], (STORE,)).fetchone()[0]
        return number

    def identity(self) -> str:
        identity: str = self._execute(SQL["counters"]).fetchone()[2]
        return identity

    def schema(self) -> int:
        return int(self._execute(SQL["schema"]).fetchone()[0])

    def picture(self) -> QueueState:
        jobs = self.jobs(JobFilter(), _ALL, 0)
        [version] = self._execute(SQL["data_version"]).fetchone()
        return QueueState(tuple(jobs), version)


class Snapshot:
    """A read transaction: everything read in it is from one moment."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN")

    def __exit__(self, *_: object) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
