"""Comparison: whether two states are equal, and whether the indexes of a state fit its jobs."""

from __future__ import annotations

from typing import Any

from casque.rules.state import State


def contents(state: State) -> dict[str, Any]:
    """Return everything that two states after the same commits must agree on, by name."""
    return {
        "counters": (state.version, state.token, state.seq, state.turn, state.time_us),
        "jobs": state.jobs,
        "records": state.records,
        "writers": state.writers,
        "lines": sorted(
            (line.queue, line.entrypoint, line.turn, sorted(line.ids())) for line in state.lines()
        ),
        "jobs in progress": sorted(state.in_progress),
        "counts": state.stats(None, state.time_us),
        "queues": {name: state.stats(name, state.time_us) for name in sorted(state.queues)},
    }


def difference(one: State, other: State) -> str | None:
    """Return the name of the first thing in which two states differ; None if they are equal."""
    theirs = contents(other)
    return next((name for name, mine in contents(one).items() if mine != theirs[name]), None)


def inconsistency(state: State) -> str | None:
    """Return what is wrong with a state; None if its counters and indexes fit its jobs."""
    places: set[int] = set()
    for job in state.jobs.values():
        if job.token > state.token:
            return f"job {job.id} has token {job.token}, and the last one is {state.token}"
        if job.seq > state.seq or job.seq in places:
            return f"job {job.id} has place {job.seq}, which another job has or will get"
        places.add(job.seq)
    for record in state.records.values():
        if record.version > state.token:
            return f"the {record.kind} record {record.name!r} has a version that was never issued"
    if any(line.turn > state.turn for line in state.lines()):
        return f"a line has a turn above {state.turn}, the last one"
    state.begin(state.time_us)  # so that nothing is undone
    state.end()
    name = difference(state, state.repaired())
    return None if name is None else f"its {name} do not fit its jobs"
