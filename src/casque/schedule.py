"""Schedule: when a job is enqueued again and again, as stored in a record of kind `schedule`.

The record's name is the schedule's name, and its value is this struct as JSON. The
`rules` only compare its times. Only `tasks.ticks` computes times from a cron line.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from casque.errors import InvalidError
from casque.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE
from casque.record import Record

CatchUp = Literal["skip", "one", "all"]
Overlap = Literal["allow", "skip"]


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule. Exactly one of `line` and `every_us` is set."""

    entrypoint: str
    line: str = ""
    """A cron line of five fields, or a name such as `@daily`."""
    every_us: int = 0
    """Ticks are at the multiples of this interval since 1970 UTC."""
    tz: str = "UTC"
    payload: bytes = b""
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    retain_us: int | None = None
    timeout_us: int | None = None
    catch_up: CatchUp = "one"
    """Which missed ticks fire: none, the newest one, or all within `window_us`."""
    window_us: int = 0
    overlap: Overlap = "allow"
    """`skip`: a tick adds no job while the last job, or that of the last tick, is not finished."""
    app: str = ""
    """The app whose code declares it; empty if an operator made it."""
    is_paused: bool = False
    is_stopped: bool = False
    """True if its app no longer declares it."""
    since_us: int = 0
    """Only ticks after this instant can fire: the last tick, or the last change of the timing."""
    last_tick_us: int | None = None
    last_job: str = ""
    """The id of the job that was added last, by a tick or by hand."""
    last_tick_job: str = ""
    """The id of the job that a tick added last."""
    skipped_us: int | None = None
    """The last tick that added no job, because of `overlap`."""

    @property
    def is_active(self) -> bool:
        """True if it fires."""
        return not (self.is_paused or self.is_stopped)


_DECODER = msgspec.json.Decoder(Schedule)
encode = msgspec.json.Encoder().encode


def decode(record: Record) -> Schedule:
    """The schedule in a record. InvalidError if it cannot be decoded."""
    try:
        return _DECODER.decode(record.value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(
            f"the record of schedule {record.name!r} cannot be read: {error}. Remove the schedule "
            "and add it again."
        ) from error


def paused(value: bytes) -> bytes:
    """The value of a record with its schedule paused; the same value if it cannot be read."""
    try:
        return encode(msgspec.structs.replace(_DECODER.decode(value), is_paused=True))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return value
