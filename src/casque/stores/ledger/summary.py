"""Summary: the counts of a ledger, in each entry, so that they are known without its jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import astuple

from casque.job import Stats
from casque.rules.operations import Added, Event
from casque.rules.state import NEVER, State


class Summary(NamedTuple):
    """The counts after an entry."""

    stats: Stats
    until_us: int
    """When a job changes state by itself, because its time has come."""


EMPTY = Summary(Stats(), NEVER)
"""Of a ledger without entries."""


def summary_of(state: State, now: int) -> Summary | None:
    """Return the counts of a state; None if they depend on a clock step of this process."""
    if state.judged_us(now) != now:
        return None
    return Summary(state.stats(None, now), state.stats_hold_until(now))


def with_added(summary: Summary | None, events: Iterable[Event], now: int) -> Summary | None:
    """Return the counts after these events, which only add jobs; None if they are not known."""
    if summary is None or now >= summary.until_us:
        return None
    pending, scheduled, *others = astuple(summary.stats)
    until = summary.until_us
    for event in events:
        assert isinstance(event, Added)
        if event.job.run_us > now:
            scheduled += 1
            until = min(until, event.job.run_us)
        else:
            pending += 1
    return Summary(Stats(pending, scheduled, *others), until)
