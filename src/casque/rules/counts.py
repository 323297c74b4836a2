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

# The states that are counted. A job is counted twice, for its queue and for the store, but its
# state is looked up once.
NEW, TRIED, IN_PROGRESS, LAST_ATTEMPT, COMPLETED, DEAD, CANCELLED = range(7)
"""NEW: queued, never attempted. TRIED: queued again after an attempt. LAST_ATTEMPT: in progress,
and no attempt is left."""


def counted_state(job: Job) -> int:
    """Return the state as which a job is counted."""
    status = job.status
    if status is JobStatus.QUEUED:
        return TRIED if job.attempts else NEW
    if status is JobStatus.IN_PROGRESS:
        return LAST_ATTEMPT if job.attempts >= job.max_attempts else IN_PROGRESS
    if status is JobStatus.COMPLETED:
        return COMPLETED
    return DEAD if status is JobStatus.DEAD else CANCELLED


class Tally:
    """The counts of one queue, or of all queues."""

    __slots__ = ("counts", "last_attempts", "mismatched", "scheduled")

    def __init__(self) -> None:
        self.counts = [0] * 7
        """By counted state."""
        self.mismatched = 0
        """Queued jobs that wait for a newer worker."""
        self.scheduled: SortedKeys[Moment] | None = None
        """Queued jobs, never attempted, that were not due when they were added here."""
        self.last_attempts: SortedKeys[Moment] | None = None
        """Jobs in progress that have no attempt left, by the end of their lease."""

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def unfinished(self) -> int:
        """The number of jobs that are queued or in progress."""
        return sum(self.counts[:COMPLETED])

    def add(self, state: int, job: Job, now: int) -> None:
        """Count a job, whose `counted_state` is `state`."""
        self.counts[state] += 1
        if job.error is not None and is_mismatched(job):
            self.mismatched += 1
        if state == NEW:
            if job.run_us > now:
                if self.scheduled is None:
                    self.scheduled = SortedKeys()
                self.scheduled.add((job.run_us, job.seq))
        elif state == LAST_ATTEMPT:
            if self.last_attempts is None:
                self.last_attempts = SortedKeys()
            assert job.lease_until_us is not None
            self.last_attempts.add((job.lease_until_us, job.seq))

    def discard(self, state: int, job: Job) -> None:
        self.counts[state] -= 1
        if job.error is not None and is_mismatched(job):
            self.mismatched -= 1
        if state == NEW:
            if self.scheduled is not None:
                self.scheduled.discard((job.run_us, job.seq))
        elif state == LAST_ATTEMPT:
            assert self.last_attempts is not None
            assert job.lease_until_us is not None
            self.last_attempts.discard((job.lease_until_us, job.seq))

    def next_change(self, now: int) -> int | None:
        """When the next job changes state by itself, if any does."""
        bound = (now + 1, -1)
        sets = (self.scheduled, self.last_attempts)
        moments = (keys.first_from(bound) for keys in sets if keys is not None)
        return min((moment[0] for moment in moments if moment is not None), default=None)

    def stats(self, now: int, judged_us: int) -> Stats:
        """Return the counts at `now`. Leases that end at `judged_us` or before have ended."""
        new, tried, in_progress, last_attempts, completed, dead, cancelled = self.counts
        after_now = (now + 1, -1)
        scheduled = spent = 0
        if self.scheduled is not None:
            scheduled = len(self.scheduled) - self.scheduled.count_below(after_now)
        if self.last_attempts is not None:
            spent = self.last_attempts.count_below((judged_us + 1, -1))
        return Stats(
            pending=new - scheduled,
            scheduled=scheduled,
            failed=tried,
            processing=in_progress + last_attempts - spent,
            completed=completed,
            dead=dead + spent,
            cancelled=cancelled,
        )
