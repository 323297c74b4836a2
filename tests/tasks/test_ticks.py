"""Ticks: the instants of cron lines and intervals, and which of them are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from casque.errors import InvalidError
from casque.schedule import Schedule
from casque.system.clock import SECOND_US, to_datetime, to_us
from casque.tasks import ticks

HOURLY = Schedule(entrypoint="e", line="@hourly", since_us=to_us(datetime(2026, 1, 1, tzinfo=UTC)))


def utc(*parts: int) -> int:
    return to_us(datetime(*parts, tzinfo=UTC))  # type: ignore[arg-type,misc] # parts of a date


def first(line: str, tz: str, after: int, count: int = 2) -> list[str]:
    found = islice(ticks.after(Schedule(entrypoint="e", line=line, tz=tz), after), count)
    return [f"{to_datetime(tick):%m-%d %H:%M}" for tick in found]


@pytest.mark.parametrize(
    ("tz", "begin", "line", "expected"),
    [
        # Berlin: 02:00 to 03:00 comes twice on 2026-10-25, and not at all on 2026-03-29.
        ("Europe/Berlin", (2026, 10, 24, 12), "30 2 * * *", ["10-25 00:30", "10-26 01:30"]),
        ("Europe/Berlin", (2026, 3, 28, 12), "30 2 * * *", ["03-29 01:00", "03-30 00:30"]),
        # New York: 01:00 to 02:00 comes twice on 2026-11-01; 02:00 to 03:00 is missing on 03-08.
        ("America/New_York", (2026, 10, 31, 12), "30 1 * * *", ["11-01 05:30", "11-02 06:30"]),
        ("America/New_York", (2026, 3, 7, 12), "30 2 * * *", ["03-08 07:00", "03-09 06:30"]),
    ],
)
def test_a_daily_line_fires_once_on_the_day_of_a_clock_change(
    tz: str, begin: tuple[int, ...], line: str, expected: list[str]
) -> None:
    assert first(line, tz, utc(*begin)) == expected


def test_a_line_of_every_hour_fires_in_each_real_hour_of_a_clock_change() -> None:
    begin = utc(2026, 10, 24, 23, 30)
    expected = [f"10-25 {hour:02}:00" for hour in range(5)]
    assert first("0 * * * *", "Europe/Berlin", begin, 5) == expected


def test_a_schedule_that_begins_in_the_second_pass_of_an_hour_waits_for_the_next_day() -> None:
    second_pass = datetime(2026, 10, 25, 2, 15, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    begin = to_us(second_pass.astimezone(UTC))
    assert first("30 2 * * *", "Europe/Berlin", begin, 1) == ["10-26 01:30"]


def test_an_interval_counts_from_1970_so_all_processes_agree() -> None:
    every = Schedule(entrypoint="e", every_us=7 * SECOND_US)
    assert list(islice(ticks.after(every, 0), 3)) == [n * 7 * SECOND_US for n in (1, 2, 3)]
    assert next(ticks.after(every, 7 * SECOND_US)) == 14 * SECOND_US


@pytest.mark.parametrize("line", [*ticks.NAMES, "*/5 * * * *", "0 9 * * MON-FRI", "0 0 L * *"])
def test_a_good_line_is_accepted_and_can_be_told_in_words(line: str) -> None:
    assert ticks.check_line(f" {line.lower()} ").lower() == line.lower()
    assert ticks.in_words(Schedule(entrypoint="e", line=line)).endswith(" (UTC)")


@pytest.mark.parametrize(
    "line",
    [
        *("", "* * * *", "0 * * * * *", "60 * * * *", "* 24 * * *", "@never", "@", "a b c d e"),
        *("*/0 * * * *", "5-1 * * * *", "1-2-3 * * * *", "* * * * MON#6", "0 0 30 2 *"),
        *("* * * * 8", "* * 0 * *", "* * * 13 *", "\x00 * * * *", "٣ * * * *", 5, None, b"x"),
    ],
)
def test_a_bad_line_is_refused_with_the_remedy(line: object) -> None:
    with pytest.raises(InvalidError, match=r"field|expected|never fires"):
        ticks.check_line(line)


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../x", "/etc/passwd", "Europe", "a\x00b", 5])
def test_a_bad_time_zone_is_refused_with_the_remedy(zone: object) -> None:
    with pytest.raises(InvalidError, match=r"Europe/Berlin"):
        ticks.check_zone(zone)


def test_the_newest_missed_tick_is_found_however_long_ago_the_last_one_was() -> None:
    begin, now = datetime(2001, 1, 1, tzinfo=UTC), datetime(2026, 6, 1, 12, 0, 30, tzinfo=UTC)
    for line, newest in (
        ("* * * * *", datetime(2026, 6, 1, 12, 0, tzinfo=UTC)),
        ("@yearly", datetime(2026, 1, 1, tzinfo=UTC)),
        ("0 0 29 2 *", datetime(2024, 2, 29, tzinfo=UTC)),
    ):
        late = Schedule(entrypoint="e", line=line, since_us=to_us(begin))
        assert ticks.due_ticks(late, to_us(now), 10) == [to_us(newest)]
    never = Schedule(entrypoint="e", line="@yearly", since_us=utc(2026, 2, 1))
    assert ticks.due_ticks(never, to_us(now), 10) == []


def test_ticks_in_time_fire_each_whatever_the_policy() -> None:
    every = Schedule(entrypoint="e", every_us=SECOND_US, since_us=utc(2026, 1, 1), catch_up="skip")
    now = every.since_us + 3 * SECOND_US
    assert ticks.due_ticks(every, now, 10) == [every.since_us + n * SECOND_US for n in (1, 2, 3)]
    assert ticks.due_ticks(every, now, 2) == [every.since_us + n * SECOND_US for n in (1, 2)]


def test_the_next_ticks_come_after_now_and_after_the_last_tick() -> None:
    hour = timedelta(hours=1) // timedelta(microseconds=1)
    since = HOURLY.since_us
    assert ticks.next_ticks(HOURLY, since - 5 * hour, 2) == [since + hour, since + 2 * hour]
    assert ticks.next_ticks(HOURLY, since + 5 * hour, 1) == [since + 6 * hour]


@pytest.mark.parametrize(
    ("every_us", "words"),
    [
        (60 * SECOND_US, "Every minute"),
        (90 * SECOND_US, "Every 90 seconds"),
        (7_200 * SECOND_US, "Every 2 hours"),
        (86_400 * SECOND_US, "Every day"),
        (1_500_000, "Every 1500ms"),
    ],
)
def test_an_interval_is_told_in_words(every_us: int, words: str) -> None:
    assert ticks.in_words(Schedule(entrypoint="e", every_us=every_us)) == words
