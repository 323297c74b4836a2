"""transact: a batch of operations, decided and evolved as one.

Each operation is decided on the state evolved by those before it, and one that
is refused fails alone. Until the events are stored, all of it can be taken back.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from casque.errors import CasqueError
from casque.rules.decide import decide
from casque.rules.evolve import evolve
from casque.rules.operations import Event, Operation, RecordsDeleted, Removed
from casque.rules.state import State

PRUNED_AT_ONCE = 100
"""How many records and retained jobs whose time is over one commit clears away, of each."""


class Transaction(NamedTuple):
    """A decided batch. `events` is empty when nothing needs to be stored."""

    events: list[Event]
    outcomes: list[Any]
    """Per operation its result, or the `CasqueError` it was refused with."""


def transact(
    state: State, writer: str, number: int, operations: Iterable[Operation], now: int
) -> Transaction:
    """Decide and evolve a batch. The caller stores the events, or calls `state.rollback()`.

    If this is interrupted, `state.is_whole` stays False: see `State.mended`.
    """
    state.begin(now)
    events: list[Event] = []
    outcomes: list[Any] = []
    try:
        for operation in operations:
            try:
                decision = decide(state, operation, now)
            except CasqueError as refusal:
                outcomes.append(refusal)
                continue
            for event in decision.events:
                evolve(state, event)
            events.extend(decision.events)
            outcomes.append(decision.answer(state))
        if events:
            for event in prune(state, now):
                evolve(state, event)
                events.append(event)
            state.stamp(writer, number)
    except Exception:
        state.rollback()  # a batch is whole or it did not happen
        raise
    # What is no Exception, a KeyboardInterrupt say, can strike anywhere: the state is left
    # as not whole, and its owner mends it or forgets it.
    if events:
        state.end()
    else:
        state.rollback()
    return Transaction(events, outcomes)


def prune(state: State, now: int) -> list[Event]:
    """Clear away a bounded number of the things whose time is over."""
    events: list[Event] = []
    if ids := tuple(job.id for job in islice(state.gone_jobs(now), PRUNED_AT_ONCE)):
        events.append(Removed(ids))
    gone = islice(state.gone_records(now), PRUNED_AT_ONCE)
    if keys := tuple((record.kind, record.name) for record in gone):
        events.append(RecordsDeleted(keys))
    return events
