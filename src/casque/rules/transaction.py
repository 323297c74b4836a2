"""transact: batches of operations, decided and evolved as one.

Each operation is decided on the state evolved by those before it, and one that
is refused fails alone. Until the events are stored, all of it can be taken back.
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
"""How many records and retained jobs whose time is over one commit clears away, of each."""


class Decided(NamedTuple):
    """Decided batches. `events` is empty when nothing needs to be stored."""

    events: list[Event]
    outcomes: list[list[Any]]
    """Per batch and operation its result, or the `CasqueError` it was refused with."""
    stamps: list[BatchStamp]
    """Of the batches that have events."""


def transact(state: State, batches: Sequence[Batch], now: int) -> Decided:
    """Decide and evolve batches. The caller stores the events, or calls `state.rollback()`.

    If this is interrupted, `state.is_whole` stays False: see `State.mended`.
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
        state.rollback()  # a commit is whole or it did not happen
        raise
    # What is no Exception, a KeyboardInterrupt say, can strike anywhere: the state is left
    # as not whole, and its owner mends it or forgets it.
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
    """Clear away a bounded number of the things whose time is over."""
    events: list[Event] = []
    if ids := tuple(job.id for job in islice(state.gone_jobs(now), PRUNED_AT_ONCE)):
        events.append(Removed(ids))
    gone = islice(state.gone_records(now), PRUNED_AT_ONCE)
    if keys := tuple((record.kind, record.name) for record in gone):
        events.append(RecordsDeleted(keys))
    return events
