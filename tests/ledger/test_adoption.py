"""`adopt` on a ledger: killed at any request, with lost replies, beside others, on odd copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace as changed

from casque import (
    CASConflictError,
    CorruptError,
    DirectQueue,
    InvalidError,
    JobStatus,
    LeaseLostError,
    Queue,
)
from casque.admin import Adoption, adopt, verify
from casque.buckets.memory import MemoryBucket
from casque.record import WORKER
from casque.rules.operations import Batch, PutRecord
from casque.stores.ledger.adoption import move
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.format_check import find_mark
from casque.stores.ledger.ledger_bucket import MARKER, LedgerBucket
from casque.stores.ledger.log import number_in
from casque.stores.ledger.replica import Replica
from casque.stores.ledger.snapshot_listing import folder_in, snapshot_in
from casque.system.clock import MINUTE_US, Stopwatch, drive
from casque.testing import FakeClock
from casque.testing.faults import PORT_FAULTS, Fault, FaultyBucket
from casque.testing.processes import run_in_process
from tests.ledger import children
from tests.ledger.copies import (
    EVERY,
    Relayed,
    bucket_of,
    identity_of,
    objects,
    store_on,
    worked_on,
)

ENTRIES = 2 * EVERY + 3


class KilledError(BaseException):
    """The process is gone: nothing more of it runs, as after kill -9."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def a_copy(clock: FakeClock) -> MemoryBucket:
    bucket = MemoryBucket(clock)
    worked_on(store_on(bucket, clock), ENTRIES)
    return bucket_of(objects(bucket), clock)


def jobs_in(bucket: MemoryBucket, clock: FakeClock) -> dict[str, JobStatus]:
    with Queue(store_on(bucket, clock)) as q:
        return {job.id: job.status for job in q.read_state().jobs}


def check_adopted(bucket: MemoryBucket, clock: FakeClock, jobs: dict[str, JobStatus]) -> None:
    """Check that the queue is whole, has these jobs, holds no claim, and can be used."""
    assert jobs_in(bucket, clock) == dict.fromkeys(jobs, JobStatus.QUEUED)
    verify(store_on(bucket, clock))
    with Queue(store_on(bucket, clock)) as q:
        done = set()
        while claimed := q.dequeue(batch_size=5):
            for job in claimed:
                q.ack(job)
                done.add(job.id)
    assert done == jobs.keys()


def test_it_moves_the_queue_into_a_folder_of_its_own(clock: FakeClock) -> None:
    bucket = a_copy(clock)
    old, before, jobs = identity_of(bucket), objects(bucket), jobs_in(bucket, clock)
    held = [id for id, status in jobs.items() if status is JobStatus.IN_PROGRESS]
    done = adopt(store_on(bucket, clock))
    after = objects(bucket)
    assert done.identity == identity_of(bucket) != old
    assert (done.left, done.taken_back, done.late_entries) == (f"{old}/", len(held), 0)
    assert {key: body for key, body in before.items() if key != MARKER}.items() <= after.items()
    new = [key for key in after if key.startswith(done.identity)]
    assert [number_in(key) for key in new if number_in(key)] == [ENTRIES + 1]
    rest = [key.partition("/")[2] for key in new if not number_in(key)]
    assert sorted(map(bool, map(folder_in, rest))) == [False, True]
    assert [snapshot_in(key) for key in rest if snapshot_in(key)] == [ENTRIES + 1]
    mine, theirs = before[MARKER].decode(), after[MARKER].decode()
    assert theirs == mine.replace(old, done.identity)  # the ages stay
    check_adopted(bucket, clock, jobs)


# A killed process leaves its coroutines where they are.
@pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_at_any_request_leaves_the_old_queue_or_the_new_one(
    moment: Literal["before", "after"],
) -> None:
    whole = 0
    for nth in count(1):
        clock = FakeClock(seed=nth)
        bucket, sent = a_copy(clock), 0
        before, jobs = objects(bucket), jobs_in(bucket, clock)

        def die(_: str, nth: int = nth) -> None:
            nonlocal sent
            sent += 1
            if sent == nth:
                raise KilledError

        try:
            adopt(store_on(Relayed(bucket, **{moment: die}), clock))
        except KilledError:
            is_old = identity_of(bucket) == identity_of(bucket_of(before, clock))
        else:
            break
        whole += is_old
        if is_old:
            kept = {key: objects(bucket)[key] for key in before}
            assert kept == before
            assert jobs_in(bucket, clock) == jobs
            verify(store_on(bucket, clock))
        adopt(store_on(bucket, clock))
        check_adopted(bucket, clock, jobs)
    assert nth > 20
    assert whole >= nth - 3  # all but the requests after `format` was replaced


@pytest.mark.parametrize("fault", PORT_FAULTS)
def test_one_fault_at_any_request_loses_no_job(fault: Fault) -> None:
    for nth in count(1):
        clock = FakeClock(seed=nth)
        bucket = a_copy(clock)
        jobs, old = jobs_in(bucket, clock), identity_of(bucket)
        faulty = FaultyBucket(bucket, fault, nth)
        done = adopt(store_on(faulty, clock))
        assert done.identity == identity_of(bucket) != old
        check_adopted(bucket, clock, jobs)
        if not faulty.fired:
            return


def test_a_commit_of_another_process_is_in_the_queue_or_refused_or_reported() -> None:
    outcomes = set()
    for nth in count(1):
        clock = FakeClock(seed=nth)
        bucket, sent = a_copy(clock), 0
        with Queue(store_on(bucket, clock)) as other:
            other.stats()

            def add(_: str, nth: int = nth, other: Queue = other) -> None:
                nonlocal sent
                sent += 1
                if sent == nth:
                    other.enqueue("e", id="theirs")

            done: Adoption | None = None
            try:
                done = adopt(store_on(Relayed(bucket, add), clock))
            except CASConflictError:
                pass
            except CorruptError:  # theirs: `format` was replaced
                outcomes.add("refused")
                continue
            if sent < nth:
                break
        is_there = "theirs" in jobs_in(bucket, clock)
        if done is None:
            assert is_there
            outcomes.add("adopt again")
        elif done.late_entries:
            assert not is_there
            outcomes.add("reported")
        else:
            assert is_there
            outcomes.add("in the queue")
    assert outcomes == {"adopt again", "reported", "in the queue", "refused"}


def test_two_adoptions_at_once_end_with_one_queue(clock: FakeClock) -> None:
    for nth in count(1):
        bucket, sent = a_copy(clock), 0
        jobs = jobs_in(bucket, clock)

        def adopt_too(
            _: str,
            nth: int = nth,
            bucket: MemoryBucket = bucket,
            jobs: dict[str, JobStatus] = jobs,
        ) -> None:
            nonlocal sent
            sent += 1
            if sent == nth:
                adopt(store_on(bucket, clock))
                with Queue(store_on(bucket, clock)) as q:
                    q.enqueue("e", id="after theirs")
                jobs["after theirs"] = JobStatus.QUEUED

        with suppress(CASConflictError):
            adopt(store_on(Relayed(bucket, adopt_too), clock))
        check_adopted(bucket, clock, jobs)
        if sent < nth:
            return


def test_large_payloads_come_along(clock: FakeClock) -> None:
    bucket = MemoryBucket(clock)
    with Queue(store_on(bucket, clock)) as q:
        q.enqueue("e", b"x" * 10_000, id="queued")
        q.enqueue("e", b"y" * 20_000, id="done")
        [job] = q.dequeue(id="done")
        q.ack(job)
    done = adopt(store_on(bucket, clock))
    assert done.left is not None
    for key in objects(bucket):
        if key.startswith(done.left):
            drive(bucket.delete(key))
    verify(store_on(bucket, clock))
    with Queue(store_on(bucket, clock)) as q:
        [job] = q.dequeue()
        assert (job.id, job.payload) == ("queued", b"x" * 10_000)


# -- processes from before -----------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda q, job: q.ack(job),
        lambda q, job: q.heartbeat(job),
        lambda q, job: q.enqueue("e"),
        lambda q, job: q.stats(),
        lambda q, job: q.dequeue(),
    ],
)
def test_a_process_from_before_stops(
    clock: FakeClock, call: Callable[[Queue, object], object]
) -> None:
    bucket = a_copy(clock)
    with Queue(store_on(bucket, clock)) as q:
        [job] = q.dequeue(batch_size=1)
        adopt(store_on(bucket, clock))
        before = objects(bucket)
        with pytest.raises(CorruptError, match="belongs to another queue") as caught:
            call(q, job)
        assert caught.value.is_replaced
    assert objects(bucket) == before


def test_a_claim_from_before_is_refused_by_the_new_queue(clock: FakeClock) -> None:
    bucket = a_copy(clock)
    with Queue(store_on(bucket, clock)) as q:
        [job] = q.dequeue(batch_size=1)
    done = adopt(store_on(bucket, clock))
    with Queue(store_on(bucket, clock)) as q:
        with pytest.raises(LeaseLostError):
            q.ack(job)
        claimed = q.dequeue(batch_size=100)
        assert job.id in {one.id for one in claimed}
        assert min(one.token for one in claimed) > done.token > job.token


def test_tokens_are_above_all_that_the_original_can_have_issued(clock: FakeClock) -> None:
    original = MemoryBucket(clock)
    worked_on(store_on(original, clock), ENTRIES)
    copy = bucket_of(objects(original), clock)
    tokens = []
    with Queue(store_on(original, clock)) as q:
        for _ in range(50):
            q.enqueue("e")
            tokens += [job.token for job in q.dequeue(batch_size=3)]
    assert adopt(store_on(copy, clock)).token > max(tokens)


def test_an_open_store_object_goes_on_with_the_queue_that_it_adopted(clock: FakeClock) -> None:
    store = store_on(a_copy(clock), clock)
    with Queue(store) as q:
        before = q.stats().total
        adopt(store)
        q.enqueue("e", id="after")
        assert q.stats().total == before + 1
        assert [job.id for job in q.dequeue(id="after")] == ["after"]


# -- who is there --------------------------------------------------------------


def register(bucket: MemoryBucket, clock: FakeClock) -> None:
    put = PutRecord(WORKER, "w1", b"{}", None, MINUTE_US)
    drive(store_on(bucket, clock).commit([Batch("w", 1, [put])]))


def test_it_refuses_while_a_worker_is_registered(clock: FakeClock) -> None:
    bucket = a_copy(clock)
    register(bucket, clock)
    before = objects(bucket)
    with pytest.raises(InvalidError, match="is in use: worker w1 registered"):
        adopt(store_on(bucket, clock))
    assert objects(bucket) == before
    assert adopt(store_on(bucket, clock), force=True).identity == identity_of(bucket)


def test_a_worker_that_ended_long_ago_is_no_obstacle(clock: FakeClock) -> None:
    bucket = a_copy(clock)
    register(bucket, clock)
    clock.advance(timedelta(seconds=61))
    adopt(store_on(bucket, clock))


def test_no_queue_is_adopted_where_there_is_none(clock: FakeClock) -> None:
    bucket = MemoryBucket(clock)
    with pytest.raises(InvalidError, match="there is no store at"):
        adopt(store_on(bucket, clock))
    assert objects(bucket) == {}


# -- copies that were made while the queue was in use ---------------------------


def test_a_copy_whose_snapshot_is_newer_than_its_last_entry_is_adopted(clock: FakeClock) -> None:
    original = MemoryBucket(clock)
    store = store_on(original, clock)
    worked_on(store, EVERY - 5)
    early = objects(original)
    worked_on(store, 5)
    late = objects(original)
    assert any(snapshot_in(key.partition("/")[2]) == EVERY for key in late)
    copied = early | {key: body for key, body in late.items() if not number_in(key)}
    bucket = bucket_of(copied, clock)
    with pytest.raises(CorruptError, match=f"log/{EVERY:020} is missing"):
        verify(store_on(bucket, clock))
    adopt(store_on(bucket, clock))
    check_adopted(bucket, clock, jobs_in(bucket_of(late, clock), clock))


def test_a_copy_with_a_gap_is_refused_and_stays_as_it_is(clock: FakeClock) -> None:
    bucket = a_copy(clock)
    drive(bucket.delete(f"{identity_of(bucket)}/log/{ENTRIES - 1:020}"))
    before = objects(bucket)
    with pytest.raises(CorruptError, match=f"log/{ENTRIES - 1:020} is missing"):
        adopt(store_on(bucket, clock))
    assert objects(bucket) == before


# -- an upgrade takes the same way ---------------------------------------------


async def upgraded(bucket: MemoryBucket, clock: FakeClock) -> None:
    """Do what an upgrade to a newer format will do."""
    requests = BucketRequests(LedgerBucket(bucket), clock)
    found = await find_mark(requests, Stopwatch(clock))
    assert found is not None
    requests.bucket.bind(found.mark)
    new = changed(found.mark, identity=clock.new_id(), format=found.mark.format + 1)
    await move(requests, found, new, Replica(blind=False), clock.now())


def test_a_process_of_this_version_stops_at_a_newer_format(clock: FakeClock) -> None:
    bucket = MemoryBucket(clock)
    with Queue(store_on(bucket, clock)) as q:
        q.enqueue("e", id="claimed")
        [job] = q.dequeue()
        drive(bucket.delete(f"{identity_of(bucket)}/log/{1:020}"))
        drive(bucket.delete(f"{identity_of(bucket)}/log/{2:020}"))
        drive(upgraded(bucket, clock))
        for call in (lambda: q.ack(job), lambda: q.enqueue("e"), q.stats):
            with pytest.raises(CorruptError, match="written by a newer casque: format 2"):
                call()
    with (
        Queue(store_on(bucket, clock)) as q,
        pytest.raises(CorruptError, match="Upgrade casque here"),
    ):
        q.enqueue("e")


# -- real kills ----------------------------------------------------------------


def test_kill_9_at_any_request_leaves_a_queue_that_can_be_adopted(tmp_path: Path) -> None:
    address = f"{tmp_path}/ledger/"
    with Queue(address) as q:
        for number in range(3):
            q.enqueue("e", id=f"job-{number}")
        q.dequeue()
    said = list[object]()
    for nth in range(1, 200, 3):
        said = run_in_process(children.adopt_until_killed, address, nth)
        with Queue(address) as q:
            assert {job.id for job in q.read_state().jobs} == {"job-0", "job-1", "job-2"}
        verify(address)
        if said:
            break
    assert said == ["adopted"]
    with Queue(address) as q:
        assert q.stats().pending + q.stats().failed == 3


def test_an_event_loop_can_adopt_as_well(clock: FakeClock) -> None:
    bucket = a_copy(clock)

    async def main() -> Adoption:
        store = store_on(FaultyBucket(bucket, Fault.REFUSE, 0), clock)
        async with DirectQueue(store) as q:
            await q.stats()
            done = await store.adopt(force=False)
            await q.enqueue("e")
        return done

    assert asyncio.run(main()).identity == identity_of(bucket)
