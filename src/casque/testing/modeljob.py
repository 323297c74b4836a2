"""The oracle's values: a job, a line and a record, plain and mutable."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

HISTORY = 10
DEAD_STAYS = timedelta(days=30)

LineName = tuple[str, str]


class Lost(NamedTuple):
    """The error of an attempt that was never reported."""

    worker: str
    last_heartbeat_at: datetime


class PastAttempt(NamedTuple):
    """An attempt that is over; `kind` is None when it succeeded."""

    number: int
    worker: str | None
    started_at: datetime | None
    kind: str | None


@dataclass
class ModelJob:
    """A job of the oracle. Tokens are the oracle's own numbers, counted from 1."""

    id: str
    queue: str
    entrypoint: str
    payload: bytes
    priority: int
    max_attempts: int
    retain: timedelta | None
    timeout: timedelta | None
    depth: int
    chain: tuple[str, ...]
    headers: dict[str, str]
    place: int
    created_at: datetime
    run_at: datetime
    status: str = "queued"
    attempts: int = 0
    token: int = 0
    worker: str | None = None
    claimed_at: datetime | None = None
    heartbeat_at: datetime | None = None
    lease: timedelta | None = None
    lease_until: datetime | None = None
    finished_at: datetime | None = None
    gone_at: datetime | None = None
    error: str | Lost | None = None
    result: bytes | None = None
    progress: float | None = None
    note: str | None = None
    duplicate: bool = False
    history: list[PastAttempt] = field(default_factory=list)

    @property
    def line(self) -> LineName:
        return self.queue, self.entrypoint

    @property
    def due_at(self) -> datetime | None:
        return {"queued": self.run_at, "in_progress": self.lease_until}.get(self.status)

    def is_due(self, now: datetime) -> bool:
        return self.due_at is not None and self.due_at <= now

    def is_gone(self, now: datetime) -> bool:
        return self.gone_at is not None and self.gone_at <= now

    def is_spent(self, now: datetime) -> bool:
        """Whether its lease has expired and no attempt is left."""
        last = self.attempts >= self.max_attempts
        return self.status == "in_progress" and last and self.is_due(now)

    def end_attempt(self, kind: str | None) -> None:
        past = PastAttempt(self.attempts, self.worker, self.claimed_at, kind)
        self.history = [*self.history, past][-HISTORY:]

    def lose_attempt(self) -> Lost:
        assert self.worker is not None
        assert self.heartbeat_at is not None
        self.end_attempt("lost")
        return Lost(self.worker, self.heartbeat_at)

    def wait(self, run_at: datetime) -> None:
        self.status, self.run_at, self.lease_until = "queued", run_at, None

    def finish(self, status: str, at: datetime, stays: timedelta | None) -> None:
        self.status, self.finished_at = status, at
        self.gone_at = None if stays is None else at + stays
        self.lease_until = None

    def fail_attempt(self, error: str | Exception) -> None:
        kind = "" if isinstance(error, str) else type(error).__name__
        self.error = f"{kind}: {error}" if kind else str(error)
        self.end_attempt(kind)

    def cancel(self, at: datetime, reason: str, stays: timedelta | None) -> None:
        if self.status == "in_progress":
            self.end_attempt("cancelled")
        self.error = reason or None
        self.finish("cancelled", at, stays)

    def bury(self, at: datetime, stays: timedelta | None) -> None:
        """Make it dead: finished when its lease ended, and kept from `at` on."""
        assert self.lease_until is not None
        ended = min(self.lease_until, at)
        self.error = self.lose_attempt()
        self.finish("dead", at, stays)
        self.finished_at = ended


@dataclass
class ModelRecord:
    """A record; its versions are counted with the tokens."""

    value: bytes
    version: int
    gone_at: datetime | None

    def is_gone(self, now: datetime) -> bool:
        return self.gone_at is not None and self.gone_at <= now
