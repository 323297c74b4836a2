"""`queuectl import|export|copy`: jobs from files, to files, and between stores."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, Annotated

import typer

from casque.cli.interrupts import Interrupts
from casque.cli.options import QueueOption, address_of, is_json
from casque.cli.output import DONE, NOT_SO, complain, print_json, progress_bar
from casque.cli.store import require_sensible, require_shared
from casque.errors import InvalidError
from casque.stores.url import StoreAddress, open_store
from casque.system.terminal_text import counted, cut, plain

if TYPE_CHECKING:
    from casque.transfer.report import Progress, TransferReport

IMPORT_EXAMPLES = ("queuectl import queue.json", "queuectl import huey.db --queue mail")
EXPORT_EXAMPLES = (
    "queuectl export > jobs.jsonl",
    "queuectl export --format jqueue --output queue.json",
)
COPY_EXAMPLES = ("queuectl copy --from jobs.db --to s3://bucket/jobs --pause",)

_LISTED = 20
"""Text output lists at most this many jobs that were not taken."""
_LONGEST_REASON = 300
_QUEUES_SHOWN = 5


def import_jobs(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file or folder to read.")],
    *,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FORMAT",
            help="jqueue, jsonl, queuectl, huey, persist-queue or litequeue. Default: recognised.",
        ),
    ] = None,
    entrypoint: Annotated[
        str | None,
        typer.Option(
            "--entrypoint", "-e", metavar="NAME", help="The entrypoint of all imported jobs."
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", metavar="NAME", help="The queue of all imported jobs."),
    ] = None,
    take_running: Annotated[
        bool,
        typer.Option(
            "--take-running", help="Also take jobs in progress. Stop their workers first."
        ),
    ] = False,
) -> int:
    """Add the jobs of another queue's file. Repeating is safe; the file does not change."""
    from casque.transfer import import_file

    address = _target(address_of(context))
    with _interruptible("import"), _progress("Importing") as progress:
        report = import_file(
            file,
            address,
            format=source,
            entrypoint=entrypoint,
            queue=queue,
            take_running=take_running,
            progress=progress,
        )
    text = f"{counted(report.added, 'job')} imported from {report.source}{_known(report)}."
    return _answer(context, report, text)


def export_jobs(
    context: typer.Context,
    format: Annotated[  # noqa: A002 - the flag
        str, typer.Option("--format", "-f", metavar="FORMAT", help="jsonl or jqueue.")
    ] = "jsonl",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: standard output."),
    ] = None,
    queue: QueueOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> int:
    """Write all jobs as lines of JSON, or as a file of jqueue. The store stays as it is."""
    from casque.transfer import export

    address = _source(address_of(context))
    with (
        _interruptible("export"),
        _progress("Exporting") as progress,
        _written(output, force=force) as file,
    ):
        report = export(address, file, format=format, queue=queue, progress=progress)
    _list_not_taken(report, "exported")
    if output is not None:
        text = f"{counted(report.added, 'job')} exported to {plain(str(output))}."
        if is_json(context):
            print_json(_object(report))
        else:
            print(text)
    return NOT_SO if report.not_taken else DONE


def copy_jobs(
    context: typer.Context,
    source: Annotated[
        str, typer.Option("--from", metavar="URL", help="The store to read.", show_default=False)
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="URL", help="The store to add to.", show_default=False)
    ],
    pause: Annotated[
        bool, typer.Option("--pause", help="Pause all queues of the source first.")
    ] = False,
) -> int:
    """Copy jobs, settings, schedules and pauses of a store to another. Repeat it to continue."""
    from casque.transfer import copy

    with _interruptible("copy"), _progress("Copying") as progress:
        report = copy(_source(source), _target(target), pause=pause, progress=progress)
    lines = [f"{counted(report.added, 'job')} copied from {plain(report.source)}{_known(report)}."]
    if report.paused:
        shown = ", ".join(map(plain, report.paused[:_QUEUES_SHOWN]))
        left = len(report.paused) - _QUEUES_SHOWN
        more = f" and {left:,} more" if left > 0 else ""
        lines.append(
            f"These queues are paused in both stores: {shown}{more}. To work on them in the new "
            "store: queuectl resume QUEUE --store URL"
        )
    return _answer(context, report, "\n".join(lines))


# -- input and output --------------------------------------------------------------


def _source(address: StoreAddress) -> StoreAddress:
    if isinstance(address, str) and not address.strip():
        raise InvalidError("--from is empty: name a store.")
    require_shared(open_store(address))
    return address


def _target(address: StoreAddress) -> StoreAddress:
    if isinstance(address, str) and not address.strip():
        raise InvalidError("--to is empty: name a store.")
    store = open_store(address)
    if isinstance(address, str):
        require_sensible(address, store)
    else:
        require_shared(store)
    return address


@contextmanager
def _progress(title: str) -> Iterator[Progress]:
    with progress_bar(title) as bar:
        yield lambda done, total: bar(done, total, counted(done, "job"))


@contextmanager
def _interruptible(verb: str) -> Iterator[None]:
    """A signal ends the command between two commits. A line on stderr says how to continue."""
    try:
        with Interrupts(), _logging_as_notes():
            yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted. Run the same {verb} again to finish: it takes each job once."
        ) from None


class _Notes(logging.Handler):
    """Prints what casque logs as notes of this command."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(f"note: {record.getMessage()}")


@contextmanager
def _logging_as_notes() -> Iterator[None]:
    """Meanwhile, print warnings of casque as this command's own, such as that of a new store."""
    notes, logger = _Notes(logging.WARNING), logging.getLogger("casque")
    logger.addHandler(notes)
    try:
        yield
    finally:
        logger.removeHandler(notes)


@contextmanager
def _written(path: Path | None, *, force: bool) -> Iterator[IO[bytes]]:
    """Yield standard output, or a file that appears only when complete."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.is_dir():
        raise InvalidError(f"{path} is a folder: name a file.")
    if path.exists() and not force:
        raise InvalidError(f"{path} exists. Choose another name, or pass --force to replace it.")
    if not path.parent.is_dir():
        raise InvalidError(f"there is no folder {path.parent}. Check the path, or create it.")
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _known(report: TransferReport) -> str:
    return f"; {counted(report.known, 'job')} known from before" if report.known else ""


def _answer(context: typer.Context, report: TransferReport, text: str) -> int:
    if is_json(context):
        print_json(_object(report))
    else:
        print(text)
        _list_not_taken(report)
        for note in report.notes:
            complain(f"note: {note}")
    return NOT_SO if report.not_taken else DONE


def _list_not_taken(report: TransferReport, done: str = "taken") -> None:
    left = report.not_taken
    if not left:
        return
    complain(f"{counted(len(left), 'job')} not {done}:")
    for one in left[:_LISTED]:
        complain(f"  {cut(one.name, 100)}: {cut(one.reason, _LONGEST_REASON)}")
    if len(left) > _LISTED:
        complain(f"  and {len(left) - _LISTED:,} more; --json lists all.")


def _object(report: TransferReport) -> dict[str, object]:
    return {
        "source": report.source,
        "added": report.added,
        "known": report.known,
        "not_taken": [{"name": one.name, "reason": one.reason} for one in report.not_taken],
        "paused": report.paused,
        "notes": report.notes,
    }
