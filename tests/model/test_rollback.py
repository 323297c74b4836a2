"""The pure rules: events replay to the same state, and a rolled-back batch leaves no trace.

A state is compared by everything in it: jobs, records, writers, counters, every
index, the tallies and the rotation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from casque.job import Failure, JobStatus
from casque.record import ABSENT, PAUSE
from casque.rules.additions import new_job
from casque.rules.counts import Tally
from casque.rules.evolve import evolve
from casque.rules.operations import (
    Ack,
    Batch,
    Cancel,
    DeleteRecord,
    Dequeue,
    Discard,
    Drop,
    Enqueue,
    Fail,
    Heartbeat,
    Insert,
    Nack,
    Operation,
    Purge,
    PutRecord,
    Release,
    Request,
    RequeueStale,
    Retry,
)
from casque.rules.state import State
from casque.rules.transaction import transact
from casque.stores.document.codec import decode, encode

QUEUES = ("north", "south", "west")
ENTRYPOINTS = ("mail", "print", "sort")
IDS = tuple("abcdefghijkl")
WRITERS = ("ann", "bob", "cat")
SECOND = 1_000_000
START = 1_577_836_800 * SECOND
SPANS = [0, SECOND, 10 * SECOND, 3600 * SECOND]

queues = st.sampled_from(QUEUES)
some_queue = st.none() | queues
some_entrypoints = st.none() | st.lists(
    st.sampled_from(ENTRYPOINTS), min_size=1, max_size=2, unique=True
).map(tuple)
ids = st.sampled_from(IDS)
spans = st.sampled_from(SPANS)
leases = st.sampled_from(SPANS[1:])
ttls = st.none() | leases
failures = st.none() | st.just(Failure(text="boom"))
places = st.integers(0, 5)
workers = st.sampled_from(WRITERS)


@st.composite
def one_request(draw: st.DrawFn) -> Request:
    place = draw(st.integers(0, len(IDS) - 1))
    # Each id has its own line; otherwise most operations of a random walk would be refused.
    line = place if draw(st.integers(0, 9)) else place + 1
    return Request(
        id=IDS[place],
        queue=QUEUES[line % 3],
        entrypoint=ENTRYPOINTS[line // 3 % 3],
        payload=draw(st.sampled_from([b"", b"x"])),
        priority=draw(st.sampled_from([0, -1, 5])),
        max_attempts=draw(st.sampled_from([1, 2, 25])),
        delay_us=draw(st.sampled_from([0, 0, 0, *SPANS])),
        retain_us=draw(st.none() | spans),
        header_pairs=draw(st.sampled_from([(), (("trace", "1"),)])),
    )


requests = one_request()
some_requests = st.lists(requests, max_size=2).map(tuple)


copies = st.builds(
    lambda request, status: replace(
        new_job(request, START),
        status=status,
        expires_us=None if status is JobStatus.QUEUED else START + 10 * SECOND,
        finished_us=None if status is JobStatus.QUEUED else START,
    ),
    requests,
    st.sampled_from([JobStatus.QUEUED, JobStatus.DEAD, JobStatus.COMPLETED]),
)


class ByHolder(NamedTuple):
    """An operation on a claim that is chosen only when the operation runs."""

    kind: Any
    place: int
    options: dict[str, Any]


class OnRecord(NamedTuple):
    """A put or delete of a record, at its version at that time."""

    key: tuple[str, str]
    is_put: bool
    ttl_us: int | None


class PurgeOfSome(NamedTuple):
    """A purge of the jobs at these places, under their tokens at that time."""

    places: list[int]


def by_holder(kind: type, **options: st.SearchStrategy[Any]) -> st.SearchStrategy[ByHolder]:
    return st.builds(ByHolder, st.just(kind), places, st.fixed_dictionaries(options))


Asked = Operation | ByHolder | OnRecord | PurgeOfSome
AskedBatch = tuple[str, int, list[Asked]]

enqueues = st.builds(
    Enqueue, st.lists(requests, min_size=1, max_size=4).map(tuple), max_depth=st.just(16)
)
dequeues = st.builds(
    Dequeue,
    worker=workers,
    lease_us=leases,
    limit=st.integers(1, 4),
    entrypoints=some_entrypoints,
    queue=some_queue,
)
asked: st.SearchStrategy[Asked] = st.one_of(
    enqueues,
    enqueues,
    dequeues,
    dequeues,
    dequeues,
    st.builds(Dequeue, worker=workers, lease_us=leases, id=ids),
    by_holder(Ack, result=st.just(b"done"), enqueue=some_requests, max_depth=st.just(16)),
    by_holder(Nack, delay_us=spans, failure=failures),
    by_holder(Fail, failure=failures),
    by_holder(Discard, reason=st.just("no")),
    by_holder(Release, delay_us=spans),
    by_holder(Heartbeat, lease_us=ttls),
    st.builds(Cancel, ids),
    st.builds(Retry, ids),
    st.builds(RequeueStale, spans),
    st.builds(Insert, st.lists(copies, min_size=1, max_size=3).map(tuple), st.sampled_from(SPANS)),
    st.builds(Purge, spans, some_queue),
    st.builds(Purge, spans, some_queue, st.sampled_from(JobStatus)),
    st.builds(PurgeOfSome, st.lists(places, max_size=3)),
    st.builds(Drop, queues),
    st.builds(OnRecord, st.tuples(st.just(PAUSE), queues), st.booleans(), ttls),
    st.builds(OnRecord, st.just(("note", "one")), st.booleans(), ttls),
)
pauses = st.sampled_from([0, SECOND, 30 * SECOND, 1000 * SECOND])
first_batches = st.tuples(
    workers, pauses, st.lists(requests, min_size=8, max_size=8).map(lambda jobs: [stock(jobs)])
)
batches = st.tuples(
    first_batches,
    st.lists(st.tuples(workers, pauses, st.lists(asked, min_size=1, max_size=3)), max_size=15),
).map(lambda drawn: [drawn[0], *drawn[1]])


def stock(jobs: list[Request]) -> Operation:
    """The first jobs; if several requests have one id, the first of them."""
    return Enqueue(tuple({job.id: job for job in reversed(jobs)}.values()), max_depth=16)


def operation(state: State, one: Asked) -> Operation:
    """The operation, completed with the claims and versions of this state."""
    if isinstance(one, OnRecord):
        record = state.records.get(one.key)
        version = ABSENT if record is None else record.version
        if one.is_put:
            return PutRecord(*one.key, value=b"v", expect=version, ttl_us=one.ttl_us)
        return DeleteRecord(*one.key, expect=version)
    if isinstance(one, PurgeOfSome):
        jobs = sorted((job.id, job.token) for job in state.jobs.values())
        return Purge(0, only=tuple(jobs[place % len(jobs)] for place in one.places if jobs))
    if not isinstance(one, ByHolder):
        return one
    claims = [(job_id, state.jobs[job_id].token) for job_id in sorted(state.in_progress)]
    claims.append(("a", 1))
    hold = claims[one.place % len(claims)]
    if one.kind is Heartbeat:
        return Heartbeat((hold, *claims[:1]), **one.options)
    held: Operation = one.kind(*hold, **one.options)
    return held


def commits(
    state: State, asked: list[AskedBatch]
) -> Iterator[tuple[str, int, list[Operation], int]]:
    """The arguments of successive `transact` calls, some time apart."""
    now = START
    for number, (writer, pause, batch) in enumerate(asked, start=1):
        now += pause
        yield writer, number, [operation(state, one) for one in batch], now


def fingerprint(state: State, now: int) -> dict[str, Any]:
    """Everything in a state, as plain values, with the counts from `now` on."""
    return {
        "counters": (state.version, state.token, state.seq, state.turn, state.time_us),
        "jobs": dict(sorted(state.jobs.items())),
        "records": dict(sorted(state.records.items())),
        "writers": (dict(state.writers), list(state._writers_seen)),
        "tally": tallied(state.tally, now),
        "queues": {
            name: (tallied(index.tally, now), sorted(index.lines))
            for name, index in sorted(state.queues.items())
        },
        "lines": {
            (line.queue, line.entrypoint): {
                "turn": line.turn,
                "priorities": line.priorities[:],
                "ranks": {priority: list(rank) for priority, rank in sorted(line.ranks.items())},
            }
            for line in sorted(state.lines(), key=lambda line: (line.queue, line.entrypoint))
        },
        "misplaced": misplaced(state),
        "in progress": sorted(state.in_progress),
        "paused": sorted(state._paused),
        "expiry": (list(state._job_expiry), list(state._record_expiry)),
        "unsettled": sorted(state._changed),
    }


def misplaced(state: State) -> list[Any]:
    """The errors in the rotation: lines in a wrong index or place. Must be empty."""
    ring: set[Any] = set()
    waiting: set[Any] = set()
    for line in state.lines():
        assert line.earliest_us == min(
            due_us for rank in line.ranks.values() for due_us, _, _ in rank
        )
        assert line.visit_us in (None, line.earliest_us)
        if not state.is_paused(line.queue):
            name = (line.turn, line.queue, line.entrypoint)
            (ring if line.visit_us is None else waiting).add((line.visit_us, *name))
    wrong: list[Any] = []
    for expected, places in ((ring, state.rotation._ring), (waiting, state.rotation._waiting)):
        found: list[Any] = list(places.all)
        own: list[Any] = [place for some in places.own.values() for place in some]
        assert sorted(found) == sorted(own)
        wrong += expected ^ {place if len(place) == 4 else (None, *place) for place in found}
    return wrong


def tallied(tally: Tally, now: int) -> dict[str, Any]:
    # A job that has become due may or may not have left the index of scheduled jobs.
    coming = [moment for moment in tally.scheduled or () if moment[0] > now]
    return {
        "counts": list(tally.counts),
        "scheduled": coming,
        "last_attempts": list(tally.last_attempts or ()),
        "stats": [tally.stats(at, at) for at in (now, now + SECOND, now + 3600 * SECOND)],
    }


repeatable = settings(
    deadline=None,
    max_examples=100,
    derandomize=True,
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@repeatable
@given(batches)
def test_events_replayed_on_a_fresh_state_lead_to_the_same_state(asked: list[AskedBatch]) -> None:
    state, other = State(), State()
    for writer, number, batch, now in commits(state, asked):
        done = transact(state, [Batch(writer, number, batch)], now)
        if done.events:
            other.begin(now)
            for event in done.events:
                evolve(other, event)
            other.stamp(done.stamps)
        assert fingerprint(other, now) == fingerprint(state, now)


@repeatable
@given(batches)
def test_a_rolled_back_batch_leaves_the_state_unchanged(asked: list[AskedBatch]) -> None:
    state = State()
    for writer, number, batch, now in commits(state, asked):
        then = state.time_us
        before = fingerprint(state, then)
        done = transact(state, [Batch(writer, number, batch)], now)
        after = fingerprint(state, now)
        if done.events:
            state.rollback()
        assert fingerprint(state, then) == before
        transact(state, [Batch(writer, number, batch)], now)
        assert fingerprint(state, now) == after


@repeatable
@given(batches)
def test_a_stored_state_is_read_back_as_it_was(asked: list[AskedBatch]) -> None:
    state = State()
    for writer, number, batch, now in commits(state, asked):
        transact(state, [Batch(writer, number, batch)], now)
        assert fingerprint(decode(encode(state), "state"), now) == fingerprint(state, now)
