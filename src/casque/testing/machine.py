"""machine: random calls of producers and workers, and accidents, on a store and on the oracle.

`machine_for` returns a hypothesis state machine for a store and a flavour of
queue. Each rule is one step. After each step, everything visible of the store
must equal the oracle. The file is long because each verb of a queue has a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from casque.errors import CasqueError
from casque.job import Failure, Job
from casque.queues.arguments import NewJob, request
from casque.queues.lineage import OUTSIDE
from casque.record import SCHEDULE
from casque.rules.operations import DeleteRecord, PutRecord, Release, Tick
from casque.schedule import Schedule, encode
from casque.system.clock import to_us
from casque.testing import alphabet
from casque.testing.alphabet import (
    ENTRYPOINTS,
    NOTE,
    NOTES,
    SCHEDULES,
    WORKERS,
    Deed,
    Order,
    seconds,
)
from casque.testing.modeljob import ModelJob, ModelRecord
from casque.testing.oracle import CONFIG, DEAD_RETENTION, MISMATCH, PAUSE, Hold
from casque.testing.rig import Flavour, Harness
from casque.testing.sidebyside import MICROSECOND, QueueUser, SideBySide, Stored, ids_of

Holder = tuple[int, int, bool]


class Claim(NamedTuple):
    """A job as the dequeue returned it, and the oracle's token for that claim."""

    job: Job
    token: int


_has_claims = precondition(lambda self: self.claims)


class StoreMachine(RuleBasedStateMachine):
    """Runs each rule on the store and on the oracle. `machine_for` chooses the store."""

    open_harness: ClassVar[Callable[[], Harness]]
    flavour: ClassVar[Flavour]

    def __init__(self) -> None:
        super().__init__()
        self.pair = SideBySide(type(self).open_harness(), self.flavour)
        self.oracle = self.pair.oracle
        self.workers = [self.pair.open(name) for name in WORKERS]
        self.deaths = self.follow_ups = 0
        self.claims: list[Claim] = []
        """Every claim ever made: a worker that lost its job may still use an old claim."""
        self.queue_leases: list[tuple[QueueUser, Any, str, int]] = []
        self.versions: dict[str, list[int]] = {name: [0] for name in (*NOTES, *SCHEDULES)}
        """The oracle's versions of each note and schedule, the newest last."""

    def teardown(self) -> None:
        for worker, context, _, _ in self.queue_leases:
            worker.leave(context)
        self.pair.close()

    @invariant()
    def agrees(self) -> None:
        self.pair.compare()

    # -- producing -------------------------------------------------------------

    @initialize(orders=st.lists(alphabet.any_orders, min_size=3, max_size=10))
    def begin(self, orders: list[Order]) -> None:
        for order in orders:
            self.enqueue(0, order)

    @rule(worker=alphabet.workers, order=alphabet.any_orders, replaces=alphabet.rarely)
    def enqueue(self, worker: int, order: Order, replaces: bool = False) -> None:  # noqa: FBT001, FBT002 - passed by name
        new = self._new(order)
        options = {name: getattr(new, name) for name in new.__struct_fields__}
        options["replace"] = replaces = replaces and new.id is not None
        self.pair.both(
            lambda: [self.workers[worker].call("enqueue", **options)],
            lambda now, jobs: self.oracle.enqueue(now, _with_ids([new], jobs), replace=replaces),
        )

    @rule(worker=alphabet.workers, orders=st.lists(alphabet.named_orders, min_size=1, max_size=3))
    def replace_many(self, worker: int, orders: list[Order]) -> None:
        new = [self._new(order) for order in orders]
        self.pair.both(
            lambda: self.workers[worker].call("enqueue_many", new, replace=True),
            lambda now, _: self.oracle.enqueue(now, new, replace=True),
        )

    @rule(worker=alphabet.workers, orders=st.lists(alphabet.any_orders, min_size=1, max_size=4))
    def enqueue_many(self, worker: int, orders: list[Order]) -> None:
        new = [self._new(order) for order in orders]
        self.pair.both(
            lambda: self.workers[worker].call("enqueue_many", new),
            lambda now, jobs: self.oracle.enqueue(now, _with_ids(new, jobs)),
        )

    def _new(self, order: Order) -> NewJob:
        options = dict(order)
        if "run_in" in options:
            options["run_at"] = self.pair.now() + options.pop("run_in")
        return NewJob(**options)

    # -- claiming --------------------------------------------------------------

    @rule(
        worker=alphabet.workers,
        entrypoint=st.none() | st.lists(st.sampled_from(ENTRYPOINTS), min_size=1, max_size=3),
        queue=alphabet.some_queue,
        batch_size=st.sampled_from([1, 2, 3, 10]),
        lease=alphabet.leases,
    )
    def dequeue(self, worker: int, **options: Any) -> None:
        user = self.workers[worker]
        claimed = self._claimed(user, lambda: user.call("dequeue", **options), 1, **options)
        user.handed |= {claim.job.id: claim.token for claim in claimed}

    @rule(worker=alphabet.workers, callers=st.integers(2, 3), batch_size=st.integers(1, 2))
    def dequeue_together(self, worker: int, callers: int, batch_size: int) -> None:
        user = self.workers[worker]
        options: dict[str, Any] = {"batch_size": batch_size, "lease": timedelta(seconds=10)}
        self._claimed(user, lambda: user.dequeue_together(callers, **options), callers, **options)

    def _claimed(
        self, user: QueueUser, call: Callable[[], list[Job]], times: int, **options: Any
    ) -> list[Claim]:
        """The claims of a call that must claim as that many dequeues of the oracle do."""

        def expect(now: datetime, jobs: list[Job]) -> list[ModelJob]:
            assert isinstance(jobs, list), f"a dequeue returned {jobs!r}"
            models = [
                model
                for _ in range(times)
                for model in self.oracle.dequeue(now, user.name, **options)
            ]
            found, expected = ids_of(jobs), ids_of(models)
            assert found == expected, f"expected to claim {expected}, got {found}"
            pairs = zip(models, jobs, strict=True)
            self.pair.match([(model.token, job.token) for model, job in pairs])
            return models

        jobs, models = self.pair.both(call, expect)
        claimed = [Claim(job, model.token) for job, model in zip(jobs, models, strict=True)]
        for job in jobs:
            self._check_it_was_free(job)
        self.claims += claimed
        return claimed

    @rule(worker=alphabet.workers, batch_size=st.integers(1, 3), lease=alphabet.leases)
    def dequeue_anything(self, worker: int, batch_size: int, lease: timedelta) -> None:
        self.dequeue(worker, batch_size=batch_size, lease=lease)

    @rule(worker=alphabet.workers, batch_size=st.integers(1, 3), lease=alphabet.leases)
    def dequeue_what_comes_due(self, worker: int, batch_size: int, lease: timedelta) -> None:
        self.wait_for_the_next_moment(early=False)
        self.dequeue(worker, batch_size=batch_size, lease=lease)

    @rule(
        worker=alphabet.workers,
        entrypoint=st.sampled_from(ENTRYPOINTS),
        lease=alphabet.leases,
    )
    def dequeue_one_entrypoint(self, worker: int, entrypoint: str, lease: timedelta) -> None:
        self.dequeue(worker, entrypoint=[entrypoint], lease=lease)

    @rule(
        worker=alphabet.workers,
        place=alphabet.places,
        queue=alphabet.some_queue,
        lease=alphabet.leases,
    )
    def dequeue_by_id(self, worker: int, place: int, queue: str | None, lease: timedelta) -> None:
        self.dequeue(worker, id=self._id(place), queue=queue, lease=lease)

    def _check_it_was_free(self, job: Job) -> None:
        """Check that no lease was running, by what was stored before the claim."""
        now_us, due_us = self.pair.harness.clock.now(), self.pair.raw.jobs[job.id]["due_us"]
        assert due_us is not None, f"{job.id} was finished, but a dequeue claimed it"
        assert due_us <= now_us, f"{job.id} was claimed at {now_us}, but due only at {due_us}"

    # -- calls of a holder, or of a former one ---------------------------------

    @_has_claims
    @rule(
        holder=alphabet.holders,
        result=st.sampled_from([None, b"", b"done"]),
        orders=st.just([]) | st.lists(alphabet.any_orders, min_size=1, max_size=2),
    )
    def ack(self, holder: Holder, result: bytes | None, orders: list[Order]) -> None:
        following = [self._new(order) for order in orders]
        for place, new in enumerate(following):
            if new.id is None:  # an ack does not return the ids it made
                self.follow_ups += 1
                following[place] = replace(new, id=f"next-{self.follow_ups}")
        self._as_holder("ack", holder, result=result, enqueue=following)

    @_has_claims
    @rule(holder=alphabet.holders, delay=alphabet.delays, error=alphabet.errors)
    def nack(self, holder: Holder, **options: Any) -> None:
        self._as_holder("nack", holder, **options)

    @_has_claims
    @rule(holder=alphabet.holders, error=alphabet.errors)
    def fail(self, holder: Holder, **options: Any) -> None:
        self._as_holder("fail", holder, **options)

    @_has_claims
    @rule(holder=alphabet.holders, reason=alphabet.reasons)
    def discard(self, holder: Holder, **options: Any) -> None:
        self._as_holder("discard", holder, **options)

    @_has_claims
    @rule(holder=alphabet.holders, delay=alphabet.delays)
    def release(self, holder: Holder, **options: Any) -> None:
        self._as_holder("release", holder, **options)

    @_has_claims
    @rule(place=alphabet.places, delay=alphabet.delays, kind=st.sampled_from([MISMATCH, "Busy"]))
    def give_back(self, place: int, delay: timedelta | None, kind: str) -> None:
        """Release a job and say why, as a worker does that the job does not fit."""
        claim = self._claim(place)
        hold, delay_us = (claim.job.id, claim.job.token), (delay or timedelta(0)) // MICROSECOND
        release = Release(*hold, delay_us, Failure(kind, "not here"))
        self.pair.both(
            lambda: self.pair.commit(release),
            lambda now, _: self.oracle.give_back(
                now, claim.job.id, claim.token, delay=delay, kind=kind, text="not here"
            ),
        )

    @_has_claims
    @rule(
        holder=alphabet.holders,
        lease=st.none() | alphabet.leases,
        progress=st.sampled_from([None, 0.0, 0.5]),
        note=st.sampled_from([None, "half way"]),
    )
    def heartbeat(self, holder: Holder, **options: Any) -> None:
        self._as_holder("heartbeat", holder, **options)

    @_has_claims
    @rule(worker=alphabet.workers, places=st.lists(alphabet.places, min_size=1, max_size=3))
    def ack_many(self, worker: int, places: list[int]) -> None:
        self._as_holder_of_many("ack_many", worker, places)

    @_has_claims
    @rule(
        worker=alphabet.workers,
        places=st.lists(alphabet.places, min_size=1, max_size=4),
        lease=st.none() | alphabet.leases,
    )
    def heartbeat_many(self, worker: int, places: list[int], lease: timedelta | None) -> None:
        self._as_holder_of_many("heartbeat_many", worker, places, lease=lease)

    def _as_holder(self, method: str, holder: Holder, **options: Any) -> None:
        worker, place, by_id = holder
        user, claim = self.workers[worker], self._claim(place)
        name: Job | str = claim.job.id if by_id else claim.job
        token = user.handed.get(claim.job.id, 0) if by_id else claim.token
        self.pair.both(
            lambda: user.call(method, name, **options),
            lambda now, _: getattr(self.oracle, method)(now, claim.job.id, token, **options),
        )

    def _as_holder_of_many(
        self, method: str, worker: int, places: list[int], **options: Any
    ) -> None:
        claims = [self._claim(place) for place in places]
        holds: list[Hold] = [(claim.job.id, claim.token) for claim in claims]
        self.pair.both(
            lambda: self.workers[worker].call(method, [claim.job for claim in claims], **options),
            lambda now, _: getattr(self.oracle, method)(now, holds, **options),
        )

    def _claim(self, place: int) -> Claim:
        """One of all claims ever made: the live ones first, then the newest."""
        live = {job.token for job in self.oracle.jobs.values() if job.status == "in_progress"}
        claims = sorted(self.claims, key=lambda claim: (claim.token not in live, -claim.token))
        return claims[place % len(claims)]

    # -- calls that need no claim ----------------------------------------------

    @rule(what=alphabet.management)
    def manage(self, what: Deed) -> None:
        """One of several rare calls, often invalid. As one rule, they stay fewer than the work."""
        self._do(what)

    @precondition(lambda self: self._has("dead"))
    @rule(worker=alphabet.workers, place=alphabet.places)
    def retry(self, worker: int, place: int) -> None:
        self._as_anybody("retry", worker, self._id(place, first="dead"))

    @precondition(lambda self: self._has("in_progress"))
    @rule(worker=alphabet.workers, timeout=seconds(0, 1, 10, 60))
    def requeue_stale(self, worker: int, timeout: timedelta) -> None:
        self._as_anybody("requeue_stale", worker, timeout)

    @precondition(lambda self: self.oracle.records_of(self.pair.now(), PAUSE))
    @rule(worker=alphabet.workers, queue=alphabet.queues)
    def resume(self, worker: int, queue: str) -> None:
        self._as_anybody("resume", worker, queue)

    def pause(self, worker: int, queue: str) -> None:
        self._as_anybody("pause", worker, queue)

    def drop(self, worker: int, queue: str) -> None:
        self._as_anybody("drop", worker, queue)

    def purge(self, worker: int, older_than: timedelta, queue: str | None) -> None:
        self._as_anybody("purge", worker, older_than=older_than, queue=queue)

    def cancel(self, worker: int, place: int, reason: str) -> None:
        self._as_anybody("cancel", worker, self._id(place), reason=reason)

    def _do(self, what: Deed) -> None:
        method, options = what
        getattr(self, method)(**options)

    def _as_anybody(self, method: str, worker: int, *args: Any, **options: Any) -> None:
        self.pair.both(
            lambda: self.workers[worker].call(method, *args, **options),
            lambda now, _: getattr(self.oracle, method)(now, *args, **options),
        )

    def _has(self, *statuses: str) -> bool:
        return any(job.status in statuses for job in self.oracle.seen(self.pair.now()).values())

    def _id(self, place: int, first: str = "") -> str:
        """The id of a job, those of status `first` first, then the newest; or an unknown id."""
        seen = self.oracle.seen(self.pair.now()).values()
        jobs = sorted(seen, key=lambda job: (job.status != first, -job.place))
        ids = [*ids_of(jobs), "nobody"]
        return ids[place % len(ids)]

    # -- records, time and accidents -------------------------------------------

    @rule(what=alphabet.accidents)
    def meanwhile(self, what: Deed) -> None:
        self._do(what)

    def put_record(self, name: str, back: int, ttl: timedelta | None) -> None:
        self._put((NOTE, name), b"%d" % self.oracle.tokens, back, ttl)

    def put_schedule(self, name: str, back: int, options: dict[str, Any]) -> None:
        schedule = Schedule(entrypoint="mail", every_us=1_000_000, **options)
        self._put((SCHEDULE, name), encode(schedule), back, None)

    def _put(self, key: tuple[str, str], value: bytes, back: int, ttl: timedelta | None) -> None:
        expect = self._version(key[1], back)
        ttl_us = None if ttl is None else ttl // MICROSECOND
        operation = PutRecord(*key, value, self.pair.tokens[expect], ttl_us)

        def model(now: datetime, stored: Any) -> ModelRecord:
            record = self.oracle.put_record(now, key, value, expect=expect, ttl=ttl)
            return self._new_version(key[1], record, stored)

        self.pair.both(lambda: self._stored(operation), model)

    def tick(self, name: str, back: int, away: int | None, order: Order) -> None:
        expect, new, clock = self._version(name, back), self._new(order), self.pair.harness.clock
        [job_id], [place] = clock.mint(1)
        job = request(new, OUTSIDE, job_id, place)
        tick_at = None if away is None else self.pair.now() + timedelta(seconds=away)
        tick_us = None if tick_at is None else to_us(tick_at)
        operation = Tick(name, self.pair.tokens[expect], tick_us, job)

        def model(now: datetime, stored: Any) -> ModelRecord:
            record = self.oracle.tick(
                now, name, replace(new, id=job.id), expect=expect, tick_at=tick_at
            )
            return self._new_version(name, record, stored)

        self.pair.both(lambda: self._stored(operation), model)

    def _stored(self, operation: PutRecord | Tick) -> Stored:
        record = self.pair.commit(operation)
        return Stored(record.value, record.version, record.expires_at)

    def _new_version(self, name: str, record: ModelRecord, stored: Any) -> ModelRecord:
        self.versions[name].append(record.version)
        return self._matched(record, stored)

    def keep_dead(self, stay: timedelta | None) -> None:
        value = b"null" if stay is None else b"%d" % (stay // MICROSECOND)
        operation = PutRecord(CONFIG, DEAD_RETENTION, value, None)

        def put() -> Stored:
            record = self.pair.commit(operation)
            return Stored(record.value, record.version, record.expires_at)

        def model(now: datetime, stored: Any) -> ModelRecord:
            return self._matched(self.oracle.keep_dead(now, value, stay), stored)

        self.pair.both(put, model)

    def delete_record(self, name: str, back: int) -> None:
        expect = self._version(name, back)
        operation = DeleteRecord(NOTE, name, self.pair.tokens[expect])
        self.pair.both(
            lambda: self.pair.commit(operation),
            lambda now, _: self.oracle.delete_record(now, (NOTE, name), expect=expect),
        )

    def lease_queue(self, worker: int, queue: str, lease: timedelta) -> None:
        user = self.workers[worker]
        context = user.call("lease_queue", queue, lease=lease)

        def take() -> Stored | None:
            held = user.enter(context)
            return None if held is None else Stored(held.worker.encode(), held.token, held.until)

        def model(now: datetime, stored: Any) -> ModelRecord | None:
            record = self.oracle.lease_queue(now, user.name, queue, lease)
            return None if record is None else self._matched(record, stored)

        _, record = self.pair.both(take, model)
        version = 0 if record is None else record.version
        self.queue_leases.append((user, context, queue, version))

    @precondition(lambda self: self.queue_leases)
    @rule(place=alphabet.places)
    def let_queue_go(self, place: int) -> None:
        user, context, queue, version = self.queue_leases.pop(place % len(self.queue_leases))
        self.pair.both(
            lambda: user.leave(context),
            lambda now, _: self.oracle.let_queue_go(now, queue, version),
        )

    def _matched(self, record: ModelRecord, stored: Any) -> ModelRecord:
        assert isinstance(stored, Stored), f"expected {record!r}, got {stored!r}"
        self.pair.match([(record.version, stored.version)])
        return record

    def _version(self, name: str, back: int) -> int:
        """The current version of the note or schedule, or an older one."""
        versions = self.versions[name]
        return versions[-1 - back % len(versions)]

    @rule(span=seconds(1, 0.001, 10, 60))
    def let_time_pass(self, span: timedelta) -> None:
        self.pair.harness.clock.advance(span)

    @rule(early=st.booleans())
    def wait_for_the_next_moment(self, early: bool) -> None:  # noqa: FBT001 - passed by name
        """Move time to the instant at which something becomes due or ends, or to just before."""
        now = self.pair.now()
        moment = self.oracle.next_moment(now)
        if moment is not None:
            self.pair.harness.clock.advance(moment - now - early * MICROSECOND)

    def die(self, worker: int) -> None:
        """Replace a worker without a message. Its leases run on, and its old claims may be used."""
        self.deaths += 1
        self.workers[worker] = self.pair.open(f"{WORKERS[worker]}-{self.deaths}")

    def reopen(self, worker: int) -> None:
        user = self.workers[worker]
        if not any(holder is user for holder, *_ in self.queue_leases):
            self.pair.shut(user)
            self.workers[worker] = self.pair.open(user.name)


def machine_for(
    open_harness: Callable[[], Harness], flavour: Flavour = "direct"
) -> type[StoreMachine]:
    """Return the machine for a store. `open_harness` must open an empty one for each run.

    Pass the machine to hypothesis's `run_state_machine_as_test`, with your own settings.
    """
    body = {"open_harness": staticmethod(open_harness), "flavour": flavour}
    return type("StoreMachine", (StoreMachine,), body)


def _with_ids(new: list[NewJob], jobs: list[Job] | CasqueError) -> list[NewJob]:
    """The new jobs with the ids that the call made, or with any ids if it was refused."""
    if isinstance(jobs, CasqueError):
        made = [f"none-{place}" for place in range(len(new))]
    else:
        made = ids_of(jobs)
    return [
        replace(one, id=job_id) if one.id is None else one
        for one, job_id in zip(new, made, strict=True)
    ]
