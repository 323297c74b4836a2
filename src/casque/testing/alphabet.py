"""The values that the machine's calls use: few names and few spans, so that calls collide."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

QUEUES = ("default", "north", "south")
ENTRYPOINTS = ("mail", "print", "sort")
IDS = ("a", "b", "c", "d", "e")
WORKERS = ("ann", "bob", "cat")
NOTE = "note"
NOTES = ("one", "two")
SCHEDULES = ("hourly", "nightly")
MAX_DEPTH = 1

Order = dict[str, Any]
"""The options of a NewJob; `run_in` stands for a `run_at` that far from now."""

Deed = tuple[str, dict[str, Any]]
"""A method of the machine and its arguments."""


def seconds(*choices: float) -> st.SearchStrategy[timedelta]:
    """One of these spans."""
    return st.sampled_from([timedelta(seconds=choice) for choice in choices])


workers = st.integers(0, len(WORKERS) - 1)
queues = st.sampled_from(QUEUES)
some_queue = st.none() | queues
leases = seconds(10, 1, 60)
delays = st.none() | seconds(0, 1, 10, 3600)
errors: st.SearchStrategy[str | Exception] = st.sampled_from(["", "boom", ValueError("odd")])
notes = st.sampled_from(NOTES)
reasons = st.sampled_from(["", "not wanted"])
headers = st.sampled_from([None, None, None, {"trace": "1"}, {"b": "é", "a": ""}])
places = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8])
"""An index into a list that has the most useful items first."""
holders = st.tuples(workers, places, st.sampled_from([False, False, False, True]))
"""The worker that calls, the index of a claim, and whether the call passes only the job's id."""


@st.composite
def orders(draw: st.DrawFn, ids: st.SearchStrategy[str | None]) -> Order:
    """A job to enqueue, under one of `ids`."""
    job_id, line = draw(ids), draw(st.tuples(queues, st.sampled_from(ENTRYPOINTS)))
    if job_id is not None and draw(st.integers(0, 3)):
        # Mostly enqueue an id to its own line: then it is a duplicate, not an error.
        place = IDS.index(job_id)
        line = (QUEUES[place % 3], ENTRYPOINTS[place // 3])
    when = draw(st.sampled_from(["delay", "run_in"]))
    far = [None, None, None, 0, 1, 10] if when == "delay" else [-3600, -1, 0, 10, 3600]
    span = draw(st.sampled_from(far))
    return {
        "queue": line[0],
        "entrypoint": line[1],
        "payload": draw(st.sampled_from([b"", b"x", b"\x00\xff", bytes(8_192), bytes(8_193)])),
        "priority": draw(st.sampled_from([0, -1, 5])),
        "id": job_id,
        "max_attempts": draw(st.sampled_from([25, 1, 1, 2, 3])),
        "retain": draw(st.none() | seconds(0, 10, 3600)),
        "timeout": draw(st.none() | seconds(30)),
        "headers": draw(headers),
        when: None if span is None else timedelta(seconds=span),
    }


any_orders = orders(st.none() | st.sampled_from(IDS))
named_orders = orders(st.sampled_from(IDS))
rarely = st.sampled_from([False, False, False, True])


def _deeds(method: str, **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Deed]:
    return st.tuples(st.just(method), st.fixed_dictionaries(options))


_backs = st.integers(0, 2)
_schedules = st.sampled_from(SCHEDULES)
_schedule_options = st.sampled_from([{}, {}, {"overlap": "skip"}, {"is_paused": True}])
_aways = st.sampled_from([0, 0, 0, -10, 1, None])
"""How many seconds a tick is away from now; None is a run by hand."""

management = st.one_of(
    _deeds("cancel", worker=workers, place=places, reason=reasons),
    _deeds("pause", worker=workers, queue=queues),
    _deeds("purge", worker=workers, older_than=seconds(0, 10, 3600), queue=some_queue),
    _deeds("retry", worker=workers, place=places),
    _deeds("requeue_stale", worker=workers, timeout=seconds(0, 60)),
    _deeds("resume", worker=workers, queue=queues),
    _deeds("drop", worker=workers, queue=queues),
)

accidents = st.one_of(
    _deeds("put_record", name=notes, back=_backs, ttl=st.none() | seconds(10, 60)),
    _deeds("delete_record", name=notes, back=_backs),
    _deeds("put_schedule", name=_schedules, back=_backs, options=_schedule_options),
    _deeds("tick", name=_schedules, back=_backs, away=_aways, order=any_orders),
    _deeds("keep_dead", stay=st.none() | seconds(0, 10, 30 * 86_400)),
    _deeds("lease_queue", worker=workers, queue=queues, lease=leases),
    _deeds("die", worker=workers),
    _deeds("reopen", worker=workers),
    _deeds("let_time_pass", span=seconds(3600, 31 * 86_400)),
)
