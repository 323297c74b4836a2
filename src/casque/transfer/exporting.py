"""export: the jobs of a store as lines of JSON, or as one JSON object for jqueue."""

from __future__ import annotations

from collections.abc import Iterator
from io import TextIOBase
from typing import IO

from casque import checks
from casque.errors import InvalidError
from casque.job import Job, JobStatus
from casque.rules.views import JobFilter
from casque.stores.document.codec import encode_job, encode_job_for_jqueue
from casque.stores.url import StoreAddress
from casque.system.clock import to_datetime
from casque.transfer.opened_store import OpenedStore
from casque.transfer.report import NotTaken, Progress, TransferReport

JSONL, JQUEUE = EXPORT_FORMATS = ("jsonl", "jqueue")


def export(
    source: StoreAddress,
    file: IO[bytes],
    *,
    format: str = JSONL,  # noqa: A002 - the word for it
    queue: str | None = None,
    progress: Progress = lambda _done, _total: None,
) -> TransferReport:
    """Write the jobs of a store to `file`, in enqueue order. The store is not changed.

    `jsonl` has every job with all its fields, one on each line. `jqueue` has what jqueue can
    hold: the queued jobs that are due, those in progress, and the dead ones. The report lists
    the others.
    """
    if not _is_binary(file):
        raise InvalidError(
            f'`file` must be a binary file, not {checks.kind_of(file)}: write open(path, "wb").'
        )
    if format not in EXPORT_FORMATS:
        raise InvalidError(
            f"there is no format {format!r}; choose one of {', '.join(EXPORT_FORMATS)}."
        )
    wanted = JobFilter(queue=None if queue is None else checks.name(queue, "queue"))
    with OpenedStore(source, must_exist=True) as here:
        report = TransferReport(here.name)
        total = here.count() if queue is None else None
        jobs = _reported(here, wanted, report, progress, total)
        if format == JSONL:
            for job in jobs:
                file.write(encode_job(job) + b"\n")
                report.added += 1
        else:
            _write_for_jqueue(jobs, file, report, here.now())
    return report


def _is_binary(file: object) -> bool:
    return hasattr(file, "write") and not isinstance(file, TextIOBase)


def _reported(
    here: OpenedStore,
    wanted: JobFilter,
    report: TransferReport,
    progress: Progress,
    total: int | None,
) -> Iterator[Job]:
    for page in here.pages(wanted):
        yield from page
        progress(report.seen, total)


def _write_for_jqueue(
    jobs: Iterator[Job], file: IO[bytes], report: TransferReport, now: int
) -> None:
    before = b'{\n  "version": 1,\n  "jobs": ['
    for job in jobs:
        why = _not_for_jqueue(job, now)
        if why:
            report.not_taken.append(NotTaken(job.id, why))
            continue
        file.write(before + b"\n    " + encode_job_for_jqueue(job))
        before = b","
        report.added += 1
    file.write((before if report.added == 0 else b"\n  ") + b"]\n}\n")


def _not_for_jqueue(job: Job, now: int) -> str:
    """Why jqueue cannot hold a job; empty if it can."""
    if job.status is JobStatus.QUEUED:
        if job.run_us > now:
            return f"it is not due before {to_datetime(job.run_us).isoformat()}"
        return ""
    if job.status in (JobStatus.IN_PROGRESS, JobStatus.DEAD):
        return ""
    return f"it is {job.status.value}"
