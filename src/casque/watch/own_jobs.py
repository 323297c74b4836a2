"""Own jobs: the jobs of watched files that have not ended, and the contents that they left.

A job may rewrite its own input. So the content at the end of a job gets no new job.
A record stores this content, so that the next watcher of the folder knows it too.
"""

# ruff: noqa: SLF001 - what only tools need is not a method of a Queue

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from casque.job import Job, JobStatus
from casque.queues.sync_queue import Queue
from casque.record import WATCH
from casque.rules.operations import DeleteRecord, Operation, PutRecord
from casque.rules.views import JobFilter, View
from casque.system.clock import SECOND_US
from casque.watch.contents import Names, key_of

_LOOK_AHEAD = 20
"""How many waiting jobs a poll reads, besides the running jobs."""
_POLL_SECONDS = 0.2
_POLL_REMOTE_SECONDS = 2.0
"""A remote store is polled less often: each read may cost money."""
_LONGEST_POLL_SECONDS = 0.2
_REMEMBERED_US = 30 * 86_400 * SECOND_US
_PAGE = 1_000
_UNFINISHED: tuple[View, ...] = ("pending", "scheduled", "failed", "processing")


class Progress(Enum):
    """How far the jobs of a file are."""

    NONE = auto()
    QUEUED = auto()
    """No attempt has begun."""
    BEGUN = auto()
    ENDED = auto()
    """A job has ended, and its end was not noticed before."""


class OwnJobs:
    """The jobs of one watch that have not ended."""

    def __init__(self, queue: Queue, names: Names) -> None:
        self._queue = queue
        self._clock = queue.store.clock
        self._names = names
        self._ids: dict[str, str] = {}
        """The id of each job, and its path. In the order in which they were enqueued."""
        self._by_path: dict[str, dict[str, None]] = {}
        self._unknown: dict[str, list[str]] = {}
        """Jobs of an earlier watcher, by key. `meet` finds the path for a key."""
        self._left: dict[str, str] = {}
        """For each key, the content that a job left, if the job changed it."""
        self._poll_us = self._offset = 0

    # -- of an earlier watcher -----------------------------------------------------

    def recall(self, entrypoint: str, queue: str) -> None:
        """Read the jobs and contents that an earlier watcher of these files left."""
        live = self._queue._live
        for record in self._queue._run(live._session.records(WATCH)):
            self._left[record.name] = record.value.decode(errors="replace")
        for view in _UNFINISHED:
            wanted, after = JobFilter(view, queue, entrypoint), 0
            while page := self._queue._run(
                live._session.readable.jobs(wanted, limit=_PAGE, after=after)
            ):
                after = page[-1].seq
                for job in page:
                    if (key := key_of(job.id)) is not None:
                        self._unknown.setdefault(key, []).append(job.id)

    def meet(self, path: str) -> None:
        """Take over the jobs of an earlier watcher for this file."""
        if self._unknown:
            for job_id in self._unknown.pop(self._names.key(path), ()):
                self._add(job_id, path)

    # -- jobs ----------------------------------------------------------------------

    def add(self, job: Job, path: str) -> None:
        if not _is_over(job):
            self._add(job.id, path)

    def _add(self, job_id: str, path: str) -> None:
        self._ids[job_id] = path
        self._by_path.setdefault(path, {})[job_id] = None

    def progress(self, path: str) -> Progress:
        """Read this file's jobs. Returns how far they are."""
        self.meet(path)
        found = Progress.NONE
        for job_id in list(self._by_path.get(path, ())):
            job = self._queue.get(job_id)
            if job is None or _is_over(job):
                self._drop(job_id)
                return Progress.ENDED
            if _has_begun(job):
                return Progress.BEGUN
            found = Progress.QUEUED
        return found

    def poll_now(self) -> None:
        """Let the next `ended` read the jobs without a pause."""
        self._poll_us = self._offset = 0

    def ended(self) -> list[tuple[str, str]]:
        """The jobs that have ended since the last call, each with its file. Reads only some jobs.

        Workers take the oldest jobs first, so their ends are noticed soon.
        """
        now = self._clock.monotonic()
        if not self._ids or now < self._poll_us:
            return []
        ended: list[tuple[str, str]] = []
        waiting, first = 0, self._offset
        stop_us = now + int(_LONGEST_POLL_SECONDS * SECOND_US)
        self._offset = 0
        for job_id, path in list(self._ids.items())[first:]:
            if waiting >= _LOOK_AHEAD:
                break
            if self._clock.monotonic() > stop_us:
                self._offset = first  # the store is slow: continue there next time
                break
            job = self._queue.get(job_id)
            if job is None or _is_over(job):
                self._drop(job_id)
                ended.append((job_id, path))
                continue
            first += 1
            waiting += not _has_begun(job)
        seconds = _POLL_SECONDS if self._queue.store.blocking else _POLL_REMOTE_SECONDS
        self._poll_us = self._clock.monotonic() + int(seconds * SECOND_US)
        return ended

    def _drop(self, job_id: str) -> None:
        path = self._ids.pop(job_id)
        of_path = self._by_path[path]
        del of_path[job_id]
        if not of_path:
            del self._by_path[path]

    # -- contents that jobs left ---------------------------------------------------

    def has_left(self, path: str, digest: str) -> bool:
        """True if a job of this file ended with this content."""
        return self._left.get(self._names.key(path)) == digest

    def remember(self, left: Iterable[tuple[str, str]]) -> None:
        """Store paths and the contents that their jobs left."""
        new = {self._names.key(path): digest for path, digest in left}
        changed = {key: one for key, one in new.items() if self._left.get(key) != one}
        self._left |= changed
        self._submit(
            [
                PutRecord(WATCH, key, one.encode(), None, _REMEMBERED_US)
                for key, one in changed.items()
            ]
        )

    def forget(self, paths: Iterable[str]) -> None:
        """Forget these files."""
        keys = [key for path in paths if (key := self._names.key(path)) in self._left]
        for key in keys:
            del self._left[key]
        self._submit([DeleteRecord(WATCH, key, None) for key in keys])

    def _submit(self, operations: list[Operation]) -> None:
        if operations:
            self._queue._run(self._queue._live._session.submit_all(operations))


def _is_over(job: Job) -> bool:
    return job.status not in (JobStatus.QUEUED, JobStatus.IN_PROGRESS)


def _has_begun(job: Job) -> bool:
    return job.status is JobStatus.IN_PROGRESS or job.attempts > 0
