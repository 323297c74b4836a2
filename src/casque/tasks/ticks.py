"""Ticks: the instants at which a schedule fires, from its cron line or its interval.

cronsim computes cron lines, time zones and clock changes. A line that
names an hour and a minute fires once on the days on which the clocks change.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from casque.errors import InvalidError
from casque.schedule import Schedule
from casque.system.clock import DAY_US, LONGEST_SPAN_US, MINUTE_US, SECOND_US, to_datetime, to_us
from casque.system.durations import told

NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
LATE_US = 10 * SECOND_US
"""A tick later than this counts as missed: `catch_up` decides if it fires."""
SHORTEST_US = SECOND_US
"""The shortest interval."""
_FIELDS = 5
_UNITS = (("day", DAY_US), ("hour", 60 * MINUTE_US), ("minute", MINUTE_US), ("second", SECOND_US))


def check_line(line: object) -> str:
    """The cron line. InvalidError if it cannot be read, or never fires."""
    if not isinstance(line, str):
        raise InvalidError(
            f"expected a cron line such as '*/5 * * * *', got {type(line).__name__}."
        )
    text = " ".join(line.split())
    if text.startswith("@"):
        if text.lower() not in NAMES:
            raise InvalidError(f"{line!r}: expected one of {', '.join(NAMES)}, or a cron line.")
        return text.lower()
    fields = text.split()
    if len(fields) != _FIELDS:
        raise InvalidError(
            f"{line!r}: expected five fields (minute, hour, day of month, month, day of week), "
            f"got {len(fields)}. Write '*/5 * * * *' or @daily."
        )
    try:
        fires = next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)), None)
    except (CronSimError, ValueError, AssertionError, OverflowError) as error:
        raise InvalidError(
            f"{line!r} is not a cron line: {str(error) or 'it cannot be read'}. The fields are "
            "minute, hour, day of month, month, day of week."
        ) from None
    if fires is None:
        raise InvalidError(f"{line!r} never fires: no date matches it.")
    return text


def check_interval(interval_us: int) -> int:
    """The interval. InvalidError if it is too short."""
    if interval_us < SHORTEST_US:
        raise InvalidError(
            f"the interval must be at least {told(SHORTEST_US)}, got {told(interval_us)}."
        )
    return interval_us


def check_zone(tz: object) -> str:
    """The name of the time zone. InvalidError if there is none of that name."""
    if not isinstance(tz, str):
        raise InvalidError(
            f"`tz` must be the name of a time zone, such as 'Europe/Berlin'; got "
            f"{type(tz).__name__}."
        )
    _zone(tz)
    return tz


def after(schedule: Schedule, instant_us: int) -> Iterator[int]:
    """The ticks after this instant, in order."""
    if schedule.every_us:
        tick = (instant_us // schedule.every_us + 1) * schedule.every_us
        while True:
            yield tick
            tick += schedule.every_us
    start = to_datetime(instant_us).astimezone(_zone(schedule.tz))
    for found in CronSim(NAMES.get(schedule.line, schedule.line), start):
        tick = to_us(found.astimezone(UTC))
        # In the hour that comes twice, cronsim begins with the first pass.
        if tick > instant_us:
            yield tick


def next_ticks(schedule: Schedule, now: int, count: int) -> list[int]:
    """The next ticks that will fire, unless the schedule changes."""
    return list(islice(after(schedule, max(now, schedule.since_us)), count))


def due_ticks(schedule: Schedule, now: int, limit: int) -> list[int]:
    """The ticks to fire now, the oldest first: those in time, and those that `catch_up` adds."""
    if not schedule.is_active:
        return []
    window_us = LATE_US
    if schedule.catch_up == "all":
        window_us = max(window_us, schedule.window_us)
    first = max(schedule.since_us, now - window_us)
    found: list[int] = []
    for tick in after(schedule, first):
        if tick > now or len(found) == limit:
            break
        found.append(tick)
    if not found and schedule.catch_up == "one":
        return _newest(schedule, now)
    return found


def _newest(schedule: Schedule, now: int) -> list[int]:
    """The newest tick that was missed, if there is one."""
    back_us = MINUTE_US
    while True:
        first = max(schedule.since_us, now - back_us)
        newest: int | None = None
        for tick in after(schedule, first):
            if tick > now:
                break
            newest = tick
        if newest is not None:
            return [newest]
        if first == schedule.since_us or back_us > LONGEST_SPAN_US:
            return []
        back_us *= 8


def in_words(schedule: Schedule) -> str:
    """When it fires: `Every 5 minutes`, `At 09:00 every day (Europe/Berlin)`."""
    if schedule.every_us:
        return f"Every {_span_in_words(schedule.every_us)}"
    line = NAMES.get(schedule.line, schedule.line)
    words = CronSim(line, datetime(2000, 1, 1, tzinfo=UTC)).explain()
    return f"{words} ({schedule.tz})"


def _span_in_words(span_us: int) -> str:
    for name, unit_us in _UNITS:
        count, rest = divmod(span_us, unit_us)
        if count and not rest:
            return name if count == 1 else f"{count} {name}s"
    return told(span_us)


@lru_cache(maxsize=100)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # ZoneInfoNotFoundError is a KeyError
        raise InvalidError(
            f"there is no time zone {name[:50]!r} on this machine. Write a name such as "
            "'Europe/Berlin' or 'UTC'; if the name is right, install the package tzdata."
        ) from None
