"""jqueue's JSON file: its jobs, queued or in progress."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from casque.stores.document.codec import decode
from casque.transfer.report import NotTaken
from casque.transfer.sources.found_jobs import ImportOptions, checked
from casque.transfer.taking import FoundJob


def jobs_in(path: Path, options: ImportOptions) -> Iterator[FoundJob | NotTaken]:
    """The jobs of the file. Raises CorruptError if it is not a file of jqueue.

    jqueue stores no lease: a job without a heartbeat for five minutes counts as queued.
    """
    state = decode(path.read_bytes(), str(path))
    for job in sorted(state.jobs.values(), key=lambda job: job.seq):
        yield checked(job, f"job\0{job.id}\0{job.created_us}", options)


def count_in(path: Path) -> int:
    return len(decode(path.read_bytes(), str(path)).jobs)
