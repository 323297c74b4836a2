"""Job changes: one operation on each of many jobs, named by their ids or selected by options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from typing import Annotated, Any, NamedTuple, Self

import msgspec
import typer

from casque.checks import name
from casque.cli.error_groups import ErrorGroups, summary
from casque.cli.interrupts import Interrupts
from casque.cli.job_ids import resolved
from casque.cli.job_search import Wanted, matching
from casque.cli.output import (
    DONE,
    INVALID,
    JsonObject,
    code_of,
    complain,
    job_object,
    print_json,
    progress_bar,
)
from casque.cli.store import Access
from casque.errors import CasqueError, InvalidError, JobNotFoundError
from casque.job import Job
from casque.rules.operations import Hold, Operation, Purge
from casque.rules.views import View
from casque.system.terminal_text import counted, plain

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

_BATCH = 1_000
"""The number of jobs changed in one commit."""
_BATCH_BYTES = 16 * 2**20
_LISTED = 20
"""Up to this many jobs get a line each; more are counted."""


class Change(NamedTuple):
    """What a command does to a job, and the words for it."""

    operation: Callable[[str], Operation]
    verb: str
    """"cancel" in a question."""
    noun: str
    """"dead job", of those that an option selects."""
    one: str
    """The line for one job, with `{id}`."""
    many: str
    """What was done to several jobs: "cancelled"."""


def confirmed(question: str, *, fact: str = "this cannot be undone") -> bool:
    """Ask on the terminal; True for yes. InvalidError if stdin is not a terminal."""
    if not is_asked():
        raise InvalidError(f"{fact}; pass --yes to confirm.")
    if typer.confirm(plain(question), err=True):
        return True
    complain("nothing was changed.")
    return False


def is_asked() -> bool:
    """True if a person at a terminal can answer a question."""
    return bool(sys.stdin) and sys.stdin.isatty()


# -- jobs by their ids -------------------------------------------------------------


def change_named(
    access: Access, ids: Iterable[str], change: Change, *, as_json: bool, view: View | None = None
) -> int:
    """Change these jobs, then print a line for each. Returns the highest exit code.

    If there is no job with an id, the id may be a part of that of one job, in the state `view`. An
    id that a person chose is not guessed: `order-1` must not change `order-1-refund`.
    """
    wanted = [name(id, "id") for id in dict.fromkeys(ids)]
    done: list[Job] = []
    refusals: dict[str, CasqueError] = {}
    try:
        _apply(access, wanted, change, done, refusals)
        parts = [id for id, error in refusals.items() if isinstance(error, JobNotFoundError)]
        found = resolved(access, parts, view, only_generated=True) if parts else {}
        refusals |= {part: one for part, one in found.items() if isinstance(one, CasqueError)}
        whole = {part: one for part, one in found.items() if isinstance(one, str)}
        for part in whole:
            del refusals[part]
        again = [id for id in dict.fromkeys(whole.values()) if id not in wanted]
        _apply(access, again, change, done, refusals)
    finally:  # also if the storage failed in between
        now = access.store.clock.now()
        _print_jobs([job_object(job, now) for job in done], change, as_json=as_json)
    for error in refusals.values():
        complain(str(error))
    return max(map(code_of, refusals.values()), default=DONE)


def _apply(
    access: Access,
    ids: Sequence[str],
    change: Change,
    done: list[Job],
    refusals: dict[str, CasqueError],
) -> None:
    for first in range(0, len(ids), _BATCH):
        some = ids[first : first + _BATCH]
        outcomes = access.submit_all([*map(change.operation, some)])
        for id, outcome in zip(some, outcomes, strict=True):
            if isinstance(outcome, Job):
                done.append(outcome)
            elif isinstance(outcome, InvalidError | JobNotFoundError):
                refusals[id] = outcome
            else:
                raise outcome


def _print_jobs(jobs: Sequence[JsonObject], change: Change, *, as_json: bool) -> None:
    if as_json:
        print_json(jobs)
        return
    for job in jobs:
        print(change.one.format(id=plain(job["id"])))


# -- jobs selected by options ------------------------------------------------------


class Survey(msgspec.Struct):
    """What a look at all wanted jobs has found."""

    groups: ErrorGroups = msgspec.field(default_factory=ErrorGroups)
    running: int = 0
    last_seq: int = 0
    last_change_us: int = 0

    @property
    def count(self) -> int:
        return self.groups.total

    def covers(self, job: Job) -> bool:
        """True unless the job was enqueued, or has finished again, since the survey."""
        is_as_it_was = job.finished_us is None or job.updated_us <= self.last_change_us
        return job.seq <= self.last_seq and is_as_it_was

    def told(self, noun: str) -> str:
        running = f" ({self.running:,} running)" if self.running else ""
        matches = "matches" if self.count == 1 else "match"
        return f"{counted(self.count, noun)}{running} {matches}: {summary(self.groups)}"


def survey(access: Access, wanted: Wanted) -> Survey:
    """Count the wanted jobs by their errors; unfinished ones by their tasks, unless by an error."""
    found, by_error = Survey(), not wanted.unfinished or wanted.error is not None
    looked = 0

    def count(jobs: int) -> None:
        nonlocal looked
        looked += jobs
        if looked >= _BATCH:
            bar(looked, None, counted(looked, "job"))

    with _late_bar("Looking") as bar:
        for job in matching(access, wanted, looked=count):
            found.groups.add(job, by_error=by_error)
            found.running += job.lease is not None
            found.last_seq = max(found.last_seq, job.seq)
            found.last_change_us = max(found.last_change_us, job.updated_us)
    return found


def change_matching(
    access: Access, wanted: Wanted, change: Change, *, as_json: bool, yes: bool
) -> int:
    """Change the wanted jobs, after a question if there are several. Prints what was done.

    Jobs that another process changes meanwhile are skipped and counted.
    """
    seen = None if yes else survey(access, wanted)
    if seen is not None and seen.count > 1:
        fact = seen.told(change.noun)
        verb = change.verb.capitalize()
        if not confirmed(f"{fact}. {verb} them?", fact=fact):
            return INVALID
    none = f"No {change.noun}s{' match' if wanted.is_filtered else ''}."
    with (
        _Report(access, change, none, seen, as_json=as_json) as report,
        closing(_by_commit(access, wanted, report)) as commits,
    ):
        for holds in commits:
            for outcome in access.submit_all([change.operation(job_id) for job_id, _ in holds]):
                report.add(outcome)
    return DONE


def purge_matching(
    access: Access, wanted: Wanted, purge: Purge, noun: str, seen: Survey | None
) -> int:
    """Delete the wanted jobs, if they are still as they were when they were read."""
    with _Count(noun, seen) as report, closing(_by_commit(access, wanted, report)) as commits:
        for holds in commits:
            count = access.submit(msgspec.structs.replace(purge, only=holds))
            report.done += count
            report.skipped += len(holds) - count
    return report.done


class _Count:
    """Counts the jobs that were changed, and says how many were not."""

    def __init__(self, noun: str, seen: Survey | None) -> None:
        self.noun = noun
        self.seen = seen
        self.done = self.skipped = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self.seen is not None:  # those that were gone when their turn came
            self.skipped = max(self.skipped, self.seen.count - self.done)
        self.tell(is_complete=kind is None)
        if self.skipped:
            they = "it has" if self.skipped == 1 else "they have"
            complain(f"{counted(self.skipped, self.noun)} skipped: {they} changed meanwhile.")

    def tell(self, *, is_complete: bool) -> None:
        """Print what was done. The caller does it for a purge."""


class _Report(_Count):
    """Prints what was done to the jobs, also if an error or Ctrl-C ends it early."""

    def __init__(
        self, access: Access, change: Change, none: str, seen: Survey | None, *, as_json: bool
    ) -> None:
        super().__init__(change.noun, seen)
        self._access = access
        self._change = change
        self._none = none
        self._as_json = as_json
        self._jobs: list[JsonObject] = []
        """Without their payloads, which may be large."""

    def add(self, outcome: Any) -> None:
        if isinstance(outcome, Job):
            self.done += 1
            if self._as_json or self.done <= _LISTED:
                self._jobs.append(job_object(outcome, self._access.store.clock.now()))
        elif isinstance(outcome, InvalidError | JobNotFoundError):
            self.skipped += 1
        else:
            raise outcome

    def tell(self, *, is_complete: bool) -> None:
        if self._as_json or 0 < self.done <= _LISTED:
            _print_jobs(self._jobs, self._change, as_json=self._as_json)
        elif self.done:
            print(f"{counted(self.done, self.noun)} {self._change.many}.")
        elif not self.skipped and is_complete:
            print(self._none)


def _by_commit(access: Access, wanted: Wanted, report: _Count) -> Generator[tuple[Hold, ...]]:
    """The wanted jobs, so many at a time as one commit changes. Ctrl-C takes effect in between."""
    seen = report.seen
    jobs = matching(access, wanted)
    rest = jobs if seen is None else filter(seen.covers, jobs)
    interrupts = Interrupts()
    try:
        with interrupts, _late_bar("Changing") as bar:
            while holds := _some(rest):
                if report.done:
                    total = None if seen is None else seen.count
                    bar(report.done, total, counted(report.done, "job"))
                interrupts.hold()
                yield holds
                interrupts.release()
    except KeyboardInterrupt:
        text = f"interrupted after {counted(report.done, 'job')}; the rest is as it was."
        raise KeyboardInterrupt(text) from None


def _some(jobs: Iterator[Job]) -> tuple[Hold, ...]:
    """Take the jobs of one commit, fewer if their payloads are large: the answers have them."""
    holds: list[Hold] = []
    size = 0
    for job in islice(jobs, _BATCH):
        holds.append((job.id, job.token))
        size += len(job.payload)
        if size > _BATCH_BYTES:
            break
    return tuple(holds)


@contextmanager
def _late_bar(title: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """A progress bar that appears when it is first updated: not for what takes a moment."""
    with ExitStack() as stack:
        bars: list[Callable[[int, int | None, str], None]] = []

        def update(done: int, total: int | None, note: str) -> None:
            if not bars:
                bars.append(stack.enter_context(progress_bar(title)))
            bars[0](done, total, note)

        yield update
