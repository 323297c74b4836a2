"""Schedules: operations that fire schedules, and that store the ones an app declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from msgspec.structs import replace

from casque import checks
from casque.errors import InvalidError
from casque.queues.arguments import NewJob, request
from casque.queues.lineage import OUTSIDE, Lineage
from casque.record import ABSENT, SCHEDULE, Record
from casque.rules.operations import PutRecord, Request, Tick
from casque.schedule import CatchUp, Schedule, decode, encode
from casque.system.clock import to_datetime
from casque.system.ids import Minted

NAME_HEADER = "casque-schedule"
TICK_HEADER = "casque-tick"

_TIMING = ("line", "every_us", "tz")
_DEFINITION = (
    *_TIMING,
    *("entrypoint", "payload", "queue", "priority", "max_attempts", "retain_us", "timeout_us"),
    *("catch_up", "window_us", "overlap", "app"),
)


def definition(new: NewJob, *, catch_up: object, overlap: object, **timing: Any) -> Schedule:
    """The schedule of a job with this timing. InvalidError if a field is wrong."""
    policy, window_us = _catch_up(catch_up)
    if overlap not in ("allow", "skip"):
        raise InvalidError(f"`overlap` must be 'allow' or 'skip', got {overlap!r}.")
    job = request(new, OUTSIDE, "", 0)
    return Schedule(
        entrypoint=job.entrypoint,
        payload=job.payload,
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        retain_us=job.retain_us,
        timeout_us=job.timeout_us,
        catch_up=policy,
        window_us=window_us,
        overlap="skip" if overlap == "skip" else "allow",
        **timing,
    )


def _catch_up(value: object) -> tuple[CatchUp, int]:
    if isinstance(value, timedelta):
        return "all", checks.positive_span(value, "catch_up")
    if value in ("skip", "one"):
        return ("skip" if value == "skip" else "one"), 0
    raise InvalidError(
        "`catch_up` must be 'skip', 'one', or a timedelta (all ticks missed within it); got "
        f"{value!r}."
    )


def readable(records: Sequence[Record]) -> dict[str, tuple[Record, Schedule]]:
    """The schedules in these records, by name, without those that cannot be decoded."""
    found: dict[str, tuple[Record, Schedule]] = {}
    for record in records:
        try:
            found[record.name] = record, decode(record)
        except InvalidError:
            continue
    return found


def tick_of(
    record: Record,
    schedule: Schedule,
    tick_us: int | None,
    mint: Callable[[int], Minted],
    lineage: Lineage = OUTSIDE,
) -> Tick:
    """The operation that fires this tick. For None, it adds the job once, now."""
    [job_id], [order] = mint(1)
    headers = [(NAME_HEADER, record.name)]
    if tick_us is not None:
        headers.append((TICK_HEADER, to_datetime(tick_us).isoformat()))
    job = Request(
        id=job_id,
        queue=schedule.queue,
        entrypoint=schedule.entrypoint,
        payload=schedule.payload,
        priority=schedule.priority,
        max_attempts=schedule.max_attempts,
        retain_us=schedule.retain_us,
        timeout_us=schedule.timeout_us,
        depth=lineage.depth,
        chain=lineage.chain,
        order=order,
        minted=True,
        header_pairs=tuple(headers),
    )
    return Tick(record.name, record.version, tick_us, job)


def due_tick(
    record: Record, schedule: Schedule, now: int, mint: Callable[[int], Minted]
) -> Tick | None:
    """The operation that fires the oldest due tick; None if no tick is due.

    Each tick changes the record, so the next tick needs the new record.
    """
    from casque.tasks import ticks  # noqa: PLC0415 - it loads cronsim

    due = ticks.due_ticks(schedule, now, 1)
    return tick_of(record, schedule, due[0], mint) if due else None


def changed(old: Schedule, new: Schedule, now: int) -> Schedule:
    """`old` with the definition of `new`. A different timing applies from now on."""
    merged = replace(old, **{name: getattr(new, name) for name in _DEFINITION})
    if any(getattr(old, name) != getattr(new, name) for name in _TIMING):
        return restarted(merged, now)
    return merged


def restarted(schedule: Schedule, now: int) -> Schedule:
    """The schedule, with only ticks after `now` that have not fired yet."""
    return replace(schedule, since_us=max(now, schedule.since_us))


class Sync(NamedTuple):
    """The changes that make the stored schedules equal to those in the code."""

    puts: list[PutRecord]
    stopped: list[str]
    """Names that are no longer in the code."""
    clashes: list[str]
    """Declared names that an operator's schedule has. It does not change."""
    taken: list[tuple[str, str]]
    """Declared names that an active schedule of another app had, and that app."""


def synchronised(
    declared: Mapping[str, Schedule],
    records: Sequence[Record],
    app: str,
    now: int,
    *,
    stops: bool = True,
) -> Sync:
    """Compare what the code of `app` declares with the stored schedules, by name.

    With `stops`, schedules of the app that its code no longer declares are stopped.
    """
    sync = Sync([], [], [], [])
    stored = readable(records)
    for name, schedule in declared.items():
        mine = replace(schedule, app=app)
        if name not in stored:
            new, version = replace(mine, since_us=now), ABSENT
        else:
            record, old = stored[name]
            if not old.app:
                sync.clashes.append(name)
                continue
            version, new = record.version, changed(old, mine, now)
            if old.app != app and not old.is_stopped:
                sync.taken.append((name, old.app))
            if old.is_stopped:
                new = replace(restarted(new, now), is_stopped=False)
            if new == old:
                continue
        sync.puts.append(PutRecord(SCHEDULE, name, encode(new), version))
    for name, (record, old) in stored.items():
        if stops and old.app == app and name not in declared and not old.is_stopped:
            stopped = encode(replace(old, is_stopped=True))
            sync.puts.append(PutRecord(SCHEDULE, name, stopped, record.version))
            sync.stopped.append(name)
    return sync
