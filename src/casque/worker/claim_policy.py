"""Appetite: when a worker asks for jobs, of which queue, and for how many.

It does no I/O and takes no lock: the deck has both.
"""

from __future__ import annotations

from typing import NamedTuple

from casque.rules.decide import Leased

_PARTIAL_US = 50_000
"""When to ask again after a claim that brought fewer than asked: it does not say when more come."""


class Portion(NamedTuple):
    """What to ask for."""

    queue: str | None
    """None: of any."""
    limit: int


class Appetite:
    """What is known of the queues: whether they may have jobs, and when they will have."""

    def __init__(self, queues: tuple[str, ...] | None) -> None:
        self._queues: tuple[str | None, ...] = queues or (None,)
        self._turn = 0
        """Whose turn it is of several queues."""
        self._hungry = len(self._queues)
        """How many of them are to be asked before all are known to be empty."""
        self._rings = self._heard_rings = 0
        self._is_first = True
        self.ask_us: int | None = None
        """When to ask again though nobody rings."""

    @property
    def is_hungry(self) -> bool:
        return self._hungry > 0

    def wake(self) -> None:
        """There may be jobs in any of the queues."""
        self._hungry = len(self._queues)

    def ring(self) -> None:
        """The store says that there may be."""
        self._rings += 1
        self.wake()

    def portion(self, free: int, now: int) -> Portion | None:
        """The next jobs, if there is room: of all queues, or of the next of several in its turn."""
        # In the middle of a round it goes on with that: on a slow store, time is always over.
        if not self._hungry and self.ask_us is not None and now >= self.ask_us:
            self.wake()
        if not free or not self._hungry:
            return None
        # What rings from now on may come too late for this claim.
        self._heard_rings = self._rings
        self._is_first = self._hungry == len(self._queues)
        queue = self._queues[self._turn % len(self._queues)]
        return Portion(queue, max(free // self._hungry, 1))

    def fed(self, asked: int, leased: Leased, sent: int, now: int, longest_us: int | None) -> None:
        """What a claim that was sent then brought; `longest_us` is how long the store may be deaf.

        An empty answer says when the next job is due; one that brought fewer than
        asked does not, and is no proof that there are no more.
        """
        self._turn += 1
        is_emptied = len(leased.jobs) < asked and self._rings == self._heard_rings
        self._hungry = max(self._hungry - 1, 0) if is_emptied else len(self._queues)
        times = [] if leased.next_in_us is None else [sent + max(leased.next_in_us, 1)]
        pauses = [longest_us, _PARTIAL_US if leased.jobs else None]
        times += [now + us for us in pauses if us is not None]
        if self.ask_us is not None and not self._is_first:  # of several queues, the soonest counts
            times.append(self.ask_us)
        self.ask_us = min(times, default=None)
