"""Dismissal watch: looks for an order to this worker to stop for good.

Only the store thread calls it, except for `ring`. It is asked to look after each renewal of the
worker's entry. In between it looks after `ring`, but not more often than `every_us`.
"""

from __future__ import annotations

from casque.queues.session import Session
from casque.record import DISMISSAL


class DismissalWatch:
    """Knows when to look for an order, and looks."""

    def __init__(self, session: Session, every_us: int) -> None:
        self._session = session
        self._clock = session.clock
        self._every_us = every_us
        self._look_us = 0
        self._is_rung = False

    def ring(self) -> None:
        """Ask for a `look`: there may be an order. Thread-safe."""
        self._is_rung = True

    def wait_us(self) -> int | None:
        """How long to wait before the next look; None: until `ring` is called."""
        return max(self._look_us - self._clock.monotonic(), 0) if self._is_rung else None

    async def look(self) -> bool:
        """Return True if there is an order to this worker."""
        self._look_us = self._clock.monotonic() + self._every_us
        self._is_rung = False
        try:
            orders = await self._session.records(DISMISSAL)
        except Exception:  # noqa: BLE001 - no answer; the commits of the worker report the storage
            self._is_rung = True
            return False
        return any(one.name == self._session.worker for one in orders)
