"""Lines of JSON: the jobs of a store, as `export` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from casque.errors import CorruptError
from casque.stores.document.codec import decode_job
from casque.transfer.report import NotTaken
from casque.transfer.sources.found_jobs import ImportOptions, checked
from casque.transfer.taking import FoundJob


def jobs_in(path: Path, options: ImportOptions) -> Iterator[FoundJob | NotTaken]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                job = decode_job(line)
            except CorruptError as error:
                yield NotTaken(f"line {number}", str(error))
                continue
            if job.is_gone(options.now):
                yield NotTaken(job.id, "its record has expired")
                continue
            yield checked(job, f"job\0{job.id}\0{job.created_us}", options)


def count_in(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())
