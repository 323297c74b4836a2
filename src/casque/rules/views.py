"""Views: what a reader sees of a state at an instant. Nothing here changes the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import nsmallest
from itertools import islice, takewhile
from typing import Literal, get_args

import msgspec

from casque.errors import InvalidError
from casque.job import Job, JobStatus
from casque.record import Record
from casque.rules.answers import JobReads
from casque.rules.decide import shown
from casque.rules.picking import due_queues, pick
from casque.rules.state import QueueState, State

View = Literal["pending", "scheduled", "failed", "processing", "completed", "dead", "cancelled"]
"""The state of a job in the terms that people use; `Stats` has one number for each."""

VIEWS: tuple[View, ...] = get_args(View)

Selection = View | Literal["queued"]
"""The jobs of one view; or of all views of queued jobs: pending, scheduled and failed."""

Served = Mapping[str, Collection[str] | None]
"""By entrypoint, the queues in which its jobs are served; None: in all queues."""

Unserved = dict[str, dict[str, int]]
"""By entrypoint and queue, how many jobs are not served."""

MOST_UNSERVED = 100
"""How many entrypoints `unserved` returns at most."""

_QUEUED: tuple[View, ...] = ("pending", "scheduled", "failed")


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs to list; None matches every job."""

    view: Selection | None = None
    queue: str | None = None
    entrypoint: str | None = None

    def __post_init__(self) -> None:
        if self.view is not None and self.view not in ("queued", *VIEWS):
            raise InvalidError(
                f"there is no state {self.view!r}; choose one of {', '.join(VIEWS)}."
            )

    def admits(self, job: Job, now: int) -> bool:
        return (
            self.queue in (None, job.queue)
            and self.entrypoint in (None, job.entrypoint)
            and (self.view is None or self._has_view(view_of(job, now)))
        )

    def _has_view(self, view: View) -> bool:
        return view in _QUEUED if self.view == "queued" else view == self.view


def view_of(job: Job, now: int) -> View:
    """Return the state of a job, as in `Stats`. Pass the job through `shown` first."""
    if job.status is JobStatus.QUEUED:
        if job.attempts:
            return "failed"
        return "scheduled" if job.run_us > now else "pending"
    if job.status is JobStatus.IN_PROGRESS:
        return "processing"
    if job.status is JobStatus.COMPLETED:
        return "completed"
    return "dead" if job.status is JobStatus.DEAD else "cancelled"


def reads(state: State, now: int) -> JobReads:
    """Return the reads that are needed to answer a repeated batch."""

    def held(_: Sequence[int], tokens: Sequence[int]) -> list[Job]:
        jobs = map(state.jobs.__getitem__, state.in_progress)
        by_token = {job.token: job for job in jobs}
        return [by_token[token] for token in tokens if token in by_token]

    return JobReads(
        lambda job_id: job(state, job_id, now),
        held,
        lambda kind, name: state.record((kind, name), now),
    )


def job(state: State, job_id: str, now: int) -> Job | None:
    found = state.find(job_id, now)
    return None if found is None else shown(found, state.judged_us(now))


def jobs(state: State, wanted: JobFilter, limit: int, after: int, now: int) -> list[Job]:
    """Return up to `limit` jobs in enqueue order, with a `seq` above `after`."""
    judged_us = state.judged_us(now)
    matching = (
        seen
        for job in state.jobs.values()
        if job.seq > after
        and not job.is_gone(now)
        and wanted.admits(seen := shown(job, judged_us), now)
    )
    return nsmallest(limit, matching, key=lambda job: job.seq)


def peek(
    state: State, entrypoints: Collection[str] | None, queue: str | None, limit: int, now: int
) -> list[Job]:
    """The jobs that a dequeue would take."""
    judged_us = state.judged_us(now)
    return pick(state, entrypoints, queue, limit, now, judged_us=judged_us).jobs


def records(state: State, kind: str, now: int) -> list[Record]:
    live = (record for record in state.records.values() if not record.is_gone(now))
    return sorted((one for one in live if one.kind == kind), key=lambda one: one.name)


def queues(state: State, now: int, *, due: bool) -> list[str]:
    """The names of the queues that have jobs, or only of those that have a due job."""
    if due:
        return due_queues(state, now)
    gone = Counter(job.queue for job in state.gone_jobs(now))
    return sorted(name for name, index in state.queues.items() if index.tally.total > gone[name])


def unserved(state: State, served: Served, limit: int, now: int) -> Unserved:
    """The jobs that are due at `now` and not in `served`: see `Store.unserved`."""
    found: Unserved = {}
    for entrypoint in state.rotation.entrypoints():
        queues = served.get(entrypoint, ())
        if queues is not None and (counts := _due_counts(state, entrypoint, queues, limit, now)):
            found[entrypoint] = counts
            if len(found) == MOST_UNSERVED:
                break
    return found


def _due_counts(
    state: State, entrypoint: str, served: Collection[str], limit: int, now: int
) -> dict[str, int]:
    """Return how many jobs of an entrypoint are due, by queue, without the queues in `served`.

    Looks at the first `limit` due jobs.
    """
    lines = (
        state.queues[queue].lines[name]
        for _, queue, name in state.rotation.due([entrypoint], now, limit)
        if queue not in served
    )
    due = (
        job_id
        for line in lines
        for rank in line.ranks.values()
        for _, _, job_id in takewhile(lambda one: one[0] <= now, rank)
    )
    jobs = (state.jobs[job_id] for job_id in islice(due, limit))
    return dict(Counter(job.queue for job in jobs if not job.is_spent(now)))


def mismatched(state: State, queue: str | None) -> int:
    """How many queued jobs wait for a newer worker, in one queue or in all."""
    if queue is None:
        return state.tally.mismatched
    index = state.queues.get(queue)
    return index.tally.mismatched if index else 0


def next_run(state: State, queue: str) -> int | None:
    """When the first job of a queue is due, even if the queue is paused."""
    index = state.queues.get(queue)
    lines = index.lines.values() if index else ()
    return min((due for line in lines if (due := line.earliest_us) is not None), default=None)


def picture(state: State, now: int) -> QueueState:
    judged_us = state.judged_us(now)
    live = (shown(job, judged_us) for job in state.jobs.values() if not job.is_gone(now))
    return QueueState(tuple(sorted(live, key=lambda job: job.seq)), state.version)
