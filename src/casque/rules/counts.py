"""Counts: the number of jobs in each state, updated with every change.

Two of the numbers also change with time alone: a scheduled job becomes pending, and a job dies when
its last lease ends. Jobs that can change so are sorted by the instant of the change, so counting
does not walk over all jobs.
"""

from __future__ import annotations

from casque.job import Job, JobStatus, Stats
from casque.rules.sorted_keys import SortedKeys
from casque.rules.transitions import is_mismatched

Moment = tuple[int, int]
"""The instant at which a job changes state by itself, and its enqueue order."""


class Tally:
    """The counts of one queue, or of all queues."""

    __slots__ = (
        "cancelled",
        "completed",
        "dead",
        "in_progress",
        "last_attempts",
        "mismatched",
        "queued",
        "scheduled",
        "tried",
    )

    def __init__(self) -> None:
        self.queued = 0
        self.tried = 0
        """Queued jobs that had an attempt."""
        self.mismatched = 0
        """Queued jobs that wait for a newer worker."""
        self.in_progress = 0
        self.completed = 0
        self.dead = 0
        self.cancelled = 0
        self.scheduled: SortedKeys[Moment] | None = None
        """Queued jobs, never attempted, that were not due when they were added here."""
        self.last_attempts: SortedKeys[Moment] | None = None
        """Jobs in progress that have no attempt left, by the end of their lease."""

    @property
    def total(self) -> int:
        return self.queued + self.in_progress + self.completed + self.dead + self.cancelled

    def add(self, job: Job, now: int) -> None:
        self._count(job, 1)
        if job.status is JobStatus.QUEUED:
            if not job.attempts and job.run_us > now:
                if self.scheduled is None:
                    self.scheduled = SortedKeys()
                self.scheduled.add((job.run_us, job.seq))
        elif job.status is JobStatus.IN_PROGRESS and job.attempts >= job.max_attempts:
            if self.last_attempts is None:
                self.last_attempts = SortedKeys()
            assert job.lease_until_us is not None
            self.last_attempts.add((job.lease_until_us, job.seq))

    def discard(self, job: Job) -> None:
        self._count(job, -1)
        if job.status is JobStatus.QUEUED:
            if self.scheduled is not None and not job.attempts:
                self.scheduled.discard((job.run_us, job.seq))
        elif job.status is JobStatus.IN_PROGRESS and job.attempts >= job.max_attempts:
            assert self.last_attempts is not None
            assert job.lease_until_us is not None
            self.last_attempts.discard((job.lease_until_us, job.seq))

    def stats(self, now: int, judged_us: int) -> Stats:
        """Return the counts at `now`. Leases that end at `judged_us` or before have ended."""
        after_now = (now + 1, -1)
        scheduled = spent = 0
        if self.scheduled is not None:
            scheduled = len(self.scheduled) - self.scheduled.count_below(after_now)
        if self.last_attempts is not None:
            spent = self.last_attempts.count_below((judged_us + 1, -1))
        return Stats(
            pending=self.queued - self.tried - scheduled,
            scheduled=scheduled,
            failed=self.tried,
            processing=self.in_progress - spent,
            completed=self.completed,
            dead=self.dead + spent,
            cancelled=self.cancelled,
        )

    def _count(self, job: Job, step: int) -> None:
        status = job.status
        if status is JobStatus.QUEUED:
            self.queued += step
            if job.attempts:
                self.tried += step
            if is_mismatched(job):
                self.mismatched += step
        elif status is JobStatus.IN_PROGRESS:
            self.in_progress += step
        elif status is JobStatus.COMPLETED:
            self.completed += step
        elif status is JobStatus.DEAD:
            self.dead += step
        else:
            self.cancelled += step
