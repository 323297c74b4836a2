"""import_file: the jobs in a file of another queue, recognised by its content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from casque import checks
from casque.errors import InvalidError
from casque.record import CONFIG
from casque.stores.url import StoreAddress
from casque.transfer.opened_store import OpenedStore
from casque.transfer.report import NotTaken, Progress, TransferReport
from casque.transfer.sources import huey, jqueue, jsonl, litequeue, persistqueue, queuectl
from casque.transfer.sources.found_jobs import ImportOptions
from casque.transfer.sources.sqlite_file import HEADER, SqliteFile, opened
from casque.transfer.taking import FoundJob, Taker
from casque.worker.shell.settings import settings_of

JQUEUE, JSONL, QUEUECTL, HUEY, PERSIST_QUEUE, LITEQUEUE = FORMATS = (
    *("jqueue", "jsonl", "queuectl", "huey", "persist-queue", "litequeue"),
)

_OWN_TABLE = "casque_meta"
_LINE_BYTES = 64 * 1024 * 1024

FoundJobs = Iterator[FoundJob | NotTaken]


class _Source(NamedTuple):
    """A recognised file: its format, the number of its jobs, and how to read them."""

    format: str
    total: int
    jobs: Callable[[ImportOptions], FoundJobs]


def import_file(
    path: str | os.PathLike[str],
    target: StoreAddress,
    *,
    format: str | None = None,  # noqa: A002 - the word for it
    entrypoint: str | None = None,
    queue: str | None = None,
    take_running: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> TransferReport:
    """Add the jobs of a file of another queue to `target`. The file is not changed.

    The content shows the format, which must be `format` if that is given. A job that an
    earlier import has taken is not added again. Jobs that are in progress in the source are
    left out, unless `take_running` says that nothing works on them any more.

    `entrypoint` and `queue` replace the names of the source. Formats whose items have no names
    need `entrypoint`. Raises InvalidError for a file in none of `FORMATS`, and
    CorruptError for a damaged file.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidError(f"`path` must be text or a path, not {checks.kind_of(path)}.")
    if format is not None and format not in FORMATS:
        raise InvalidError(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}.")
    names = {
        "entrypoint": None if entrypoint is None else checks.name(entrypoint, "entrypoint"),
        "queue": None if queue is None else checks.name(queue, "queue"),
    }
    with _recognised(Path(path), format) as source, OpenedStore(target) as there:
        if there.path is not None and there.path.resolve() == Path(path).resolve():
            raise InvalidError(f"{path} is the store itself. Import it into another store.")
        options = ImportOptions(
            there.now(),
            take_running=take_running,
            retention_us=settings_of(there.records(CONFIG)).retention_us,
            dead_expires_us=there.dead_expiry(),
            **names,
        )
        report = TransferReport(source.format)
        jobs = source.jobs(options)
        taker = Taker(there, report, progress, source.total)
        taker.take(jobs)
        taker.flush()
    return report


@contextmanager
def _recognised(path: Path, wanted: str | None) -> Iterator[_Source]:
    try:
        if path.is_dir():
            with _in_folder(path) as source:
                yield _required(path, source, wanted)
        elif not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise InvalidError(f"{path} {what}. Name the file to import, or its folder.")
        elif _begins(path, HEADER):
            with opened(path) as file:
                yield _required(path, _in_database(file), wanted)
        else:
            yield _required(path, _in_text(path), wanted)
    except OSError as error:
        raise InvalidError(f"{path} cannot be read: {error.strerror or error}.") from error


def _required(path: Path, source: _Source | None, wanted: str | None) -> _Source:
    if source is None:
        raise InvalidError(
            f"{path} was not recognised: it is none of {', '.join(FORMATS)}. Nothing was imported."
        )
    if wanted not in (None, source.format):
        raise InvalidError(f"{path} is a file of {source.format}, not of {wanted}.")
    return source


def _begins(path: Path, with_bytes: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(with_bytes)) == with_bytes


@contextmanager
def _in_folder(path: Path) -> Iterator[_Source | None]:
    if (path / persistqueue.DATABASE).is_file():
        with opened(path / persistqueue.DATABASE) as file:
            yield _in_database(file)
    elif (path / persistqueue.INFO).is_file():
        yield _Source(
            PERSIST_QUEUE,
            persistqueue.folder_size(path),
            lambda options: persistqueue.jobs_in_folder(path, options),
        )
    else:
        yield None


def _in_database(file: SqliteFile) -> _Source | None:
    if _OWN_TABLE in file.tables():
        raise InvalidError(
            f"{file.path} is a store of casque: use `queuectl copy --from {file.path} --to URL`."
        )
    if queuectl.is_in(file):
        count = file.count(queuectl.TABLE)
        return _Source(QUEUECTL, count, lambda options: queuectl.jobs_in(file, options))
    if huey.is_in(file):
        return _Source(HUEY, huey.count_in(file), lambda options: huey.jobs_in(file, options))
    if tables := persistqueue.tables_in(file):
        count = sum(map(file.count, tables))
        return _Source(PERSIST_QUEUE, count, lambda options: persistqueue.jobs_in(file, options))
    if tables := litequeue.tables_in(file):
        count = sum(map(file.count, tables))
        return _Source(LITEQUEUE, count, lambda options: litequeue.jobs_in(file, options))
    return None


_NOTHING = msgspec.Raw()


class _JsonHead(msgspec.Struct):
    version: int | None = None
    jobs: msgspec.Raw = _NOTHING
    casque: msgspec.Raw = _NOTHING
    id: str | None = None
    entrypoint: str | None = None


def _in_text(path: Path) -> _Source | None:
    """A file of JSON: one object of jqueue, or one job on each line."""
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(_LINE_BYTES), b"")
        first = next((line for line in lines if line.strip()), b"")
    head = _decoded(first)
    if head is not None and head.id is not None and head.entrypoint is not None:
        return _Source(JSONL, jsonl.count_in(path), lambda options: jsonl.jobs_in(path, options))
    head = head or _decoded(path.read_bytes())
    if head is None or not bytes(head.jobs) or head.version is None:
        return None
    if bytes(head.casque):
        raise InvalidError(
            f"{path} is a store of casque: use `queuectl copy --from {path} --to URL`."
        )
    return _Source(JQUEUE, jqueue.count_in(path), lambda options: jqueue.jobs_in(path, options))


def _decoded(content: bytes) -> _JsonHead | None:
    try:
        return msgspec.json.decode(content, type=_JsonHead)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
