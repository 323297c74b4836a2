"""Found jobs: the options and checks that all formats share."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from casque import checks
from casque.errors import InvalidError
from casque.job import Job, JobStatus
from casque.rules import transitions
from casque.system.clock import DAY_US, LONGEST_SPAN_US, SECOND_US, to_us
from casque.transfer.report import NotTaken
from casque.transfer.taking import FoundJob

_SPANS = ("retain_us", "timeout_us")
_FIRST_US = to_us(datetime.min.replace(tzinfo=UTC))
_LAST_US = to_us(datetime.max.replace(tzinfo=UTC))
_LARGEST = 2**62
"""A store counts tokens up from the largest, so no number may be near its limit."""


class ImportOptions(msgspec.Struct, frozen=True):
    """What the caller of an import chose, and the time of the import."""

    now: int
    entrypoint: str | None = None
    """The entrypoint of all jobs; None: as the source says."""
    queue: str | None = None
    """The queue of all jobs; None: as the source says."""
    take_running: bool = False
    """True to also take the jobs that are in progress in the source."""
    retention_us: int = 7 * DAY_US
    """How long completed jobs are kept."""
    dead_expires_us: int | None = None
    """When dead jobs are removed; None: never."""

    def named(self, what: str) -> str:
        """The entrypoint for items that have no name. Raises InvalidError if none was given."""
        if self.entrypoint is None:
            raise InvalidError(
                f"the items of {what} have no names: pass --entrypoint NAME, the task or "
                "entrypoint that will handle them."
            )
        return self.entrypoint


def checked(job: Job, key: str, options: ImportOptions) -> FoundJob | NotTaken:
    """The job with the caller's names; NotTaken if it is invalid."""
    try:
        job = replace(
            job,
            id=checks.name(job.id, "id"),
            entrypoint=checks.name(options.entrypoint or job.entrypoint, "entrypoint"),
            queue=checks.name(options.queue or job.queue, "queue"),
            payload=checks.data(job.payload, "payload", checks.PAYLOAD_BYTES),
            priority=checks.whole(job.priority, "priority", checks.SMALLEST_INT),
            max_attempts=checks.whole(job.max_attempts, "max_attempts", 1),
            attempts=checks.whole(job.attempts, "attempts", 0),
            header_pairs=checks.headers(dict(job.header_pairs)),
            duplicate=False,
        )
    except InvalidError as error:
        return NotTaken(str(job.id)[: checks.NAME_BYTES], str(error))
    if why := _unfit(job):
        return NotTaken(job.id, why)
    if job.status is JobStatus.IN_PROGRESS:
        return _let_go(job, key, options)
    return FoundJob(_without_claim(job), key)


def _without_claim(job: Job) -> Job:
    """The job without the fields that a job in its state never has."""
    if job.status is not JobStatus.QUEUED:
        return replace(job, lease_until_us=None)
    return replace(job, lease_until_us=None, heartbeat_us=None, finished_us=None, expires_us=None)


def _unfit(job: Job) -> str:
    """Why a store could not hold the numbers of a job, or show its times; empty if it can."""
    for one in (job, *job.history):
        for name in one.__struct_fields__:
            value = getattr(one, name)
            if not isinstance(value, int):
                continue
            if name in _SPANS and not 0 <= value <= LONGEST_SPAN_US:
                return f"its {name} is not between 0 and 100 years"
            if name.endswith("_us") and name not in _SPANS and not _FIRST_US <= value <= _LAST_US:
                return f"its {name} is not between the years 1 and 9999"
            if abs(value) > _LARGEST:
                return f"its {name} is too large"
    return ""


def without_id(what: str, value: object) -> NotTaken | None:
    """NotTaken for a row whose id is NULL or bytes; None if its id is text or a number."""
    if isinstance(value, str | int):
        return None
    return NotTaken(what, f"its id is {'NULL' if value is None else checks.kind_of(value)}")


def running(name: str) -> NotTaken:
    """A job that a worker of the source may be running now."""
    return NotTaken(
        name, "it is in progress there; stop its workers, then import again with --take-running"
    )


def _let_go(job: Job, key: str, options: ImportOptions) -> FoundJob | NotTaken:
    assert job.lease_until_us is not None
    if job.lease_until_us > options.now and not options.take_running:
        return running(job.id)
    if job.attempts >= job.max_attempts:
        expires = options.dead_expires_us
        return FoundJob(transitions.buried(job, now=options.now, expires=expires), key)
    return FoundJob(_without_claim(transitions.requeued(job, now=options.now)), key)


def instant_us(value: object, otherwise: int) -> int:
    """A time as ISO text (UTC if it names no zone) or seconds since 1970; else `otherwise`.

    A number that would be after the year 9999 in seconds is in milliseconds.
    """
    try:
        if isinstance(value, int | float):
            us = int(value * SECOND_US)
            return us if us <= _LAST_US else us // 1_000
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return to_us(value if value.tzinfo else value.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        pass
    return otherwise
