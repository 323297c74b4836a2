"""Adoption: makes a restored copy of a document a queue of its own, under a new identity."""

from __future__ import annotations

from casque.record import EPHEMERAL
from casque.rules import views
from casque.rules.state import State
from casque.rules.transaction import transact
from casque.stores.maintenance import Adoption, adoption, refuse_if_used
from casque.system.clock import Clock


def adopt(state: State, name: str, clock: Clock, now: int, *, force: bool) -> Adoption:
    """Give the state a new identity, end all claims, and raise its token counter."""
    if not force:
        for kind in sorted(EPHEMERAL):
            refuse_if_used(name, views.records(state, kind, now))
    done = transact(state, [adoption(clock.new_id(), state.token, now)], now)
    state.identity = clock.new_id()
    return Adoption(name, state.identity, state.token, taken_back=done.outcomes[0][0])
