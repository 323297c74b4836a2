"""litequeue's SQLite file: text messages with the times of each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from casque.job import Job, JobStatus
from casque.transfer.report import NotTaken
from casque.transfer.sources.found_jobs import ImportOptions, checked, running, without_id
from casque.transfer.sources.sqlite_file import SqliteFile
from casque.transfer.taking import FoundJob

_COLUMNS = ("data", "message_id", "status", "in_time", "lock_time", "done_time")
_READY, _LOCKED, _DONE, _FAILED = range(4)
_NANOSECONDS = 1_000


def tables_in(file: SqliteFile) -> list[str]:
    """The tables that are queues of litequeue."""
    return [name for name in file.tables() if file.has(name, *_COLUMNS)]


def jobs_in(file: SqliteFile, options: ImportOptions) -> Iterator[FoundJob | NotTaken]:
    options.named("litequeue")
    for table in tables_in(file):
        rows = file.rows(table, _COLUMNS, '"message_id"', where=f'"status" <> {_DONE}')
        for number, row in enumerate(rows, start=1):
            yield without_id(f"{table} {number}", row[1]) or _found(table, row, options)


def _found(table: str, row: tuple[Any, ...], options: ImportOptions) -> FoundJob | NotTaken:
    data, message_id, status, in_time, _, done_time = row
    name = str(message_id)
    if status == _LOCKED and not options.take_running:
        return running(name)
    if status not in (_READY, _LOCKED, _FAILED):
        return NotTaken(name, f"its status {status!r} is unknown")
    is_dead = status == _FAILED
    created = _microseconds(in_time, options.now)
    finished = _microseconds(done_time, created)
    job = Job(
        id=name,
        entrypoint=options.named("litequeue"),
        payload=data.encode(errors="surrogateescape") if isinstance(data, str) else data,
        status=JobStatus.DEAD if is_dead else JobStatus.QUEUED,
        attempts=int(status != _READY),
        error="failed in litequeue" if is_dead else None,
        created_us=created,
        run_us=created,
        updated_us=finished if is_dead else created,
        finished_us=finished if is_dead else None,
        expires_us=options.dead_expires_us if is_dead else None,
    )
    return checked(job, f"litequeue\0{table}\0{name}\0{in_time}", options)


def _microseconds(nanoseconds: object, otherwise: int) -> int:
    return nanoseconds // _NANOSECONDS if isinstance(nanoseconds, int) else otherwise
