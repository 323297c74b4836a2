"""BucketTime: the time of a ledger: the bucket's, never back, never standing still.

No process asks its own wall clock what time it is, for those of fifty machines
differ. It writes an object, reads when the bucket says that was, and counts on
from there by its monotonic clock. That is a little late rather than early, by
a round trip and the second that some buckets round down by.
"""

from __future__ import annotations

from casque.system.clock import MINUTE_US, NO_STEP, SECOND_US, STEP_US, Clock, Step

ASK_EVERY_US = 10 * MINUTE_US
"""How often a process that writes asks the bucket again."""
BEHIND_US = 60 * SECOND_US
"""How far the log may be ahead of what the bucket told this process."""

_DRIFT_US = SECOND_US
_SLOWER = 1_000


class BucketTime:
    """What this process knows of the bucket's time, and of the log's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: tuple[int, int] | None = None
        """What the bucket's clock showed, and our monotonic one at that time or later."""
        self._drift = 0
        self._seen = (0, clock.monotonic())
        """The time of the newest entry, and our monotonic clock when we learned of it."""
        self._newest = 0
        self._stands = False
        self._last = 0, 0
        """What time it was, and our monotonic clock then."""
        self.step = NO_STEP
        """The last leap that this process saw: a folder's clock is the machine's own."""

    def is_due(self) -> bool:
        """Whether the bucket is to be asked: not yet, not lately, or our clocks have parted."""
        if self._told is None:
            return True
        clock = self._clock
        has_parted = abs(clock.now() - clock.monotonic() - self._drift) > _DRIFT_US
        return has_parted or clock.monotonic() - self._told[1] > ASK_EVERY_US

    def told(self, modified_us: int, written_at: int) -> None:
        """The bucket stamped an object with this time; it was written by then, monotonic."""
        self._told = modified_us, written_at
        self._drift = self._clock.now() - self._clock.monotonic()

    def saw(self, time_us: int) -> None:
        """The newest entry has this time."""
        self._newest = max(self._newest, time_us)
        if time_us > self._counted():
            self._seen = time_us, self._clock.monotonic()

    def forget(self) -> None:
        """What was seen of the log may be none of it any more."""
        self._seen, self._newest = (0, self._clock.monotonic()), 0

    def may_write(self) -> bool:
        """Whether the log is not too far ahead. While it is, nothing is counted on from it.

        For then we write nothing, and the bucket can catch up with it.
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
        """How far the log's time is ahead of the bucket's as we know it."""
        return self.now() - self.asked()

    def asked(self) -> int:
        """The bucket's own time, however far the log's is ahead of it."""
        assert self._told is not None, "the bucket is asked before anything is decided"
        modified, at = self._told
        return modified + self._clock.monotonic() - at

    def _counted(self) -> int:
        """The log's time, counted on from the newest entry: a little too slowly.

        Else it would run as fast as the fastest clock of all who write, for ever.
        """
        seen, at = self._seen
        span = 0 if self._stands else self._clock.monotonic() - at
        return seen + span - span // _SLOWER if seen else 0
