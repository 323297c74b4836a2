"""Ticks: whether a tick of a schedule may fire, and the schedule after it."""

from __future__ import annotations

from msgspec.structs import replace

from casque.errors import CASConflictError
from casque.rules.operations import Tick
from casque.schedule import Schedule


def check_tick(schedule: Schedule, tick: Tick, now: int) -> None:
    """Raise CASConflictError unless this tick may fire now."""
    if tick.tick_us is None:
        return
    if not schedule.is_active:
        wrong = "the schedule is paused or stopped"
    elif tick.tick_us <= schedule.since_us:
        wrong = "this tick, or a later one, has fired already"
    elif tick.tick_us > now:
        wrong = "this tick is not due yet by the clock of the store"
    else:
        return
    raise CASConflictError(f"schedule {tick.name!r}: {wrong}. Read it again and decide again.")


def skips(schedule: Schedule, tick: Tick, *, is_last_job_open: bool) -> bool:
    """True if the tick adds no job, because the previous job is unfinished."""
    return tick.tick_us is not None and schedule.overlap == "skip" and is_last_job_open


def advanced(schedule: Schedule, tick: Tick, *, is_skipped: bool) -> Schedule:
    """The schedule after the tick."""
    job = schedule.last_job if is_skipped else tick.job.id
    if tick.tick_us is None:
        return replace(schedule, last_job=job)
    return replace(
        schedule,
        since_us=tick.tick_us,
        last_tick_us=tick.tick_us,
        last_job=job,
        last_tick_job=schedule.last_tick_job if is_skipped else job,
        skipped_us=tick.tick_us if is_skipped else schedule.skipped_us,
    )
