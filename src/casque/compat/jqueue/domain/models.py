"""Job and QueueState: jqueue's frozen values, with its pure functions.

They are pydantic models as in jqueue: programs call `model_dump` and `model_validate` on them.
"""

from __future__ import annotations

import base64
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

try:
    from pydantic import (
        BaseModel,
        BeforeValidator,
        ConfigDict,
        Field,
        PlainSerializer,
        PrivateAttr,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'casque.compat.jqueue needs pydantic: pip install "casque[jqueue]".', name="pydantic"
    ) from error

from casque.compat.jqueue.domain.errors import JobNotFoundError
from casque.system.clock import SystemClock, to_datetime

_clock = SystemClock()


class JobStatus(StrEnum):
    """The status of a job."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    DEAD = "dead"


def _from_base64(payload: object) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return base64.b64decode(payload)
    raise ValueError(
        f"payload must be bytes, or base64 text from JSON, not {type(payload).__name__}"
    )


def _to_base64(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


Payload = Annotated[
    bytes, BeforeValidator(_from_base64), PlainSerializer(_to_base64, return_type=str)
]
"""Bytes in Python, base64 in JSON."""


class Job(BaseModel):
    """One request to run an entrypoint with a payload. Lower priority numbers run first."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(default_factory=_clock.new_id)
    entrypoint: str
    payload: Payload
    status: JobStatus = JobStatus.QUEUED
    priority: int = 0
    created_at: datetime = Field(default_factory=lambda: to_datetime(_clock.now()))
    heartbeat_at: datetime | None = None

    @classmethod
    def new(cls, entrypoint: str, payload: bytes, priority: int = 0) -> Job:
        """A queued job with a new id."""
        return cls(entrypoint=entrypoint, payload=payload, priority=priority)

    def with_status(self, status: JobStatus) -> Job:
        return self.model_copy(update={"status": status})

    def with_heartbeat(self, ts: datetime | None) -> Job:
        return self.model_copy(update={"heartbeat_at": ts})

    def is_stale(self, cutoff: datetime) -> bool:
        """True if the job is in progress without a heartbeat since `cutoff`."""
        return self.status is JobStatus.IN_PROGRESS and (
            self.heartbeat_at is None or self.heartbeat_at < cutoff
        )


class QueueState(BaseModel):
    """All jobs of a queue, and the number of its last write. Each function returns a new state."""

    model_config = ConfigDict(frozen=True)

    jobs: tuple[Job, ...] = ()
    version: int = 0
    _stored: dict[str, Any] | None = PrivateAttr(default=None)
    """The document that the state was decoded from, if casque wrote it: see `codec`."""

    def queued_jobs(self, entrypoint: str | None = None) -> tuple[Job, ...]:
        """The queued jobs, ordered by priority and then by age."""
        queued = [
            job
            for job in self.jobs
            if job.status is JobStatus.QUEUED and entrypoint in (None, job.entrypoint)
        ]
        return tuple(sorted(queued, key=lambda job: (job.priority, job.created_at)))

    def in_progress_jobs(self) -> tuple[Job, ...]:
        return tuple(job for job in self.jobs if job.status is JobStatus.IN_PROGRESS)

    def find(self, job_id: str) -> Job | None:
        return next((job for job in self.jobs if job.id == job_id), None)

    def with_job_added(self, job: Job) -> QueueState:
        return self._next((*self.jobs, job))

    def with_job_replaced(self, updated: Job) -> QueueState:
        """The state with `updated` in place of the job of its id, or JobNotFoundError."""
        self._check(updated.id)
        return self._next(tuple(updated if job.id == updated.id else job for job in self.jobs))

    def with_job_removed(self, job_id: str) -> QueueState:
        """The state without that job, or JobNotFoundError."""
        self._check(job_id)
        return self._next(tuple(job for job in self.jobs if job.id != job_id))

    def requeue_stale(self, cutoff: datetime) -> QueueState:
        """The state with all stale jobs queued again: see `is_stale`.

        The same object if no job is stale.
        """
        if not any(job.is_stale(cutoff) for job in self.jobs):
            return self
        queued = {"status": JobStatus.QUEUED, "heartbeat_at": None}
        return self._next(
            tuple(
                job.model_copy(update=queued) if job.is_stale(cutoff) else job for job in self.jobs
            )
        )

    def _check(self, job_id: str) -> None:
        if self.find(job_id) is None:
            raise JobNotFoundError(job_id)

    def _next(self, jobs: tuple[Job, ...]) -> QueueState:
        return self.model_copy(update={"jobs": jobs, "version": self.version + 1})
