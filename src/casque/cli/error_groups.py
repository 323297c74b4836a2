"""Error groups: counts failed jobs by their error and their task."""

from __future__ import annotations

import msgspec

from casque.cli.output import JsonObject, utc_time
from casque.job import Job
from casque.rules.transitions import describe
from casque.system.terminal_text import counted, cut

MOST_GROUPS = 1_000
_LONGEST_ERROR = 500
_QUEUES = 5
"""A group remembers at most this many names of queues."""


class ErrorGroup(msgspec.Struct):
    """The jobs of one task with one error."""

    entrypoint: str
    error: str
    """The kind, and the first line of the text; empty if the job has none."""
    kind: str = ""
    count: int = 0
    last_us: int = 0
    """When the latest of them failed, and its id."""
    job_id: str = ""
    queues: set[str] = msgspec.field(default_factory=set)


class ErrorGroups:
    """Counts jobs. Holds at most twice `MOST_GROUPS` groups, however many errors there are.

    When there are more, the rarest are dropped, and their jobs count as others: texts that are
    different in each job must not hide an error that many jobs have in common.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], ErrorGroup] = {}
        self.total = 0
        self.others = 0
        """How many jobs are in no group."""

    def add(self, job: Job, *, by_error: bool = True) -> None:
        """Count a job; without `by_error`, in the group of its task."""
        self.total += 1
        kind, error = error_of(job) if by_error else ("", "")
        group = self._groups.get((job.entrypoint, error))
        if group is None:
            if len(self._groups) >= 2 * MOST_GROUPS:
                self._drop()
            group = self._groups[job.entrypoint, error] = ErrorGroup(job.entrypoint, error, kind)
        group.count += 1
        failed_us = job.updated_us if job.finished_us is None else job.finished_us
        if failed_us >= group.last_us:
            group.last_us, group.job_id = failed_us, job.id
        if len(group.queues) < _QUEUES:
            group.queues.add(job.queue)

    def most_frequent(self) -> list[ErrorGroup]:
        """The groups, the largest first. The rest counts as others."""
        self._drop()
        return sorted(self._groups.values(), key=_rank)

    def _drop(self) -> None:
        """Keep the `MOST_GROUPS` largest."""
        ranked = sorted(self._groups.items(), key=lambda item: _rank(item[1]))
        self.others += sum(group.count for _, group in ranked[MOST_GROUPS:])
        self._groups = dict(ranked[:MOST_GROUPS])


def _rank(group: ErrorGroup) -> tuple[int, int]:
    return -group.count, -group.last_us


def error_of(job: Job) -> tuple[str, str]:
    """The kind of a job's latest error; and the kind with the first line of the text."""
    failure = job.history[-1].failure if job.history else None
    if failure is None or describe(failure) != job.error:
        return "", first_line(job.error or "")
    return failure.kind, first_line(describe(failure))


def first_line(text: str) -> str:
    """The first line that is not empty, without the spaces around it."""
    lines = text.strip().splitlines()
    return cut(lines[0].rstrip(), _LONGEST_ERROR) if lines else ""


def group_object(group: ErrorGroup) -> JsonObject:
    """Return a group for `--json`."""
    return {
        "count": group.count,
        "error": group.error or None,
        "kind": group.kind or None,
        "entrypoint": group.entrypoint,
        "queues": sorted(group.queues),
        "last_seen_at": utc_time(group.last_us),
        "last_job": group.job_id,
    }


def summary(groups: ErrorGroups, longest: int = 60) -> str:
    """Return the largest groups in a few words: `KeyError: 'iban' in charge`."""
    largest = groups.most_frequent()
    texts = [_told(group, longest) for group in largest[:3]]
    if len(largest) == 1 and not groups.others:
        return texts[0]
    if largest[0].error and largest[0].count == 1 and groups.total > len(texts):
        return f"each with another error, such as {texts[0]}"
    parts = [f"{one.count:,} × {text}" for one, text in zip(largest, texts, strict=False)]
    rest = groups.total - sum(one.count for one in largest[:3])
    return "; ".join([*parts, *([counted(rest, "other")] if rest else [])])


def _told(group: ErrorGroup, longest: int) -> str:
    return f"{cut(group.error, longest)} in {group.entrypoint}" if group.error else group.entrypoint
