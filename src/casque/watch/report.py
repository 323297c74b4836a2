"""Report: what a watcher says, to a log or to a terminal."""

from __future__ import annotations

import logging
from typing import Protocol

from casque.job import Job

_log = logging.getLogger("casque.watch")


class Report(Protocol):
    """What happens while files are watched."""

    def watching(self, folders: int) -> None:
        """All folders are now watched."""
        ...

    def enqueued(self, job: Job, path: str) -> None:
        """A file has a job. `job.duplicate`: this content had the job before."""
        ...

    def skipped(self, path: str, why: str) -> None: ...

    def folder_vanished(self, path: str) -> None: ...

    def folder_returned(self, path: str) -> None: ...

    def store_failed(self, error: Exception) -> None:
        """The store does not answer. Nothing is lost: the watcher tries again."""
        ...

    def store_answers(self) -> None:
        """The store answers again."""
        ...


class LogReport:
    """Writes to the logger `casque.watch`."""

    def watching(self, folders: int) -> None:
        _log.info("watching %d folder(s)", folders)

    def enqueued(self, job: Job, path: str) -> None:
        if not job.duplicate:
            _log.info("%s: job %s enqueued for %s", job.entrypoint, job.id, path)

    def skipped(self, path: str, why: str) -> None:
        _log.warning("%r was skipped: %s", path, why)

    def folder_vanished(self, path: str) -> None:
        _log.warning("the folder %s is gone: waiting until it returns", path)

    def folder_returned(self, path: str) -> None:
        _log.info("the folder %s is back", path)

    def store_failed(self, error: Exception) -> None:
        _log.warning("the store does not answer, trying again: %s", error)

    def store_answers(self) -> None:
        _log.info("the store answers again")
