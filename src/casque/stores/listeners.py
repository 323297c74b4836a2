"""Listeners: the waiting dequeues to wake when a job may have become claimable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from casque.rules.operations import (
    Added,
    Event,
    Failed,
    RecordsDeleted,
    Released,
    Renewed,
    Requeued,
    Retried,
)
from casque.system.clock import Bell

# A lease that is renewed may end sooner than it would have.
_MAKES_CLAIMABLE = (Added, Failed, Released, Renewed, Requeued, Retried, RecordsDeleted)


def makes_claimable(event: Event) -> bool:
    """Whether a job may have become claimable by this."""
    return isinstance(event, _MAKES_CLAIMABLE)


class Listeners:
    """The bells of this process's waiting dequeues on one store."""

    def __init__(self) -> None:
        self.all: dict[int, Bell] = {}

    @contextmanager
    def listening(self, bell: Bell) -> Iterator[None]:
        self.all[id(bell)] = bell
        try:
            yield
        finally:
            self.all.pop(id(bell), None)  # none of a parent's are left in its child

    def ring_for(self, events: Iterable[Event]) -> None:
        """Wake the waiting if one of `events` can have made a job claimable."""
        if self.all and any(map(makes_claimable, events)):
            self.ring()

    def ring(self) -> None:
        for bell in list(self.all.values()):
            bell.ring()
