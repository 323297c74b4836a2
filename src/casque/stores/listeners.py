"""Listeners: what to wake when a job may be claimable.

Also when a schedule has changed, or a worker was ordered to stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from casque.record import DISMISSAL, SCHEDULE
from casque.rules.operations import (
    Added,
    Event,
    Failed,
    Inserted,
    RecordPut,
    RecordsDeleted,
    Released,
    Renewed,
    Requeued,
    Retried,
)
from casque.system.clock import Bell

# A renewed lease may end sooner than before.
_MAKES_CLAIMABLE = (Added, Failed, Inserted, Released, Renewed, Requeued, Retried, RecordsDeleted)


def makes_claimable(event: Event) -> bool:
    """True if the event may have made a job claimable, changed a schedule or dismissed a worker."""
    if isinstance(event, RecordPut):
        return event.record.kind in (SCHEDULE, DISMISSAL)
    return isinstance(event, _MAKES_CLAIMABLE)


class Listeners:
    """The waiting dequeues of this process on one store, each with a Bell that wakes it."""

    def __init__(self) -> None:
        self.all: dict[int, Bell] = {}

    @contextmanager
    def listening(self, bell: Bell) -> Iterator[None]:
        self.all[id(bell)] = bell
        try:
            yield
        finally:
            self.all.pop(id(bell), None)  # a child starts without its parent's bells

    def ring_for(self, events: Iterable[Event]) -> None:
        """Wake the waiting dequeues if one of `events` may have made a job claimable."""
        if self.all and any(map(makes_claimable, events)):
            self.ring()

    def ring(self) -> None:
        for bell in list(self.all.values()):
            bell.ring()
