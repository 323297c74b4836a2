"""Pace: gives slow writers of one shared object a turn.

A process that writes without pause wins every race against a slower one. As long as the slower
process never writes, nothing in the object shows that it waits. So the first few of every `PERIOD`
versions are reserved for processes that have not written recently. At these versions the other
processes pause. The pause is long enough for a process ten times as slow to read and write. Only
the version number decides when they pause, so the processes need not know each other. A process
that is the only writer pauses once in a period.
"""

from __future__ import annotations

from collections import deque

from casque.system.clock import SECOND_US, Clock

PERIOD = 100
RESERVED = 20
"""How many versions of a period are reserved: several fast writers may be waiting too."""
QUIET_TRIPS = 25
"""How long a recent writer pauses at a reserved version, in its own round trips."""
RECENT_US = 2 * SECOND_US
"""A process that wrote within this time is a recent writer."""

_TRIPS_KEPT = 16


class Pace:
    """Decides how long this process pauses before its next write."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The shortest of the last trips counts: one that waited for others does not show the speed.
        self._trips: deque[int] = deque(maxlen=_TRIPS_KEPT)
        self._wrote_at: int | None = None
        self._wrote_version = 0
        self._held_period = -1

    def made_trip(self, trip_us: int) -> None:
        """Record how long one request took."""
        self._trips.append(trip_us)

    def wrote(self, version: int) -> None:
        """Record that this process wrote `version`."""
        self._wrote_at, self._wrote_version = self._clock.monotonic(), version

    def quiet_us(self, version: int) -> int:
        """Return how long to pause before replacing `version`."""
        period, place = divmod(version, PERIOD)
        if place >= RESERVED or not version:
            return 0
        if self._wrote_at is None or self._clock.monotonic() - self._wrote_at > RECENT_US:
            return 0
        if period == self._held_period and version == self._wrote_version:
            return 0  # it paused, and no other process wrote
        self._held_period = period
        return QUIET_TRIPS * min(self._trips, default=0)
