"""machine: drives a store and the oracle side by side, and compares them after every step.

`machine_for` gives a hypothesis state machine for a store and a flavour of
queue. Its alphabet is small, so that ids collide, leases run out under their
holders and queues take turns. A step is decided at the instant the clock shows
when the call has returned: a store that pauses between two tries lets time pass.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from casque.arguments import NewJob
from casque.errors import CasqueError, LeaseLostError
from casque.job import Job, Stats
from casque.operations import DeleteRecord, Operation, PutRecord
from casque.queue import AsyncQueue, BrokerQueue, DirectQueue
from casque.syncqueue import Queue
from casque.testing.oracle import PAUSE, QUEUE_LEASE, Hold, Lost, ModelJob, ModelRecord, Oracle
from casque.testing.rig import Flavour, Harness

QUEUES = ("default", "north", "south")
ENTRYPOINTS = ("mail", "print", "sort")
IDS = ("a", "b", "c", "d", "e")
WORKERS = ("ann", "bob", "cat")
NOTE = "note"
NOTES = ("one", "two")
MAX_DEPTH = 2
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

Order = dict[str, Any]
"""The options of a NewJob; `run_in` stands for a `run_at` that far from now."""


def _seconds(*choices: float) -> st.SearchStrategy[timedelta]:
    return st.sampled_from([timedelta(seconds=choice) for choice in choices])


_workers = st.integers(0, len(WORKERS) - 1)
_queues = st.sampled_from(QUEUES)
_some_queue = st.none() | _queues
_leases = _seconds(10, 1, 60)
_delays = st.none() | _seconds(0, 1, 10, 3600)
_errors: st.SearchStrategy[str | Exception] = st.sampled_from(["", "boom", ValueError("odd")])
_reasons = st.sampled_from(["", "not wanted"])
_place = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8])
"""Which one of a list that begins with those most worth trying."""
_holders = st.tuples(_workers, _place, st.sampled_from([False, False, False, True]))
"""Who speaks, of which claim, and whether it names the job by its id alone."""


@st.composite
def _orders(draw: st.DrawFn, ids: st.SearchStrategy[str | None]) -> Order:
    job_id, line = draw(ids), draw(st.tuples(_queues, st.sampled_from(ENTRYPOINTS)))
    if job_id is not None and draw(st.integers(0, 3)):
        # An id that mostly comes back to its own line is mostly a duplicate, not a mistake.
        place = IDS.index(job_id)
        line = (QUEUES[place % 3], ENTRYPOINTS[place // 3])
    when = draw(st.sampled_from(["delay", "run_in"]))
    seconds = [None, None, None, 0, 1, 10] if when == "delay" else [-3600, -1, 0, 10, 3600]
    span = draw(st.sampled_from(seconds))
    return {
        "queue": line[0],
        "entrypoint": line[1],
        "payload": draw(st.sampled_from([b"", b"x", b"\x00\xff"])),
        "priority": draw(st.sampled_from([0, -1, 5])),
        "id": job_id,
        "max_attempts": draw(st.sampled_from([25, 1, 1, 2, 3])),
        "retain": draw(st.none() | _seconds(0, 10, 3600)),
        "timeout": draw(st.none() | _seconds(30)),
        when: None if span is None else timedelta(seconds=span),
    }


_named = st.sampled_from(IDS)
_any_order = _orders(st.none() | _named)


def _seldom_unless(is_worth_it: Callable[[Any], object]) -> Callable[[Any], bool]:
    """A precondition: when it is worth it, and now and then when it is a mistake or no use."""
    return lambda machine: bool(is_worth_it(machine)) or machine.steps % 4 == 0


_has_claims = precondition(lambda self: self.claims)
_seldom = precondition(_seldom_unless(lambda _: False))


class _Claim(NamedTuple):
    """A job as its holder was handed it, and the oracle's token for that claim."""

    job: Job
    token: int


class _Stored(NamedTuple):
    """A record, or a lease that is one, as the store showed it."""

    value: bytes
    version: int
    gone_at: datetime | None


class _Worker:
    """A queue object on a store handle of its own, and which claims it was handed."""

    def __init__(
        self, harness: Harness, flavour: Flavour, name: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.name = name
        self.handed: dict[str, int] = {}
        """By job id, the oracle's token of the last claim."""
        self._loop = loop
        self._store = harness.open()
        kinds: dict[Flavour, type[AsyncQueue | Queue]] = {
            "direct": DirectQueue,
            "broker": BrokerQueue,
            "queue": Queue,
        }
        self._queue = kinds[flavour](self._store, worker=name, max_depth=MAX_DEPTH)
        self.enter(self._queue)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Do it and wait for it, whatever the flavour."""
        return self._run(getattr(self._queue, method)(*args, **options))

    def enter(self, context: Any) -> Any:
        is_async = isinstance(context, AbstractAsyncContextManager)
        return self._run(context.__aenter__() if is_async else context.__enter__())

    def leave(self, context: Any) -> None:
        is_async = isinstance(context, AbstractAsyncContextManager)
        self._run((context.__aexit__ if is_async else context.__exit__)(None, None, None))

    def close(self) -> None:
        self.leave(self._queue)
        # A Queue on a store that suspends ran it in a loop of its own, which has ended by now.
        if isinstance(self._queue, AsyncQueue) or self._store.blocking:
            self._run(self._store.close())

    def _run(self, answer: Any) -> Any:
        return self._loop.run_until_complete(answer) if inspect.isawaitable(answer) else answer


class StoreMachine(RuleBasedStateMachine):
    """Every rule is done to the store and to the oracle; `machine_for` says to which store."""

    open_harness: ClassVar[Callable[[], Harness]]
    flavour: ClassVar[Flavour]

    def __init__(self) -> None:
        super().__init__()
        self.harness = type(self).open_harness()
        self.oracle = Oracle(MAX_DEPTH)
        self.steps = 0
        self.claims: list[_Claim] = []
        """Every claim ever handed out: whoever lost one may still come back with it."""
        self._loop = asyncio.new_event_loop()
        self._opened: list[_Worker] = []
        self.workers = [self._open(name) for name in WORKERS]
        self._reader = self._open("reader")
        self._store = self.harness.open()
        self._commits = 0
        self._queue_leases: list[tuple[_Worker, Any, str, int]] = []
        self._versions: dict[str, list[int]] = {name: [0] for name in NOTES}
        """The oracle's versions of each note, the newest last."""
        self._store_tokens = {0: 0}
        """The store's token for each of the oracle's: of claims and record versions alike."""
        self._raw = self.harness.raw()
        self._written_us = 0

    def _open(self, name: str) -> _Worker:
        worker = _Worker(self.harness, self.flavour, name, self._loop)
        self._opened.append(worker)
        return worker

    def teardown(self) -> None:
        for worker, context, _, _ in self._queue_leases:
            worker.leave(context)
        for worker in self._opened:
            worker.close()
        self._loop.run_until_complete(self._store.close())
        self._loop.close()

    # -- producing -------------------------------------------------------------

    @initialize(orders=st.lists(_any_order, min_size=3, max_size=10))
    def begin(self, orders: list[Order]) -> None:
        for order in orders:
            self.enqueue(0, order)

    @rule(worker=_workers, order=_any_order)
    def enqueue(self, worker: int, order: Order) -> None:
        new = self._new(order)
        options = {name: getattr(new, name) for name in new.__struct_fields__}
        self._both(
            lambda: [self.workers[worker].call("enqueue", **options)],
            lambda now, jobs: self.oracle.enqueue(now, _with_ids([new], jobs)),
        )

    @rule(worker=_workers, orders=st.lists(_any_order, min_size=1, max_size=4))
    def enqueue_many(self, worker: int, orders: list[Order]) -> None:
        new = [self._new(order) for order in orders]
        self._both(
            lambda: self.workers[worker].call("enqueue_many", new),
            lambda now, jobs: self.oracle.enqueue(now, _with_ids(new, jobs)),
        )

    def _new(self, order: Order) -> NewJob:
        options = dict(order)
        if "run_in" in options:
            options["run_at"] = self._now() + options.pop("run_in")
        return NewJob(**options)

    # -- claiming --------------------------------------------------------------

    @rule(
        worker=_workers,
        entrypoint=st.none() | st.lists(st.sampled_from(ENTRYPOINTS), min_size=1, max_size=3),
        queue=_some_queue,
        batch_size=st.sampled_from([1, 2, 3, 10]),
        lease=_leases,
    )
    def dequeue(self, worker: int, **options: Any) -> None:
        who = self.workers[worker]

        def expect(now: datetime, jobs: list[Job]) -> list[ModelJob]:
            models = self.oracle.dequeue(now, who.name, **options)
            assert _ids(jobs) == _ids(models), f"claimed {_ids(jobs)}, not {_ids(models)}"
            self._match([(model.token, job.token) for model, job in zip(models, jobs, strict=True)])
            return models

        jobs, models = self._both(lambda: who.call("dequeue", **options), expect)
        now_us = self.harness.clock.now()
        for job, model in zip(jobs, models, strict=True):
            due_us = self._raw.jobs[job.id]["due_us"]
            assert due_us is not None, f"{job.id} was finished, and is claimed"
            assert due_us <= now_us, f"{job.id} was held until {due_us}, and is claimed at {now_us}"
            who.handed[job.id] = model.token
            self.claims.append(_Claim(job, model.token))

    @rule(worker=_workers, batch_size=st.integers(1, 3), lease=_leases)
    def dequeue_anything(self, worker: int, batch_size: int, lease: timedelta) -> None:
        self.dequeue(worker, batch_size=batch_size, lease=lease)

    @rule(worker=_workers, batch_size=st.integers(1, 3), lease=_leases)
    def dequeue_what_comes_due(self, worker: int, batch_size: int, lease: timedelta) -> None:
        self.wait_for_the_next_moment(early=False)
        self.dequeue(worker, batch_size=batch_size, lease=lease)

    @rule(worker=_workers, entrypoint=st.sampled_from(ENTRYPOINTS), lease=_leases)
    def dequeue_one_entrypoint(self, worker: int, entrypoint: str, lease: timedelta) -> None:
        self.dequeue(worker, entrypoint=[entrypoint], lease=lease)

    @rule(worker=_workers, place=_place, queue=_some_queue, lease=_leases)
    def dequeue_by_id(self, worker: int, place: int, queue: str | None, lease: timedelta) -> None:
        self.dequeue(worker, id=self._id(place), queue=queue, lease=lease)

    # -- what a holder does, or one who was ------------------------------------

    @_has_claims
    @rule(
        holder=_holders,
        result=st.sampled_from([None, b"", b"done"]),
        orders=st.just([]) | st.lists(_orders(_named), max_size=2),
    )
    def ack(self, holder: tuple[int, int, bool], result: bytes | None, orders: list[Order]) -> None:
        following = [self._new(order) for order in orders]
        self._as_holder("ack", holder, result=result, enqueue=following)

    @_has_claims
    @rule(holder=_holders, delay=_delays, error=_errors)
    def nack(self, holder: tuple[int, int, bool], **options: Any) -> None:
        self._as_holder("nack", holder, **options)

    @_has_claims
    @rule(holder=_holders, error=_errors)
    def fail(self, holder: tuple[int, int, bool], **options: Any) -> None:
        self._as_holder("fail", holder, **options)

    @_has_claims
    @rule(holder=_holders, reason=_reasons)
    def discard(self, holder: tuple[int, int, bool], **options: Any) -> None:
        self._as_holder("discard", holder, **options)

    @_has_claims
    @rule(holder=_holders, delay=_delays)
    def release(self, holder: tuple[int, int, bool], **options: Any) -> None:
        self._as_holder("release", holder, **options)

    @_has_claims
    @rule(
        holder=_holders,
        lease=st.none() | _leases,
        progress=st.sampled_from([None, 0.0, 0.5]),
        note=st.sampled_from([None, "half way"]),
    )
    def heartbeat(self, holder: tuple[int, int, bool], **options: Any) -> None:
        self._as_holder("heartbeat", holder, **options)

    @_has_claims
    @rule(worker=_workers, places=st.lists(_place, min_size=1, max_size=3))
    def ack_many(self, worker: int, places: list[int]) -> None:
        self._as_holder_of_many("ack_many", worker, places)

    @_has_claims
    @rule(
        worker=_workers, places=st.lists(_place, min_size=1, max_size=4), lease=st.none() | _leases
    )
    def heartbeat_many(self, worker: int, places: list[int], lease: timedelta | None) -> None:
        self._as_holder_of_many("heartbeat_many", worker, places, lease=lease)

    def _as_holder(self, method: str, holder: tuple[int, int, bool], **options: Any) -> None:
        worker, place, by_id = holder
        who, claim = self.workers[worker], self._claim(place)
        name: Job | str = claim.job.id if by_id else claim.job
        token = who.handed.get(claim.job.id, 0) if by_id else claim.token
        self._both(
            lambda: who.call(method, name, **options),
            lambda now, _: getattr(self.oracle, method)(now, claim.job.id, token, **options),
        )

    def _as_holder_of_many(
        self, method: str, worker: int, places: list[int], **options: Any
    ) -> None:
        claims = [self._claim(place) for place in places]
        holds: list[Hold] = [(claim.job.id, claim.token) for claim in claims]
        self._both(
            lambda: self.workers[worker].call(method, [claim.job for claim in claims], **options),
            lambda now, _: getattr(self.oracle, method)(now, holds, **options),
        )

    def _claim(self, place: int) -> _Claim:
        """One of all that were ever handed out: the live ones first, then the newest."""
        live = {job.token for job in self.oracle.jobs.values() if job.status == "in_progress"}
        claims = sorted(self.claims, key=lambda claim: (claim.token not in live, -claim.token))
        return claims[place % len(claims)]

    # -- what anybody may do ---------------------------------------------------

    @_seldom
    @rule(worker=_workers, place=_place, reason=_reasons)
    def cancel(self, worker: int, place: int, reason: str) -> None:
        self._as_anybody("cancel", worker, self._id(place), reason=reason)

    @precondition(_seldom_unless(lambda self: self._has("dead")))
    @rule(worker=_workers, place=_place)
    def retry(self, worker: int, place: int) -> None:
        self._as_anybody("retry", worker, self._id(place, first="dead"))

    @precondition(_seldom_unless(lambda self: self._has("completed", "dead", "cancelled")))
    @rule(worker=_workers, older_than=_seconds(0, 10, 3600), queue=_some_queue)
    def purge(self, worker: int, older_than: timedelta, queue: str | None) -> None:
        self._as_anybody("purge", worker, older_than=older_than, queue=queue)

    @precondition(_seldom_unless(lambda self: self._has("in_progress")))
    @rule(worker=_workers, timeout=_seconds(0, 1, 10, 60))
    def requeue_stale(self, worker: int, timeout: timedelta) -> None:
        self._as_anybody("requeue_stale", worker, timeout)

    @_seldom
    @rule(worker=_workers, queue=_queues)
    def pause(self, worker: int, queue: str) -> None:
        self._as_anybody("pause", worker, queue)

    @precondition(_seldom_unless(lambda self: self.oracle.records_of(self._now(), PAUSE)))
    @rule(worker=_workers, queue=_queues)
    def resume(self, worker: int, queue: str) -> None:
        self._as_anybody("resume", worker, queue)

    @_seldom
    @rule(worker=_workers, queue=_queues)
    def drop(self, worker: int, queue: str) -> None:
        self._as_anybody("drop", worker, queue)

    def _as_anybody(self, method: str, worker: int, *args: Any, **options: Any) -> None:
        self._both(
            lambda: self.workers[worker].call(method, *args, **options),
            lambda now, _: getattr(self.oracle, method)(now, *args, **options),
        )

    def _has(self, *statuses: str) -> bool:
        return any(job.status in statuses for job in self.oracle.seen(self._now()).values())

    def _id(self, place: int, first: str = "") -> str:
        """The id of a job, newest first, those of status `first` before all; or of none."""
        seen = self.oracle.seen(self._now()).values()
        jobs = sorted(seen, key=lambda job: (job.status != first, -job.place))
        ids = [*_ids(jobs), "nobody"]
        return ids[place % len(ids)]

    # -- records ---------------------------------------------------------------

    @_seldom
    @rule(name=st.sampled_from(NOTES), back=st.integers(0, 2), ttl=st.none() | _seconds(10, 60))
    def put_record(self, name: str, back: int, ttl: timedelta | None) -> None:
        expect, value = self._version(name, back), b"%d" % self._commits
        span = None if ttl is None else ttl // MICROSECOND
        operation = PutRecord(NOTE, name, value, self._store_tokens[expect], span)

        def model(now: datetime, stored: Any) -> ModelRecord:
            record = self.oracle.put_record(now, (NOTE, name), value, expect=expect, ttl=ttl)
            if isinstance(stored, _Stored):
                self._match([(record.version, stored.version)])
            self._versions[name].append(record.version)
            return record

        self._both(lambda: _stored(self._commit(operation)), model)

    @_seldom
    @rule(name=st.sampled_from(NOTES), back=st.integers(0, 2))
    def delete_record(self, name: str, back: int) -> None:
        expect = self._version(name, back)
        operation = DeleteRecord(NOTE, name, self._store_tokens[expect])
        self._both(
            lambda: self._commit(operation),
            lambda now, _: self.oracle.delete_record(now, (NOTE, name), expect=expect),
        )

    @_seldom
    @rule(worker=_workers, queue=_queues, lease=_leases)
    def lease_queue(self, worker: int, queue: str, lease: timedelta) -> None:
        who = self.workers[worker]
        context = who.call("lease_queue", queue, lease=lease)

        def take() -> _Stored | None:
            held = who.enter(context)
            return None if held is None else _Stored(held.worker.encode(), held.token, held.until)

        def model(now: datetime, held: Any) -> ModelRecord | None:
            record = self.oracle.lease_queue(now, who.name, queue, lease)
            if record is not None and isinstance(held, _Stored):
                self._match([(record.version, held.version)])
            return record

        _, record = self._both(take, model)
        version = 0 if record is None else record.version
        self._queue_leases.append((who, context, queue, version))

    @precondition(lambda self: self._queue_leases)
    @rule(place=_place)
    def let_queue_go(self, place: int) -> None:
        who, context, queue, version = self._queue_leases.pop(place % len(self._queue_leases))
        self._both(
            lambda: who.leave(context),
            lambda now, _: self.oracle.let_queue_go(now, queue, version),
        )

    def _version(self, name: str, back: int) -> int:
        """A version that the note has, or had."""
        versions = self._versions[name]
        return versions[-1 - back % len(versions)]

    def _commit(self, operation: Operation) -> Any:
        self._commits += 1
        commit = self._store.commit("machine", self._commits, [operation])
        [outcome] = self._loop.run_until_complete(commit)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    # -- time and accidents ----------------------------------------------------

    @rule(span=_seconds(1, 0.001, 10, 60))
    def let_time_pass(self, span: timedelta) -> None:
        self.harness.clock.advance(span)

    @_seldom
    @rule(span=_seconds(3600, 31 * 86_400))
    def let_much_time_pass(self, span: timedelta) -> None:
        self.harness.clock.advance(span)

    @rule(early=st.booleans())
    def wait_for_the_next_moment(self, early: bool) -> None:  # noqa: FBT001 - passed by name
        """To the instant at which something comes due or is over, or to just before."""
        now = self._now()
        moment = self.oracle.next_moment(now)
        if moment is not None:
            self.harness.clock.advance(moment - now - early * MICROSECOND)

    @_seldom
    @rule(worker=_workers)
    def die(self, worker: int) -> None:
        """Nobody is told; what it held is held until the leases end."""
        name = f"{WORKERS[worker]}-{len(self._opened)}"
        self.workers[worker] = self._open(name)

    @_seldom
    @rule(worker=_workers)
    def reopen(self, worker: int) -> None:
        who = self.workers[worker]
        if any(holder is who for holder, *_ in self._queue_leases):
            return
        who.close()
        self._opened.remove(who)
        self.workers[worker] = self._open(who.name)

    # -- comparing -------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        self.steps += 1
        self._what_is_stored_is_sound()
        self._jobs_agree()
        self._order_agrees()
        self._counts_agree()
        self._records_agree()

    def _jobs_agree(self) -> None:
        expected = self.oracle.seen(self._now())
        self._assert_agree(list(self._reader.call("read_state").jobs), list(expected.values()))
        for job_id in (*IDS, "nobody"):
            self._assert_agree(self._reader.call("get", job_id), expected.get(job_id))

    def _order_agrees(self) -> None:
        now, reader = self._now(), self._reader
        asked: list[tuple[list[str] | None, str | None]] = [(None, None)]
        asked += [([entrypoint], None) for entrypoint in ENTRYPOINTS]
        asked += [(None, queue) for queue in QUEUES]
        for entrypoint, queue in asked:
            seen = _ids(reader.call("peek", entrypoint, queue=queue, limit=100))
            expected = self.oracle.peek(now, entrypoint, queue, 100)
            assert seen == expected, f"peek({entrypoint}, {queue}): {seen}, not {expected}"

    def _counts_agree(self) -> None:
        now, reader = self._now(), self._reader
        for queue in (None, *QUEUES):
            stats, expected = reader.call("stats", queue), self.oracle.stats(now, queue)
            assert stats == Stats(**expected), f"stats({queue}): {stats}, not {expected}"
        for queue in QUEUES:
            first = reader.call("next_run_at", queue)
            assert first == self.oracle.next_run_at(queue), f"next_run_at({queue}): {first}"
        there = {job.queue for job in self.oracle.seen(now).values()}
        assert set(reader.call("queues")) == there
        assert set(reader.call("queues", due=True)) == self.oracle.due_queues(now)

    def _records_agree(self) -> None:
        for kind in (NOTE, PAUSE, QUEUE_LEASE):
            records = self._loop.run_until_complete(self._store.records(kind))
            expected = self.oracle.records_of(self._now(), kind)
            assert [record.name for record in records] == sorted(expected)
            for record in records:
                model = expected[record.name]
                if model.version not in self._store_tokens:  # a pause, whose call tells none
                    self._match([(model.version, record.version)])
                self._assert_agree(_stored(record), model)

    def _what_is_stored_is_sound(self) -> None:
        """Behind the API: tokens only rise, one record per line, and none visited late."""
        raw, before = self.harness.raw(), self._raw
        assert raw.token >= before.token, f"the counter fell from {before.token} to {raw.token}"
        earliest: dict[tuple[str, str], int] = {}
        for job_id, job in raw.jobs.items():
            assert job["token"] <= raw.token, f"{job_id}: token {job['token']} of {raw.token}"
            old = before.jobs.get(job_id, job)["token"]  # 0 again when the id came anew
            assert not job["token"] or job["token"] >= old, f"{job_id}: token fell from {old}"
            if job["due_us"] is not None:
                line = (job["queue"], job["entrypoint"])
                earliest[line] = min(job["due_us"], earliest.get(line, job["due_us"]))
        lines = sorted((line.queue, line.entrypoint) for line in raw.lines)
        assert lines == sorted(earliest), f"lines {lines} for the jobs of {sorted(earliest)}"
        for line_record in raw.lines:
            latest = max(earliest[line_record[:2]], self._written_us)
            assert line_record.visit_us <= latest, f"{line_record} is late: {latest}"
        self._raw = raw

    def _both(self, call: Callable[[], Any], model: Callable[[datetime, Any], Any]) -> Any:
        """Do it to the store, then to the oracle at that instant; both must answer the same."""
        changes, writes = self.oracle.changes, self.harness.writes()
        answer = _outcome(call)
        now = self._now()
        expected = _outcome(lambda: model(now, answer))
        if self.harness.writes() != writes:
            assert self.oracle.changes != changes, f"wrote, though nothing changes: {answer!r}"
            self._written_us = self.harness.clock.now()
        self._assert_agree(answer, expected)
        return answer, expected

    def _match(self, tokens: Sequence[tuple[int, int]]) -> None:
        """Learn the store's tokens for new ones of the oracle; they must be higher than any."""
        newest = max(self._store_tokens.values())
        for own, theirs in tokens:
            assert theirs > newest, f"token {theirs} was given out after {newest}"
            self._store_tokens[own] = theirs
        assert len(set(self._store_tokens.values())) == len(self._store_tokens), "a token repeats"

    def _assert_agree(self, answer: Any, expected: Any) -> None:
        told = f"the store answered {answer!r}, the oracle {expected!r}"
        if isinstance(expected, CasqueError) or isinstance(answer, CasqueError):
            assert type(answer) is type(expected), told
            assert answer.job_id == expected.job_id or expected.job_id is None, told
            if isinstance(expected, LeaseLostError):
                assert answer.job_ids == expected.job_ids, told
        elif isinstance(expected, ModelJob):
            assert isinstance(answer, Job), told
            self._assert_same(answer, expected)
        elif isinstance(expected, ModelRecord):
            version = self._store_tokens[expected.version]
            assert answer == _Stored(expected.value, version, expected.gone_at), told
        elif isinstance(expected, list):
            assert _ids(answer) == _ids(expected), f"{_ids(answer)}, not {_ids(expected)}"
            for job, model in zip(answer, expected, strict=True):
                self._assert_same(job, model)
        else:
            assert answer == expected, told

    def _assert_same(self, job: Job, model: ModelJob) -> None:
        seen, expected = _fields(job), _fields(model)
        expected["token"] = self._store_tokens[model.token]
        if isinstance(model.error, Lost):
            told = job.error or ""
            named = model.error.worker in told and f"{model.error.heard_at:%H:%M:%S}" in told
            expected["error"] = told if named else model.error
        seen["history"] = [
            (past.number, past.worker, past.started_at, past.failure and past.failure.kind)
            for past in job.history
        ]
        expected["history"] = [tuple(past) for past in model.history]
        wrong = {
            name: (value, expected[name]) for name, value in seen.items() if value != expected[name]
        }
        assert not wrong, f"{job.id}, store and oracle: {wrong}"
        for past in job.history:
            assert past.ended_at <= self._now(), f"{job.id}: an attempt ends in the future: {past}"

    def _now(self) -> datetime:
        return EPOCH + self.harness.clock.now() * MICROSECOND


def machine_for(
    open_harness: Callable[[], Harness], flavour: Flavour = "direct"
) -> type[StoreMachine]:
    """The machine for the store that `open_harness` opens, empty, for each run.

    Give it to hypothesis's `run_state_machine_as_test`, with the settings you like.
    """
    body = {"open_harness": staticmethod(open_harness), "flavour": flavour}
    return type("StoreMachine", (StoreMachine,), body)


_COMPARED = (
    *("id", "queue", "entrypoint", "payload", "priority", "max_attempts", "retain", "timeout"),
    *("depth", "chain", "status", "attempts", "token", "worker", "created_at", "run_at"),
    *("claimed_at", "lease_until", "finished_at", "result", "progress", "note", "duplicate"),
)


def _fields(job: Job | ModelJob) -> dict[str, Any]:
    fields = {name: getattr(job, name) for name in _COMPARED}
    fields["error"] = job.error or None
    # What is left of it when the claim is over is nobody's business.
    fields["heartbeat_at"] = job.heartbeat_at if job.status == "in_progress" else None
    return fields


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except CasqueError as refusal:
        return refusal


def _ids(jobs: Sequence[Job | ModelJob]) -> list[str]:
    return [job.id for job in jobs]


def _with_ids(new: list[NewJob], jobs: list[Job] | CasqueError) -> list[NewJob]:
    """What was asked for, under the ids that the call made; any will do when it was refused."""
    made = ["?"] * len(new) if isinstance(jobs, CasqueError) else _ids(jobs)
    return [
        replace(one, id=job_id) if one.id is None else one
        for one, job_id in zip(new, made, strict=True)
    ]


def _stored(record: Any) -> _Stored:
    return _Stored(record.value, record.version, record.expires_at)
