"""huey's SQLite file: tasks by name, with their arguments as JSON.

A huey task is named by its module and function. The entrypoint is the function
alone, as in casque. huey runs the highest priority first, casque the lowest number.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from casque.errors import InvalidError
from casque.job import Job
from casque.system.clock import DAY_US, SECOND_US
from casque.tasks.calls import STARRED, encode_unchecked
from casque.transfer.report import NotTaken
from casque.transfer.sources import pickles
from casque.transfer.sources.found_jobs import ImportOptions, checked, instant_us
from casque.transfer.sources.sqlite_file import SqliteFile
from casque.transfer.taking import FoundJob

TASKS, SCHEDULE, VALUES = "task", "schedule", "kv"

_COLUMNS = ("id", "queue", "data")
_RETAIN_US = DAY_US


class _Message(msgspec.Struct):
    """huey's message. Older versions of huey write fewer fields."""

    id: str
    name: str
    eta: datetime | None = None
    retries: int | None = None
    retry_delay: Any = None
    priority: float | None = None
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    on_complete: Any = None
    on_error: Any = None
    expires: Any = None
    expires_resolved: datetime | None = None
    timeout: float | None = None
    chord_config: Any = None
    retry_backoff: Any = None


class _Row(NamedTuple):
    """A row of table `task`, or of `schedule` with a timestamp."""

    name: str
    queue: Any
    data: Any
    timestamp: Any = None


def is_in(file: SqliteFile) -> bool:
    return file.has(TASKS, "queue", "data", "priority") and file.has(
        SCHEDULE, "queue", "data", "timestamp"
    )


def count_in(file: SqliteFile) -> int:
    return file.count(TASKS) + file.count(SCHEDULE)


def jobs_in(file: SqliteFile, options: ImportOptions) -> Iterator[FoundJob | NotTaken]:
    revoked = _revoked(file)
    for number, queue, data in file.rows(TASKS, _COLUMNS, '"priority" DESC, "id"'):
        yield _found(_Row(f"{TASKS} {number}", queue, data), revoked, options)
    later = file.rows(SCHEDULE, (*_COLUMNS, "timestamp"), '"timestamp", "id"')
    for number, queue, data, timestamp in later:
        yield _found(_Row(f"{SCHEDULE} {number}", queue, data, timestamp), revoked, options)


def _revoked(file: SqliteFile) -> set[tuple[str, str]]:
    """The queue and key of each revocation: of a task, or of a task name."""
    if not file.has(VALUES, "queue", "key"):
        return set()
    keys = file.rows(VALUES, ("queue", "key"), "rowid", where="substr(\"key\", 1, 1) = 'r'")
    return {(str(queue), _text(key)) for queue, key in keys}


def _found(row: _Row, revoked: set[tuple[str, str]], options: ImportOptions) -> FoundJob | NotTaken:
    queue = str(row.queue)
    try:
        message = _message(row.data)
    except InvalidError as error:
        return NotTaken(row.name, str(error))
    name = f"{message.name} {message.id}"
    if {(queue, f"r:{message.id}"), (queue, f"rt:{message.name}")} & revoked:
        return NotTaken(name, "it is revoked")
    if message.on_complete is not None or message.on_error is not None or message.chord_config:
        return NotTaken(name, "it is part of a pipeline or a chord; enqueue it again with casque")
    if message.expires is not None or message.expires_resolved is not None:
        return NotTaken(name, "it has an expiry, which casque does not have")
    task = message.name.rpartition(".")[2]
    try:
        job = _job(task, message, row, options.now)
    except (InvalidError, OverflowError, ValueError) as error:
        return NotTaken(name, str(error))
    return checked(job, f"huey\0{queue}\0{message.id}", options)


def _job(task: str, message: _Message, row: _Row, now: int) -> Job:
    return Job(
        id=message.id,
        entrypoint=task,
        payload=_payload(task, message),
        queue=str(row.queue),
        priority=-round(message.priority or 0),
        max_attempts=(message.retries or 0) + 1,
        created_us=now,
        updated_us=now,
        run_us=_due_us(message, row, now),
        retain_us=_RETAIN_US,
        timeout_us=None if message.timeout is None else int(message.timeout * SECOND_US),
    )


def _due_us(message: _Message, row: _Row, now: int) -> int:
    """When a task is due. A time without a zone is UTC, which is huey's default.

    A task with a time is in the table `task` until a consumer has seen it. The timestamp in
    `schedule` treats that time as local, so it is wrong by the zone's offset.
    """
    return instant_us(row.timestamp if message.eta is None else message.eta, now)


def _message(data: object) -> _Message:
    if not isinstance(data, bytes):
        raise InvalidError(f"its data is {type(data).__name__}, not bytes")
    fields = pickles.loads(data)
    if not isinstance(fields, pickles.PickledMessage):
        raise InvalidError("its pickle is not a message of huey")
    try:
        named = dict(zip(_Message.__struct_fields__, fields, strict=False))
        return msgspec.convert(named, _Message)
    except (TypeError, msgspec.ValidationError) as error:
        raise InvalidError(f"its message is not one of huey's: {error}") from None


def _payload(task: str, message: _Message) -> bytes:
    given: dict[str, Any] = dict(message.kwargs or {})
    if STARRED in given:
        raise InvalidError(f"an argument is named {STARRED!r}")
    if message.args:
        given[STARRED] = list(message.args)
    pickles.require_small(given)
    return encode_unchecked(task, given)


def _text(key: object) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else str(key)
