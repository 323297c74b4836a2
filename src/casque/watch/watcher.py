"""Watcher: the loop in which changes are gathered, settle, and become jobs. Begin at `run`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from msgspec.structs import replace

from casque.errors import CASConflictError, InvalidError, StorageError
from casque.queues.arguments import NewJob
from casque.queues.sync_queue import Queue
from casque.system.clock import SECOND_US
from casque.watch import notifications
from casque.watch.contents import Content, Names, Signature, content_of, signature_of
from casque.watch.folders import Folder
from casque.watch.own_jobs import OwnJobs, Progress
from casque.watch.report import Report

SHORTEST_DEBOUNCE_US = 100_000
"""With a shorter time, two contents could have the same time of change."""
_SWEEP_US = 30 * SECOND_US
"""How often all files are compared: the kernel drops changes when there are too many at once, and
knows nothing of changes that another machine makes on a network drive."""
_SWEEP_SHARE = 50
"""Sweeps take at most 1/50 of the time."""
_STORE_PAUSE_US = 2 * SECOND_US
_AT_ONCE = 1_000


class _Known(NamedTuple):
    """A file's last known state."""

    signature: Signature
    digest: str | None
    """None: the content was not read: the file is old, or cannot be read."""


class _Found(NamedTuple):
    """A settled content without a job."""

    path: str
    content: Content
    job: NewJob


class Watcher:
    """Enqueues one job for each settled content of the files in some folders.

    A content has settled when its file did not change for the debounce time. The id of a job
    comes from path and content, so a content gets no second job while the record of the
    first exists. The content of a file at the end of its job gets no new job. This includes
    changes that other programs made while the job ran.
    """

    def __init__(
        self,
        queue: Queue,
        folders: Sequence[Folder],
        job_for: Callable[[str], NewJob],
        names: Names,
        *,
        report: Report,
        debounce_us: int = SECOND_US,
        is_recursive: bool = False,
        takes_existing: bool = False,
    ) -> None:
        """`job_for` makes the job for a path, without an id."""
        self._queue = queue
        self._clock = queue.store.clock
        self._folders = folders
        self._job_for = job_for
        self._names = names
        self._report = report
        self._debounce_us = debounce_us
        self._is_recursive = is_recursive
        self._takes_existing = takes_existing
        self._own_jobs = OwnJobs(queue, names)
        self._known: dict[str, _Known] = {}
        self._dirty: dict[str, int] = {}
        """The files that changed, and when they did for the last time."""
        self._scanned: set[Folder] = set()
        self._sweep_us = 0
        self._retry_us: int | None = None
        """When to ask the store again; None while it answers."""
        self.enqueued = 0
        """How many jobs were added."""

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set. Raises InvalidError, and the store's errors at the start."""
        example = self._job_for(f"{self._folders[0].path}/example")
        self._own_jobs.recall(example.entrypoint, example.queue)
        reported = notifications.changes(
            self._folders, stop, self._report, is_recursive=self._is_recursive
        )
        for changed in reported:
            now = self._clock.monotonic()
            for path in changed.paths:
                self._touch(path, now)
            for folder in changed.appeared:
                self._scan(folder, now)
            if now >= self._sweep_us:
                self._sweep(now)
            if self._retry_us is None or now >= self._retry_us:
                with self._patience(now):
                    self._notice_ends()
                    self._settle(now)
        with self._patience(self._clock.monotonic()):
            self._own_jobs.poll_now()
            self._notice_ends()

    # -- changes -------------------------------------------------------------------

    def _touch(self, path: str, now: int) -> None:
        """Note a file that may have changed, or the files of a new folder."""
        for folder in self._folders:
            if folder.wants(path) and signature_of(path) is not None:
                self._dirty[path] = now
            else:
                # The kernel reports a new folder, but not all files that were in it by then.
                for file in folder.files(under=path):
                    self._dirty[file] = now

    def _scan(self, folder: Folder, now: int) -> None:
        """Look at all files of a folder that is watched from now on."""
        is_first = folder not in self._scanned
        for path in folder.files():
            signature = signature_of(path)
            if signature is None or path in self._dirty:
                continue
            self._own_jobs.meet(path)
            if is_first and not self._takes_existing:
                self._known.setdefault(path, _Known(signature, None))
            elif path not in self._known or self._known[path].signature != signature:
                self._dirty[path] = now
        self._scanned.add(folder)
        self._sweep_us = now + _SWEEP_US
        if is_first and len(self._scanned) == len(self._folders):
            self._report.watching(len(self._folders))

    def _sweep(self, now: int) -> None:
        """Find changes that were not reported, and forget files that are gone."""
        there = [folder for folder in self._scanned if folder.identity is not None]
        found: set[str] = set()
        for folder in there:
            for path in folder.files():
                found.add(path)
                known = self._known.get(path)
                if known is None or known.signature != signature_of(path):
                    self._dirty.setdefault(path, now)
        gone = [path for path in self._known if path not in found and _is_in(there, path)]
        for path in gone:
            del self._known[path]
        with self._patience(now):
            self._own_jobs.forget(gone)
        took = self._clock.monotonic() - now
        self._sweep_us = now + max(_SWEEP_US, took * _SWEEP_SHARE)

    # -- contents ------------------------------------------------------------------

    def _settle(self, now: int) -> None:
        """Enqueue jobs for settled contents, many in one commit."""
        ready = [path for path, at in self._dirty.items() if now - at >= self._debounce_us]
        for start in range(0, len(ready), _AT_ONCE):
            found = [one for path in ready[start : start + _AT_ONCE] if (one := self._judge(path))]
            if not found:
                continue
            for one, job in zip(found, self._queue.enqueue_many(x.job for x in found), strict=True):
                self._dirty.pop(one.path, None)
                self._known[one.path] = _Known(one.content.signature, one.content.digest)
                self._own_jobs.add(job, one.path)
                self.enqueued += not job.duplicate
                self._report.enqueued(job, one.path)

    def _judge(self, path: str) -> _Found | None:
        """The job for a file that did not change for a while; None if it needs none (yet)."""
        known = self._known.get(path)
        if known is not None and known.digest is None and known.signature == signature_of(path):
            del self._dirty[path]  # only its owner or its rights have changed
            return None
        content = self._read(path)
        if content is None:
            return None
        is_seen = known is not None and known.digest == content.digest
        if is_seen or self._own_jobs.has_left(path, content.digest):
            self._see(path, content)
            return None
        # The jobs are read after the content. If none has begun by now, none has written it.
        progress = self._own_jobs.progress(path)
        if progress is Progress.BEGUN:
            del self._dirty[path]  # at its end the content counts as seen
            return None
        if progress is Progress.ENDED:
            self._own_jobs.remember([(path, content.digest)])
            self._see(path, content)
            return None
        return self._new(path, content)

    def _read(self, path: str) -> Content | None:
        """The content, if it has settled; otherwise None."""
        try:
            content = content_of(path)
        except OSError as error:
            del self._dirty[path]
            if (signature := signature_of(path)) is not None:
                self._known[path] = _Known(signature, None)  # until it changes
            self._report.skipped(path, f"it cannot be read: {error.strerror or error}")
            return None
        if content is None:
            del self._dirty[path]
        elif not content.is_whole:
            self._dirty[path] = self._clock.monotonic()
            return None
        return content

    def _see(self, path: str, content: Content) -> None:
        self._known[path] = _Known(content.signature, content.digest)
        self._dirty.pop(path, None)

    def _new(self, path: str, content: Content) -> _Found | None:
        try:
            job = replace(self._job_for(path), id=self._names.job_id(path, content.digest))
        except InvalidError as error:
            self._see(path, content)
            self._report.skipped(path, str(error))
            return None
        return _Found(path, content, job)

    def _notice_ends(self) -> None:
        """Mark the content of each file whose job has ended as seen."""
        left: list[tuple[str, str]] = []
        for job_id, path in self._own_jobs.ended():
            try:
                content = content_of(path)
            except OSError:
                continue
            if content is None or not content.is_whole:
                continue
            if self._names.job_id(path, content.digest) != job_id:
                left.append((path, content.digest))
            self._see(path, content)
        self._own_jobs.remember(left)

    # -- the store -----------------------------------------------------------------

    @contextmanager
    def _patience(self, now: int) -> Iterator[None]:
        """If the store fails, try again later. This is safe: a job's id stays the same."""
        try:
            yield
        except (StorageError, CASConflictError) as error:
            if self._retry_us is None:
                self._report.store_failed(error)
            self._retry_us = now + _STORE_PAUSE_US
        else:
            if self._retry_us is not None and now >= self._retry_us:
                self._retry_us = None
                self._report.store_answers()


def _is_in(folders: Sequence[Folder], path: str) -> bool:
    return any(folder.has(path) for folder in folders)
