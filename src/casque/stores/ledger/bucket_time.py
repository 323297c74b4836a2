"""BucketTime: a ledger's time. It is the bucket's time, never goes back and never stops.

No process uses its own wall clock, because the clocks of fifty machines differ. Each process writes
an object, reads the time that the bucket gave to the object, and counts on from there with the
monotonic clock. The result is late rather than early: by a round trip, and by up to a second where
the bucket rounds down.
"""

from __future__ import annotations

from casque.system.clock import MINUTE_US, NO_STEP, SECOND_US, STEP_US, Clock, Step

ASK_EVERY_US = 10 * MINUTE_US
"""How often a process that writes asks the bucket again."""
BEHIND_US = 60 * SECOND_US
"""How far the log may be ahead of the bucket's time."""

_DRIFT_US = SECOND_US
_SLOWER = 1_000


class BucketTime:
    """This process's estimate of the bucket's time and of the log's time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: tuple[int, int] | None = None
        """The last time read from the bucket, and our monotonic clock then or later."""
        self._drift = 0
        self._seen = (0, clock.monotonic())
        """The time of the newest entry, and our monotonic clock when we read it."""
        self._newest = 0
        self._stands = False
        self._last = 0, 0
        """The last result of `now`, and our monotonic clock then."""
        self.step = NO_STEP
        """The last clock step that this process saw: a folder uses the machine's own clock."""

    def is_due(self) -> bool:
        """True if the bucket's time was not read lately, or wall and monotonic clock diverged."""
        if self._told is None:
            return True
        clock = self._clock
        has_parted = abs(clock.now() - clock.monotonic() - self._drift) > _DRIFT_US
        return has_parted or clock.monotonic() - self._told[1] > ASK_EVERY_US

    def told(self, modified_us: int, written_at: int) -> None:
        """Record a time of the bucket; `written_at` is our monotonic clock after it."""
        self._told = modified_us, written_at
        self._drift = self._clock.now() - self._clock.monotonic()

    def saw(self, time_us: int) -> None:
        """Note the time of the newest entry."""
        self._newest = max(self._newest, time_us)
        if time_us > self._counted():
            self._seen = time_us, self._clock.monotonic()

    def forget(self) -> None:
        """Forget the times of entries: they may no longer be part of the log."""
        self._seen, self._newest = (0, self._clock.monotonic()), 0

    def may_write(self) -> bool:
        """False if the log's time is too far ahead of the bucket's.

        Then the log's time stands still, and this process lets the bucket's time catch up.
        """
        is_near = self.behind_us() <= BEHIND_US
        if self._stands or not is_near:
            self._seen = self._newest, self._clock.monotonic()
            self._stands = not is_near
        return is_near

    def now(self) -> int:
        now, monotonic = max(self.asked(), self._counted()), self._clock.monotonic()
        last, at = self._last
        leap = now - last - (monotonic - at)
        if last and leap > STEP_US:
            self.step = Step(now, leap + self.step.ahead_us)
        self._last = now, monotonic
        return now

    def behind_us(self) -> int:
        """Return how far the log's time is ahead of our estimate of the bucket's time."""
        return self.now() - self.asked()

    def idle_us(self) -> int:
        """Return how long ago the newest entry was written; 0 before the bucket was asked."""
        return 0 if self._told is None else self.now() - self._newest

    def asked(self) -> int:
        """Return the bucket's own time, even if the log's is ahead of it."""
        assert self._told is not None, "ask the bucket for its time before deciding anything"
        modified, at = self._told
        return modified + self._clock.monotonic() - at

    def _counted(self) -> int:
        """Return the log's time: an entry's time plus slightly less than the time since.

        At full speed the log's time would always follow the fastest clock of all writers.
        """
        seen, at = self._seen
        span = 0 if self._stands else self._clock.monotonic() - at
        return seen + span - span // _SLOWER if seen else 0
