"""persist-queue: its SQLite files, and the folders of its file queue.

An item is any Python value. Bytes become the payload unchanged; other values become JSON.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from casque.errors import CorruptError, InvalidError
from casque.job import Job, JobStatus
from casque.tasks import json_types
from casque.transfer.report import NotTaken
from casque.transfer.sources import pickles
from casque.transfer.sources.found_jobs import ImportOptions, checked, instant_us, running
from casque.transfer.sources.sqlite_file import SqliteFile
from casque.transfer.taking import FoundJob

NAME = "persist-queue"
DATABASE = "data.db"
INFO = "info"

_TABLE = re.compile(r"(ack_)?(filo_|priority_|unique_)?queue_.+")
_COLUMNS = ("_id", "data", "timestamp", "status", "priority")
_UNACKED, _ACKED, _FAILED = 2, 5, 9
_PICKLE = b"\x80"


def tables_in(file: SqliteFile) -> list[str]:
    """The tables that are queues of persist-queue."""
    return [
        name
        for name in file.tables()
        if _TABLE.fullmatch(name) and file.has(name, "_id", "data", "timestamp")
    ]


def jobs_in(file: SqliteFile, options: ImportOptions) -> Iterator[FoundJob | NotTaken]:
    options.named(NAME)
    for table in tables_in(file):
        order = '"_id" DESC' if "filo_queue_" in table else '"_id"'
        for row in file.rows(table, _COLUMNS, order):
            if row[3] != _ACKED:
                yield _from_row(table, row, options)


def _from_row(table: str, row: tuple[Any, ...], options: ImportOptions) -> FoundJob | NotTaken:
    number, data, timestamp, status, priority = row
    name = f"{table} {number}"
    if status == _UNACKED and not options.take_running:
        return running(name)
    if isinstance(data, str):
        data = data.encode(errors="surrogateescape")
    try:
        payload = _payload(_value(data))
    except InvalidError as error:
        return NotTaken(name, str(error))
    created = instant_us(timestamp, options.now)
    is_dead = status == _FAILED
    job = Job(
        id=_id(f"{table}-{number}", data, timestamp),
        entrypoint=options.named(NAME),
        payload=payload,
        priority=priority or 0,
        status=JobStatus.DEAD if is_dead else JobStatus.QUEUED,
        attempts=int(status in (_UNACKED, _FAILED)),
        error="failed in persist-queue" if is_dead else None,
        created_us=created,
        run_us=created,
        updated_us=created,
        finished_us=created if is_dead else None,
        expires_us=options.dead_expires_us if is_dead else None,
    )
    return checked(job, f"{NAME}\0{job.id}", options)


# -- a folder ----------------------------------------------------------------------


_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Info(msgspec.Struct):
    """Where the first item of a folder is, and where the next one will be."""

    chunksize: _Number
    size: _Number
    tail: tuple[_Number, _Number, _Number]
    head: tuple[_Number, _Number, _Number]


def folder_size(path: Path) -> int:
    return _info(path).size


def jobs_in_folder(path: Path, options: ImportOptions) -> Iterator[FoundJob | NotTaken]:
    entrypoint = options.named(NAME)
    info = _info(path)
    number, place, offset = info.tail
    while [number, place] < list(info.head[:2]):
        last = info.head[1] if number == info.head[0] else info.chunksize
        chunk = path / f"q{number:05d}"
        with chunk.open("rb") as file:
            file.seek(offset)
            for place_now in range(place, last):
                if not file.peek(1):
                    yield NotTaken(chunk.name, f"it ends before item {place_now} of {last}")
                    break
                yield _from_chunk(file, f"{chunk.name}-{place_now}", entrypoint, options)
        number, place, offset = number + 1, 0, 0


def _from_chunk(
    file: BinaryIO, name: str, entrypoint: str, options: ImportOptions
) -> FoundJob | NotTaken:
    begun = file.tell()
    is_pickle = file.read(1) == _PICKLE
    file.seek(begun)
    if not is_pickle:
        data = file.readline()
    else:
        # The extent of a pickle is found without reading its values.
        try:
            data = _one_pickle(file)
        except ValueError as error:
            raise CorruptError(
                f"{file.name}: the item at byte {begun:,} is damaged: {error}. Nothing was "
                "changed. The items after it cannot be found; use a backup of the folder."
            ) from error
    try:
        payload = _payload(_value(data))
    except InvalidError as error:
        return NotTaken(name, str(error))
    now = options.now
    job = Job(
        id=_id(name, data, None),
        entrypoint=entrypoint,
        payload=payload,
        created_us=now,
        run_us=now,
        updated_us=now,
    )
    return checked(job, f"{NAME}\0{job.id}", options)


def _one_pickle(file: BinaryIO) -> bytes:
    from pickletools import genops  # noqa: PLC0415 - slow to load, and rarely needed

    begun = file.tell()
    for _ in genops(file):
        pass
    ended = file.tell()
    file.seek(begun)
    return file.read(ended - begun)


def _info(path: Path) -> _Info:
    content = (path / INFO).read_bytes()
    try:
        return msgspec.convert(_value(content), _Info)
    except (InvalidError, msgspec.ValidationError) as error:
        raise CorruptError(
            f"{path / INFO} is not the index of a persist-queue folder: {error}. Nothing was "
            "changed."
        ) from error


# -- values ------------------------------------------------------------------------


def _value(data: object) -> Any:
    if not isinstance(data, bytes):
        raise InvalidError(f"its data is {type(data).__name__}, not bytes")
    if data.startswith(_PICKLE):
        return pickles.loads(data)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidError("its data is neither a pickle nor JSON") from None


def _payload(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    pickles.require_small(value)
    try:
        payload = json_types.encode(value)
    except Exception as error:  # noqa: BLE001 - msgspec raises many kinds
        raise InvalidError(f"it is not JSON: {json_types.why_not(value, error)}") from None
    if b"null" in payload and (found := json_types.non_finite(value)) is not None:
        raise InvalidError(f"JSON has no {found}")
    return payload


def _id(name: str, data: bytes, timestamp: object) -> str:
    """An id that is the same at each import. The source may use a number again."""
    digest = hashlib.blake2b(data + repr(timestamp).encode(), digest_size=8).hexdigest()
    return f"{name}-{digest}"
