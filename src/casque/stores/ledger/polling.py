"""Polling: how often a waiting process checks whether another process has written to the log.

Each check is a request, and each request costs money. So a process checks often while the log
grows, and less and less often once it has stopped growing.
"""

from __future__ import annotations

from casque.stores.ledger.bucket_time import BucketTime
from casque.system.clock import SECOND_US

QUICK_US = SECOND_US // 2
"""The interval while the log grows."""
QUICK_LOCAL_US = SECOND_US // 20
"""The same, where a check costs almost nothing."""
SLOWEST_US = 17 * SECOND_US // 10
"""The interval once the log has not grown for a while. With everything else that an idle worker
does, these are 0.7 requests a second, and a job is found within 2 s."""
IDLE_SHARE = 10
"""The interval is at most this part of the time since the newest entry."""


class Polling:
    """The polling interval of one store."""

    def __init__(self, time: BucketTime, slowest_us: int | None, *, blocking: bool) -> None:
        """`slowest_us` is the user's choice, if there is one."""
        quick_us, usual_us = (
            (QUICK_LOCAL_US, QUICK_LOCAL_US) if blocking else (QUICK_US, SLOWEST_US)
        )
        self._time = time
        self._slowest_us = usual_us if slowest_us is None else slowest_us
        self._quick_us = min(quick_us, self._slowest_us)

    def interval_us(self) -> int:
        """Return how long to wait before the next check."""
        return min(max(self._time.idle_us() // IDLE_SHARE, self._quick_us), self._slowest_us)
