"""Job search: the jobs that options select, read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from casque.checks import name
from casque.cli.options import queue_name
from casque.cli.store import Access
from casque.errors import InvalidError
from casque.job import Job
from casque.rules.views import JobFilter, Selection
from casque.system.clock import to_us
from casque.system.durations import duration_us

EntrypointOption = Annotated[
    str | None,
    typer.Option(
        "--entrypoint", metavar="NAME", help="Only jobs of this task; shell for commands."
    ),
]
ErrorOption = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="Only jobs whose error contains TEXT."),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Only jobs that finished or changed since: 2h, or ISO 8601."
    ),
]

_PAGE = 1_000
_FIRST_PAGE = 100
_PAGE_BYTES = 16 * 2**20
"""Pages are made smaller when the payloads and outputs of their jobs are larger than this."""


class Wanted(msgspec.Struct, frozen=True):
    """Which jobs a command is about."""

    views: tuple[Selection | None, ...] = (None,)
    queue: str | None = None
    entrypoint: str | None = None
    error: str | None = None
    """In lower case; part of the kind or the text of the error."""
    since_us: int | None = None
    until_us: int | None = None
    """Only jobs that have finished by then."""
    unfinished: bool = False
    """Only jobs that are queued or in progress. One read of each job decides: none that changes
    from one to the other meanwhile is overlooked."""

    @property
    def is_narrowed(self) -> bool:
        """True if a look at each job is needed, because the store cannot select these."""
        return self.error is not None or self.since_us is not None or self.until_us is not None

    @property
    def is_filtered(self) -> bool:
        """True if an option selects jobs."""
        return self.is_narrowed or self.queue is not None or self.entrypoint is not None

    def filters(self) -> list[JobFilter]:
        return [JobFilter(view, self.queue, self.entrypoint) for view in self.views]

    def admits(self, job: Job) -> bool:
        """True if the job is wanted. The store has selected its state, queue and entrypoint."""
        changed = job.updated_us if job.finished_us is None else job.finished_us
        return (
            not (self.unfinished and job.finished_us is not None)
            and (self.error is None or self.error in (job.error or "").casefold())
            and (self.since_us is None or changed >= self.since_us)
            and (
                self.until_us is None
                or (job.finished_us is not None and job.finished_us <= self.until_us)
            )
        )


def wanted_by(
    access: Access,
    *views: Selection | None,
    queue: str | None,
    entrypoint: str | None,
    error: str | None,
    since: str | None,
    unfinished: bool = False,
) -> Wanted:
    """Check these options. Raises InvalidError for a value that can match nothing."""
    if error is not None and not error.strip():
        raise InvalidError("--error is empty: write a part of the error, or leave the option out.")
    return Wanted(
        views or (None,),
        queue_name(queue),
        None if entrypoint is None else name(entrypoint, "entrypoint"),
        None if error is None else error.casefold(),
        None if since is None else _instant(since, access.store.clock.now()),
        unfinished=unfinished,
    )


def matching(
    access: Access, wanted: Wanted, *, looked: Callable[[int], None] | None = None
) -> Iterator[Job]:
    """The wanted jobs, in the order in which they were enqueued. Holds one page at a time.

    Calls `looked` after each page with the number of jobs on it, wanted or not.
    """
    for one in wanted.filters():
        for page in pages(access, one):
            yield from filter(wanted.admits, page)
            if looked is not None:
                looked(len(page))


def pages(access: Access, wanted: JobFilter) -> Iterator[list[Job]]:
    """All jobs that the store selects, in pages of bounded size."""
    size, after = min(_FIRST_PAGE, _PAGE), 0
    while page := access.jobs(wanted, limit=size, after=after):
        is_last = len(page) < size
        after = page[-1].seq
        held = sum(len(job.payload) + len(job.output or b"") for job in page)
        size = max(1, min(_PAGE, _PAGE_BYTES * len(page) // (held + 1)))
        yield page
        if is_last:
            return


def _instant(text: str, now: int) -> int:
    """Parse `2h`, which is that long ago, or a time in ISO 8601; without a zone, local time."""
    try:
        return now - duration_us(text)
    except InvalidError as error:
        if "too long" in str(error):
            raise
    try:
        at = datetime.fromisoformat(text.strip())
        return to_us(datetime.fromtimestamp(at.timestamp(), UTC))
    except (ValueError, OverflowError, OSError):
        raise InvalidError(
            f"--since: {text!r} is neither a duration, such as 90s, 5m, 2h or 7d, nor a time, such "
            "as 2026-01-31T08:00:00Z."
        ) from None
