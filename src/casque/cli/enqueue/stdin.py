"""Stdin: `queuectl enqueue -` stores many jobs in batches, one JSON object per line."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec

from casque.checks import PAYLOAD_BYTES
from casque.cli.enqueue.fields import decoded
from casque.cli.enqueue.one import EnqueueRequest, IfExists, checked_job, enqueue_as
from casque.cli.output import EXISTS, JsonObject, answer, complain, progress_bar
from casque.cli.store import Access
from casque.errors import CasqueError, InvalidError
from casque.queues.arguments import ENQUEUE_MANY_JOBS, NewJob
from casque.queues.commit import BATCH_BYTES
from casque.queues.lineage import inherited
from casque.system.clock import SECOND_US, SystemClock
from casque.system.terminal_text import counted
from casque.worker.shell.settings import Settings

_BOM = b"\xef\xbb\xbf"
_READ_BYTES = 1 << 18
_PAUSE_SECONDS = 0.2
"""After a pause this long, the lines so far are stored: more may come hours later."""
_LONGEST_US = SECOND_US
"""Without a pause, the lines so far are stored after this long."""
_AGAIN = "lines with ids are safe to send again"


class _Tally(msgspec.Struct):
    """How many jobs were enqueued, and how many existed already."""

    enqueued: int = 0
    already_there: int = 0
    unsure: str = ""
    """The lines that are being stored, with unknown outcome."""

    def as_json(self) -> JsonObject:
        return {"enqueued": self.enqueued, "already_there": self.already_there}


def enqueue_lines(request: EnqueueRequest) -> int:
    """Enqueue a job for each line of stdin. Returns the exit code."""
    if request.fields:
        raise InvalidError("with `-` each line is a complete job: put these options into its JSON.")
    if request.skip_inside_job and inherited().depth:
        nothing = _Tally().as_json()
        return answer(nothing, "Inside a job: nothing enqueued.", as_json=request.is_json)
    if sys.stdin is None:
        raise InvalidError("stdin is closed; pipe JSON objects into it, one per line.")
    tally = _Tally()
    try:
        with Access(request.address) as access, progress_bar("Enqueueing") as bar:
            _enqueue_all(request, access, tally, bar)
    except KeyboardInterrupt:
        unsure = f", and {tally.unsure} may have been" if tally.unsure else ""
        done = f"{counted(tally.enqueued, 'job')} had been enqueued{unsure}"
        raise KeyboardInterrupt(f"interrupted: {done}; {_AGAIN}.") from None
    there = (
        f" {counted(tally.already_there, 'job')} already existed." if tally.already_there else ""
    )
    text = f"{counted(tally.enqueued, 'job')} enqueued.{there}"
    code = answer(tally.as_json(), text, as_json=request.is_json)
    is_failure = tally.already_there and request.if_exists is IfExists.FAIL
    return EXISTS if is_failure else code


def _enqueue_all(
    request: EnqueueRequest,
    access: Access,
    tally: _Tally,
    bar: Callable[[int, int | None, str], None],
) -> None:
    settings = access.settings()
    access.open_queue(settings.max_depth)
    read, size = 0, _size(sys.stdin.buffer)
    for lines in _batches(_numbered(sys.stdin.buffer)):
        batch: list[NewJob] = []
        for number, line in lines:
            try:
                batch.append(_job(line, request, settings))
            except InvalidError as error:
                raise _refused(f"line {number}", error, tally) from None
            read += len(line)
        _store(access, batch, request, tally, f"lines {lines[0][0]} to {lines[-1][0]}")
        bar(read, size, counted(tally.enqueued, "job"))


def _job(line: bytes, request: EnqueueRequest, settings: Settings) -> NewJob:
    if len(line) > PAYLOAD_BYTES:
        raise InvalidError(f"it is longer than {PAYLOAD_BYTES:,} bytes.")
    return checked_job(decoded(line), request, settings)


def _store(
    access: Access, batch: list[NewJob], request: EnqueueRequest, tally: _Tally, where: str
) -> None:
    tally.unsure = where
    try:
        jobs = enqueue_as(access, batch, request)
    except InvalidError as error:
        raise _refused(where, error, tally) from None
    except CasqueError:
        complain(
            f"failed at {where}; {counted(tally.enqueued, 'job')} had been enqueued; {_AGAIN}."
        )
        raise
    there = sum(job.duplicate for job in jobs)
    tally.already_there += there
    tally.enqueued += len(jobs) - there
    tally.unsure = ""


def _refused(where: str, error: InvalidError, tally: _Tally) -> InvalidError:
    before = f"{counted(tally.enqueued, 'job')} of earlier batches"
    done = f"{before} were enqueued; {_AGAIN}" if tally.enqueued else "nothing was enqueued"
    return InvalidError(f"{where}: {error} {done[0].upper()}{done[1:]}.")


def _numbered(stream: BinaryIO) -> Iterator[tuple[int, bytes] | None]:
    """Yield the lines that are not blank, with their numbers; None when the input pauses."""
    number = 0
    for line in _lines(stream):
        if line is None:
            yield None
            continue
        number += 1
        text = line.removeprefix(_BOM) if number == 1 else line
        if len(text) <= PAYLOAD_BYTES:  # otherwise it is only the start of a line, and is refused
            text = text.strip()
        if text:
            yield number, text


def _lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines, and None whenever the lines so far should be stored."""
    rest = b""
    clock = SystemClock()
    stored_us = clock.monotonic()
    while True:
        is_silent = not select.select([stream], [], [], _PAUSE_SECONDS)[0]
        if is_silent or clock.monotonic() >= stored_us + _LONGEST_US:
            yield None
            stored_us = clock.monotonic()
            select.select([stream], [], [])
        try:
            part = os.read(stream.fileno(), _READ_BYTES)
        except BlockingIOError:  # stdin is non-blocking, and another process has read first
            continue
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
        if not part or len(rest) > PAYLOAD_BYTES:
            yield rest
            return


def _batches(
    lines: Iterator[tuple[int, bytes] | None],
) -> Iterator[list[tuple[int, bytes]]]:
    """Yield batches of lines: as many as fit into one commit, or all that came before a pause."""
    batch: list[tuple[int, bytes]] = []
    size = 0
    for line in lines:
        is_full = len(batch) == ENQUEUE_MANY_JOBS
        if batch and (line is None or is_full or size + len(line[1]) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        if line is not None:
            batch.append(line)
            size += len(line[1])
    if batch:
        yield batch


def _size(stream: BinaryIO) -> int | None:
    """Return a file's size; None for other streams."""
    status = os.fstat(stream.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None
