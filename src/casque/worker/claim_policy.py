"""Claim policy: when a worker asks for jobs, from which queue, and for how many.

This module does no I/O and takes no lock: the store thread does both.
"""

from __future__ import annotations

from typing import NamedTuple

from casque.rules.decide import Leased

_PARTIAL_US = 50_000
"""The pause after a claim that found fewer jobs than asked: it does not say when more are due."""


class NextClaim(NamedTuple):
    """A claim to send."""

    queue: str | None
    """None: any queue."""
    limit: int


class ClaimPolicy:
    """Tracks which queues may have jobs, and when jobs will be due."""

    def __init__(self, queues: tuple[str, ...] | None) -> None:
        self._queues: tuple[str | None, ...] = queues or (None,)
        self._turn = 0
        """The position of the queue that is next."""
        self._unasked = len(self._queues)
        """How many queues to ask before all are known to be empty."""
        self._rings = self._heard_rings = 0
        self._is_first = True
        self.ask_us: int | None = None
        """When to ask again if the store does not ring."""

    @property
    def may_find_jobs(self) -> bool:
        return self._unasked > 0

    def expect_jobs(self) -> None:
        """Assume that any of the queues may have jobs."""
        self._unasked = len(self._queues)

    def ring(self) -> None:
        """Note that a job may have become claimable."""
        self._rings += 1
        self.expect_jobs()

    def next_claim(self, free: int, now: int) -> NextClaim | None:
        """Return the next claim; None if no slot is free or no queue may have jobs."""
        # Do not restart a round that is under way: on a slow store, `ask_us` has always passed.
        if not self._unasked and self.ask_us is not None and now >= self.ask_us:
            self.expect_jobs()
        if not free or not self._unasked:
            return None
        # A ring from now on may come too late for this claim.
        self._heard_rings = self._rings
        self._is_first = self._unasked == len(self._queues)
        queue = self._queues[self._turn % len(self._queues)]
        return NextClaim(queue, max(free // self._unasked, 1))

    def answered(
        self, asked: int, leased: Leased, sent: int, now: int, longest_us: int | None
    ) -> None:
        """Note the answer to a claim. Ask again after `longest_us` even if `ring` is not called.

        An answer without jobs says when the next job is due. An answer with fewer jobs than asked
        does not say that, and more jobs may be due.
        """
        self._turn += 1
        is_emptied = len(leased.jobs) < asked and self._rings == self._heard_rings
        self._unasked = max(self._unasked - 1, 0) if is_emptied else len(self._queues)
        times = [] if leased.next_in_us is None else [sent + max(leased.next_in_us, 1)]
        pauses = [longest_us, _PARTIAL_US if leased.jobs else None]
        times += [now + us for us in pauses if us is not None]
        if self.ask_us is not None and not self._is_first:  # the earliest of all queues counts
            times.append(self.ask_us)
        self.ask_us = min(times, default=None)
