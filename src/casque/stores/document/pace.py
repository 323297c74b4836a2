"""Pace: how the writers of one shared object let the slow have a turn too.

A process that writes back to back wins every race against a slower one, and as
long as that one never gets in, nothing in the object shows that it waits. So
of every `PERIOD` versions the first few are left to those who have not written
for a while: the others hold back long enough for a process ten times as slow
to read and write. The version number says when; nobody needs to know of
anybody, and a writer that is alone holds back once in a period.
"""

from __future__ import annotations

from collections import deque

from casque.system.clock import SECOND_US, Clock

PERIOD = 100
RESERVED = 20
"""How many versions of a period are reserved: as many quick writers may be waiting too."""
QUIET_TRIPS = 25
"""How many of its own round trips a writer that had its share holds back on a reserved one."""
RECENT_US = 2 * SECOND_US
"""Who has written within this has had its share."""

_TRIPS_KEPT = 16


class Pace:
    """When this process may write next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The shortest of the last ones: a trip that waited for others is not a slow line.
        self._trips: deque[int] = deque(maxlen=_TRIPS_KEPT)
        self._wrote_at: int | None = None
        self._wrote_version = 0
        self._held_period = -1

    def made_trip(self, trip_us: int) -> None:
        """A request took this long."""
        self._trips.append(trip_us)

    def wrote(self, version: int) -> None:
        """A write of ours is stored."""
        self._wrote_at, self._wrote_version = self._clock.monotonic(), version

    def quiet_us(self, version: int) -> int:
        """How long to hold back before writing on top of `version`."""
        period, place = divmod(version, PERIOD)
        if place >= RESERVED or not version:
            return 0
        if self._wrote_at is None or self._clock.monotonic() - self._wrote_at > RECENT_US:
            return 0
        if period == self._held_period and version == self._wrote_version:
            return 0  # it held back, and nobody came
        self._held_period = period
        return QUIET_TRIPS * min(self._trips, default=0)
