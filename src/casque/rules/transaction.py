"""transact: decides batches of operations and applies their events, as one transaction.

Each operation is decided on the state after the operations before it. A refused operation does not
affect the others. Until the events are stored, everything can be rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from casque.errors import CasqueError
from casque.rules.answers import kept_answers
from casque.rules.decide import decide
from casque.rules.evolve import evolve
from casque.rules.operations import Batch, BatchStamp, Event, Operation, RecordsDeleted, Removed
from casque.rules.state import State

PRUNED_AT_ONCE = 100
"""How many expired records, and how many expired jobs, one commit removes at most."""


class Decided(NamedTuple):
    """Decided batches. `events` is empty if nothing needs to be stored."""

    events: list[Event]
    outcomes: list[list[Any]]
    """For each batch and operation: its result, or the `CasqueError` that refused it."""
    stamps: list[BatchStamp]
    """One for each batch that has events."""


def transact(state: State, batches: Sequence[Batch], now: int) -> Decided:
    """Decide batches and apply their events. The caller stores them or calls `state.rollback()`.

    If this is interrupted, `state.is_whole` stays False: see `State.repaired`.
    """
    state.begin(now)
    done = Decided([], [], [])
    events = done.events
    try:
        for batch in batches:
            begun = len(events)
            outcomes = _carry_out(state, batch.operations, now, events)
            done.outcomes.append(outcomes)
            if len(events) > begun:
                answers = kept_answers(batch.operations, outcomes) if batch.is_remote else b""
                done.stamps.append(BatchStamp(batch.writer, batch.number, answers))
        if events:
            for event in prune(state, now):
                evolve(state, event)
                events.append(event)
            state.stamp(done.stamps)
    except Exception:
        state.rollback()  # a commit happens completely or not at all
        raise
    # A BaseException such as KeyboardInterrupt can come anywhere: then `is_whole` stays False,
    # and the owner of the state calls `repaired` or discards it.
    if events:
        state.end()
    else:
        state.rollback()
    return done


def _carry_out(
    state: State, operations: Iterable[Operation], now: int, events: list[Event]
) -> list[Any]:
    outcomes: list[Any] = []
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
    return outcomes


def prune(state: State, now: int) -> list[Event]:
    """Return events that remove a bounded number of expired jobs and records."""
    events: list[Event] = []
    if ids := tuple(job.id for job in islice(state.gone_jobs(now), PRUNED_AT_ONCE)):
        events.append(Removed(ids))
    gone = islice(state.gone_records(now), PRUNED_AT_ONCE)
    if keys := tuple((record.kind, record.name) for record in gone):
        events.append(RecordsDeleted(keys))
    return events
