"""Pace: which writer pauses, and when."""

from __future__ import annotations

from datetime import timedelta

from casque.stores.document.pace import PERIOD, QUIET_TRIPS, RESERVED, Pace
from casque.testing import FakeClock

TRIP = 10_000


def busy(clock: FakeClock, version: int) -> Pace:
    pace = Pace(clock)
    pace.made_trip(TRIP)
    pace.made_trip(50 * TRIP)  # it waited for others, so it does not show the speed
    pace.wrote(version)
    return pace


def test_a_writer_alone_pauses_once_in_a_period() -> None:
    pace = busy(FakeClock(), PERIOD)
    held = 0
    for version in range(PERIOD, 2 * PERIOD):
        held += pace.quiet_us(version)
        pace.wrote(version + 1)
    assert held == QUIET_TRIPS * TRIP


def test_a_recent_writer_pauses_on_every_reserved_version_of_another() -> None:
    pace = busy(FakeClock(), PERIOD)
    assert [bool(pace.quiet_us(PERIOD + place)) for place in (0, 1, RESERVED - 1)] == [True] * 3
    assert not pace.quiet_us(PERIOD + RESERVED)


def test_a_writer_that_has_waited_goes_first() -> None:
    clock = FakeClock()
    pace = busy(clock, PERIOD - 1)
    clock.advance(timedelta(seconds=3))
    assert not pace.quiet_us(PERIOD)
    assert not Pace(clock).quiet_us(PERIOD)
