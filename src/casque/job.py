"""Job and the values that belong to it, as frozen structs.

A queue makes one or two of these values for every operation, and may hold a million. They are
msgspec structs because a struct is built and copied about ten times as fast as a dataclass, and the
garbage collector does not track it. Instants are stored as microseconds and shown as aware
datetimes. Headers are stored as pairs, so that a job can be hashed, and shown as a dict.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import msgspec

from casque.system.clock import to_datetime

DEFAULT_QUEUE = "default"
DEFAULT_MAX_ATTEMPTS = 25

HeaderPairs = tuple[tuple[str, str], ...]


class JobStatus(StrEnum):
    """The status of a job."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Lease(NamedTuple):
    """A worker's claim on a job, which ends at `until`. Each new claim gets a higher token."""

    worker: str
    token: int
    until: datetime


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why an attempt failed; `kind` is, for example, the name of an exception."""

    kind: str = ""
    text: str = ""
    traceback: str = ""


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One finished run of a job. `failure` is None when it succeeded."""

    number: int
    worker: str
    started_us: int
    ended_us: int
    failure: Failure | None = None

    @property
    def started_at(self) -> datetime:
        return to_datetime(self.started_us)

    @property
    def ended_at(self) -> datetime:
        return to_datetime(self.ended_us)


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False, repr_omit_defaults=True):
    """One request to run an entrypoint with a payload, as it was when it was read."""

    id: str
    entrypoint: str
    payload: bytes
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    status: JobStatus = JobStatus.QUEUED
    attempts: int = 0
    """Counted at the claim, so that a job that kills its worker also runs out of attempts."""
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    token: int = 0
    """The token of the latest claim; 0 before the first."""
    worker: str | None = None
    """The worker of the latest claim."""
    error: str | None = None
    """The error of the latest failed attempt, or why the job was cancelled."""
    result: bytes | None = None
    progress: float | None = None
    note: str | None = None
    output: bytes | None = None
    history: tuple[Attempt, ...] = ()
    """The latest finished attempts, oldest first."""
    depth: int = 0
    """How many jobs are above this one: 0 when it was enqueued outside of any job."""
    chain: tuple[str, ...] = ()
    """The entrypoints of the jobs above this one, outermost first, as far as recorded."""
    header_pairs: HeaderPairs = ()
    duplicate: bool = False
    """True in the result of an `enqueue` whose id already existed. Never stored."""
    seq: int = 0
    """The job's place in the enqueue order of the store."""

    created_us: int = 0
    run_us: int = 0
    updated_us: int = 0
    claimed_us: int | None = None
    heartbeat_us: int | None = None
    lease_until_us: int | None = None
    finished_us: int | None = None
    expires_us: int | None = None
    """When the record of a finished job is removed; None keeps it."""
    retain_us: int | None = None
    """How long the record is kept after success; None removes it at the ack."""
    timeout_us: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Text that the producer added, such as a trace context. Returns a copy."""
        return dict(self.header_pairs)

    @property
    def created_at(self) -> datetime:
        return to_datetime(self.created_us)

    @property
    def run_at(self) -> datetime:
        """The job does not run before this instant."""
        return to_datetime(self.run_us)

    @property
    def updated_at(self) -> datetime:
        return to_datetime(self.updated_us)

    @property
    def claimed_at(self) -> datetime | None:
        return None if self.claimed_us is None else to_datetime(self.claimed_us)

    @property
    def heartbeat_at(self) -> datetime | None:
        return None if self.heartbeat_us is None else to_datetime(self.heartbeat_us)

    @property
    def lease_until(self) -> datetime | None:
        return None if self.lease_until_us is None else to_datetime(self.lease_until_us)

    @property
    def finished_at(self) -> datetime | None:
        return None if self.finished_us is None else to_datetime(self.finished_us)

    @property
    def timeout(self) -> timedelta | None:
        """How long one attempt may take."""
        return None if self.timeout_us is None else timedelta(microseconds=self.timeout_us)

    @property
    def retain(self) -> timedelta | None:
        return None if self.retain_us is None else timedelta(microseconds=self.retain_us)

    @property
    def due_us(self) -> int | None:
        """When the job becomes claimable: at `run_us`, or if in progress, when its lease ends."""
        if self.status is JobStatus.QUEUED:
            return self.run_us
        return self.lease_until_us if self.status is JobStatus.IN_PROGRESS else None

    @property
    def lease(self) -> Lease | None:
        """The claim on the job while it is in progress."""
        if self.status is not JobStatus.IN_PROGRESS:
            return None
        assert self.worker is not None
        assert self.lease_until_us is not None
        return Lease(self.worker, self.token, to_datetime(self.lease_until_us))

    @property
    def lease_span_us(self) -> int | None:
        """The length of the current lease, when it was taken or last renewed."""
        if self.lease_until_us is None or self.heartbeat_us is None:
            return None
        return self.lease_until_us - self.heartbeat_us

    def is_gone(self, now: int) -> bool:
        """True once the record has expired, even if it is not pruned yet."""
        return self.expires_us is not None and self.expires_us <= now

    def is_spent(self, now: int) -> bool:
        """True if the last allowed attempt's lease ended: the job is dead, even if not marked."""
        return (
            self.status is JobStatus.IN_PROGRESS
            and self.attempts >= self.max_attempts
            and self.lease_until_us is not None
            and self.lease_until_us <= now
        )


class Stats(msgspec.Struct, frozen=True):
    """The number of jobs in each state. Pending, scheduled and failed jobs are all queued."""

    pending: int = 0
    """Queued, due, never attempted."""
    scheduled: int = 0
    """Queued, not yet due, never attempted."""
    failed: int = 0
    """Queued again after a failed attempt."""
    processing: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        """The number of all jobs."""
        return sum(getattr(self, name) for name in self.__struct_fields__)
