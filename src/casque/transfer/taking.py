"""Taking: adds jobs to a store in batches. A job is added once, however often it is offered.

Each commit adds a batch of jobs and one record with their marks. A mark is a short digest of
what identifies a job in its source. So a transfer that was killed continues where it stopped,
and a repeated transfer adds nothing, even if the jobs have been done and removed meanwhile.
The records are numbered, and a commit is refused if its number is taken. So of two transfers at
the same time, one stops before it adds a job that the other has taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from casque.errors import CASConflictError
from casque.job import Job
from casque.record import ABSENT, TRANSFER, Record
from casque.rules.operations import Insert, PutRecord
from casque.transfer.opened_store import OpenedStore
from casque.transfer.report import NotTaken, Progress, TransferReport

BATCH_JOBS = 1_000
BATCH_BYTES = 2 * 1024 * 1024

_MARK_BYTES = 8


class FoundJob(NamedTuple):
    """A job as it would be stored, and the text that identifies it in its source."""

    job: Job
    key: str


class Taker:
    """Adds jobs to the target and counts them. Call `flush` at the end."""

    def __init__(
        self, target: OpenedStore, report: TransferReport, progress: Progress, total: int | None
    ) -> None:
        self._target = target
        self._report = report
        self._progress = progress
        self._total = total
        stored = target.records(TRANSFER)
        self._marks = _marks_in(stored)
        self._number = len(stored)
        self._waiting: dict[bytes, Job] = {}
        self._bytes = 0
        self.known: dict[str, int] = {}
        """When the jobs that were known, and have changed since they were enqueued, last did."""
        self.token = 0
        """Tokens of the target continue above this number."""

    def take(self, found: Iterable[FoundJob | NotTaken]) -> None:
        """Add jobs in batches. `flush` adds the rest."""
        for one in found:
            if isinstance(one, NotTaken):
                self._report.not_taken.append(one)
                continue
            mark = hashlib.blake2b(one.key.encode(), digest_size=_MARK_BYTES).digest()
            if mark in self._marks or mark in self._waiting:
                self._report.known += 1
                if one.job.updated_us > one.job.created_us:
                    self.known[one.job.id] = one.job.updated_us
                continue
            self._waiting[mark] = one.job
            self._bytes += len(one.job.payload) + len(one.job.result or b"")
            if len(self._waiting) >= BATCH_JOBS or self._bytes >= BATCH_BYTES:
                self.flush()

    def flush(self) -> None:
        """Commit the waiting jobs, and the records that they were taken, together."""
        if self._waiting:
            jobs, marks = tuple(self._waiting.values()), b"".join(self._waiting)
            added = self._commit(jobs, marks)
            self._marks.update(self._waiting)
            self._waiting, self._bytes = {}, 0
            for job, is_new in zip(jobs, added, strict=True):
                self._count(job, is_new=is_new)
        self._progress(self._report.seen, self._total)

    def _commit(self, jobs: tuple[Job, ...], marks: bytes) -> list[bool]:
        """Add the jobs and their marks, or neither. Returns for each job whether it is new."""
        name = str(self._number)
        insert = Insert(jobs, self.token, name)
        try:
            added, _ = self._target.submit_all([insert, PutRecord(TRANSFER, name, marks, ABSENT)])
        except CASConflictError as error:
            raise CASConflictError(
                f"another import or copy into {self._target.name} runs at the same time, so this "
                "one stopped. Run it again when the other has ended: it continues, and takes each "
                "job once.",
                cause=error,
            ) from error
        self._number += 1
        return list(added)

    def _count(self, job: Job, *, is_new: bool) -> None:
        if is_new:
            self._report.added += 1
        elif _is_same(self._target.get(job.id), job):
            self._report.known += 1
        else:
            self._report.not_taken.append(
                NotTaken(job.id, f"another job in {self._target.name} has this id")
            )


def _is_same(there: Job | None, job: Job) -> bool:
    """True if the target has this same job, or no longer has a job of this id."""
    return there is None or (there.queue, there.entrypoint, there.created_us) == (
        job.queue,
        job.entrypoint,
        job.created_us,
    )


def _marks_in(records: Iterable[Record]) -> set[bytes]:
    marks: set[bytes] = set()
    for record in records:
        value = record.value
        marks.update(
            value[first : first + _MARK_BYTES] for first in range(0, len(value), _MARK_BYTES)
        )
    return marks
