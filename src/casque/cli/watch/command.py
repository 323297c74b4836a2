"""`queuectl watch`: its arguments, and the lines that it prints."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import typer

from casque.cli.enqueue.fields import new_job
from casque.cli.job_options import (
    CwdOption,
    MaxAttemptsOption,
    PriorityOption,
    QueueOption,
    RetainOption,
    TimeoutOption,
)
from casque.cli.options import address_of, is_json
from casque.cli.output import DONE, complain, print_json_line
from casque.cli.store import Access
from casque.cli.watch.command_template import PLACE, checked_template, filled
from casque.job import DEFAULT_QUEUE, Job
from casque.queues.arguments import NewJob
from casque.queues.sync_queue import Queue
from casque.system.durations import duration_us
from casque.system.terminal_text import counted, plain
from casque.watch.contents import Names
from casque.watch.folders import Folder, files_of_store
from casque.watch.notifications import load_watchfiles
from casque.watch.watcher import SHORTEST_DEBOUNCE_US, Watcher
from casque.worker.shell.job import command_of
from casque.worker.shell.settings import Settings
from casque.worker.supervision.signals import stopping_on_signals

EXAMPLES = (
    "queuectl watch inbox --command 'process {path}'",
    "queuectl watch ~/scans --pattern '*.pdf' --recursive -c './ocr.sh {path}'",
)


def watch(
    context: typer.Context,
    folders: Annotated[list[str], typer.Argument(metavar="DIR…", help="The folders to watch.")],
    *,
    command: Annotated[
        str,
        typer.Option(
            "--command", "-c", metavar="TEXT", help=f"The command for sh; {PLACE} is the file."
        ),
    ],
    pattern: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only files with such a name; repeat for more."),
    ] = None,
    debounce: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long a file must not change before its job."),
    ] = "1s",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Watch the folders in the folders too.")
    ] = False,
    existing: Annotated[
        bool, typer.Option("--existing", help="Also handle files that exist at the start.")
    ] = False,
    queue: QueueOption = None,
    priority: PriorityOption = None,
    max_attempts: MaxAttemptsOption = None,
    timeout: TimeoutOption = None,
    cwd: CwdOption = None,
    retain: RetainOption = None,
) -> int:
    """Watch folders and enqueue a job for each new content of a file.

    A job is enqueued when a file did not change for --debounce. The same content of
    a file gets one job while that job's record is kept. A job may rewrite its file: the
    content when the job ends gets no new job. Hidden files are left out, unless a
    pattern begins with a dot. Runs until SIGTERM or Ctrl-C.
    """
    template = checked_template(command)
    debounce_us = duration_us(debounce, "--debounce", at_least_us=SHORTEST_DEBOUNCE_US)
    given: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "max_attempts": max_attempts,
        "timeout": timeout,
        "cwd": cwd,
        "retain": retain,
    }
    given = {name: value for name, value in given.items() if value is not None}
    new_job({**given, "command": template}, Settings())  # checks the options
    load_watchfiles()
    address = address_of(context)
    with Access(address) as access:
        is_of_store = files_of_store(access.store.name)
        watched = [
            Folder(one, patterns=pattern or ("*",), is_recursive=recursive, skips=is_of_store)
            for one in folders
        ]
        settings = access.settings()

    def job_for(path: str) -> NewJob:
        return new_job({**given, "command": filled(template, path)}, settings)

    report = JsonReport() if is_json(context) else TextReport()
    with Queue(address, max_depth=settings.max_depth) as opened:
        watcher = Watcher(
            opened,
            watched,
            job_for,
            Names(template, queue or DEFAULT_QUEUE),
            report=report,
            debounce_us=debounce_us,
            is_recursive=recursive,
            takes_existing=existing,
        )
        stop = threading.Event()
        with stopping_on_signals(stop.set, stop.set):
            watcher.run(stop)
    report.stopped(watcher.enqueued)
    return DONE


class TextReport:
    """Print each job to stdout, and problems to stderr."""

    def watching(self, folders: int) -> None:
        print(f"Watching {counted(folders, 'folder')}. Stop with Ctrl-C.", flush=True)

    def enqueued(self, job: Job, path: str) -> None:
        if job.duplicate:
            print(f"Job {plain(job.id)} already exists: {plain(path)}", flush=True)
        else:
            print(f"Job {plain(job.id)} enqueued: {plain(command_of(job) or '')}", flush=True)

    def stopped(self, enqueued: int) -> None:
        print(f"Stopped: {counted(enqueued, 'job')} enqueued.", flush=True)

    def skipped(self, path: str, why: str) -> None:
        complain(f"skipped {plain(path)}: {why}")

    def folder_vanished(self, path: str) -> None:
        complain(f"the folder {plain(path)} is gone: waiting until it returns.")

    def folder_returned(self, path: str) -> None:
        complain(f"the folder {plain(path)} is back.")

    def store_failed(self, error: Exception) -> None:
        complain(f"the store does not answer, trying again: {error}")

    def store_answers(self) -> None:
        complain("the store answers again.")


class JsonReport(TextReport):
    """JSON objects, one on each line."""

    def watching(self, folders: int) -> None:
        print_json_line({"watching": folders})

    def enqueued(self, job: Job, path: str) -> None:
        print_json_line({"id": job.id, "path": path, "duplicate": job.duplicate})

    def stopped(self, enqueued: int) -> None:
        print_json_line({"enqueued": enqueued})
