"""QueueCTL's `queue.db`: shell commands with their states, attempts and times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from casque.job import Job, JobStatus
from casque.transfer.report import NotTaken
from casque.transfer.sources.found_jobs import (
    ImportOptions,
    checked,
    instant_us,
    running,
    without_id,
)
from casque.transfer.sources.sqlite_file import SqliteFile
from casque.transfer.taking import FoundJob
from casque.worker.shell.job import SHELL, ShellCall, encode, succeeded

TABLE = "jobs"
NEEDED = ("id", "command", "state")

_COLUMNS = (
    *("id", "command", "state", "attempts", "max_retries", "created_at", "updated_at", "run_at"),
    *("priority", "error", "last_error"),
)
_WAITING = ("pending", "failed")
_FINISHED = {"completed": JobStatus.COMPLETED, "dead": JobStatus.DEAD}


def is_in(file: SqliteFile) -> bool:
    return file.has(TABLE, *NEEDED)


def jobs_in(file: SqliteFile, options: ImportOptions) -> Iterator[FoundJob | NotTaken]:
    for number, row in enumerate(file.rows(TABLE, _COLUMNS, "rowid"), start=1):
        odd = without_id(f"{TABLE} {number}", row[0])
        yield odd or _found(dict(zip(_COLUMNS, row, strict=True)), options)


def _found(row: dict[str, Any], options: ImportOptions) -> FoundJob | NotTaken:
    name, command, state = str(row["id"]), row["command"], str(row["state"]).lower()
    if not isinstance(command, str) or not command.strip() or _has_odd_bytes(command):
        return NotTaken(name, "it has no command that is text")
    if state == "processing":
        if not options.take_running:
            return running(name)
        state = "failed"
    if state not in (*_WAITING, *_FINISHED):
        return NotTaken(name, f"its state {state!r} is unknown")
    created = instant_us(row["created_at"], options.now)
    updated = instant_us(row["updated_at"], created)
    attempts = _whole(row["attempts"], 0)
    most = max(_whole(row["max_retries"], 3), 1)
    status = _FINISHED.get(state, JobStatus.QUEUED)
    call = ShellCall(command)
    is_done = status is JobStatus.COMPLETED
    expires = options.now + options.retention_us if is_done else options.dead_expires_us
    job = Job(
        id=name,
        entrypoint=SHELL,
        payload=b"" if is_done else encode(call),
        result=msgspec.json.encode(succeeded(call)) if is_done else None,
        status=status,
        priority=_whole(row["priority"], 0),
        attempts=attempts,
        # A waiting job always has an attempt left, as it has there.
        max_attempts=max(most, attempts + 1) if status is JobStatus.QUEUED else most,
        error=None if is_done else _text(row["error"] or row["last_error"]),
        created_us=created,
        updated_us=updated,
        run_us=instant_us(row["run_at"], created),
        finished_us=None if status is JobStatus.QUEUED else updated,
        expires_us=None if status is JobStatus.QUEUED else expires,
        retain_us=options.retention_us,
    )
    return checked(job, f"queuectl\0{name}\0{row['created_at']}\0{command}", options)


def _has_odd_bytes(text: str) -> bool:
    return "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text)


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _text(value: object) -> str | None:
    return None if value is None else str(value).encode(errors="replace").decode()
