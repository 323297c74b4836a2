"""`copy`: the same jobs in another store, once, whatever is killed."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from itertools import pairwise, product
from pathlib import Path
from signal import SIGKILL

import pytest
from msgspec.structs import replace

from casque import CASConflictError, InvalidError, JobStatus, NewJob, Queue, open_store
from casque.buckets.memory import MemoryBucket
from casque.record import ABSENT, CONFIG, LOCK, PAUSE, SCHEDULE, WORKER
from casque.rules.operations import Insert, PutRecord
from casque.schedule import Schedule, encode
from casque.stores.memory import MemoryStore
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import DAY_US, SystemClock, drive
from casque.testing import FakeClock
from casque.testing.batches import commit_batch
from casque.transfer import NotTaken, copy, taking
from casque.transfer.opened_store import OpenedStore
from tests.transfer.places import KINDS, fill, ids_of, jobs_in, pause_all, place


@pytest.fixture
def source(tmp_path: Path) -> str:
    return f"{tmp_path}/source.db"


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"{tmp_path}/target.db"


@pytest.mark.parametrize(
    ("kind", "to"), [one for one in product(KINDS, KINDS) if "sqlite" in one or one[0] == one[1]]
)
def test_jobs_in_every_state_arrive_as_they_were(kind: str, to: str, tmp_path: Path) -> None:
    here, there = place(kind, tmp_path / "here"), place(to, tmp_path / "there")
    fill(here, 25)
    before = jobs_in(here)
    report = copy(here, there, pause=True)
    assert (report.added, report.known, report.not_taken) == (32, 0, [])
    assert jobs_in(there) == before == jobs_in(here)


class SuspendingBucket(MemoryBucket):
    """A bucket as on a network: its calls need an event loop."""

    blocking = False


def test_a_bucket_is_copied_to_and_from(source: str, target: str) -> None:
    fill(source, 25)
    before, bucket = jobs_in(source), SuspendingBucket()
    assert copy(source, bucket, pause=True).added == 32
    assert copy(source, bucket).known == 32
    assert copy(bucket, target).added == 32
    assert jobs_in(target) == before


KILLED = """
import os, signal, sys
from casque.transfer import copy

def killed(done, _):
    if done >= 1_500:
        os.kill(os.getpid(), signal.SIGKILL)

copy(sys.argv[1], sys.argv[2], progress=killed)
"""


def killed_copy(source: str, target: str) -> None:
    code = subprocess.run([sys.executable, "-c", KILLED, source, target], check=False).returncode
    assert code == -SIGKILL


def test_a_copy_that_was_killed_continues_and_no_job_is_lost_or_doubled(tmp_path: Path) -> None:
    stores = [f"{tmp_path}/a.db", f"{tmp_path}/ledger/", f"{tmp_path}/b.db"]
    fill(stores[0], 3_000)
    pause_all(stores[0])
    before = jobs_in(stores[0])
    for source, target in pairwise(stores):
        killed_copy(source, target)
        part = len(jobs_in(target))
        assert 1_000 <= part < len(before)
        report = copy(source, target)
        assert (report.added, report.known) == (len(before) - part, part)
        assert jobs_in(target) == before


def test_jobs_that_were_done_since_are_not_copied_again(source: str, target: str) -> None:
    with Queue(source) as queue:
        queue.enqueue_many([NewJob("a", id=str(n)) for n in range(3)])
    copy(source, target, pause=True)
    with Queue(target) as queue:
        queue.resume("default")
        queue.ack(queue.dequeue()[0])
    report = copy(source, target)
    assert (report.added, report.known) == (0, 3)
    assert ids_of(jobs_in(target)) == ["1", "2"]


def test_the_same_id_enqueued_again_later_is_a_new_job(source: str, target: str) -> None:
    for _ in range(2):
        with Queue(source) as queue:
            queue.resume("default")
            queue.enqueue("a", id="daily")
        assert copy(source, target, pause=True).added == 1
        for address in (source, target):
            with Queue(address) as queue:
                queue.resume("default")
                queue.ack(queue.dequeue(id="daily")[0])


def test_two_copies_at_the_same_time_double_no_job(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH_JOBS", 4)
    with Queue(source) as queue:
        queue.enqueue_many([NewJob("a", id=str(n)) for n in range(10)])
        queue.pause("default")
    done: list[str] = []

    def overtaken(_done: int, _total: int | None) -> None:
        copy(source, target)
        with Queue(target) as queue:
            queue.resume("default")
            while jobs := queue.dequeue(batch_size=10):
                done.extend(job.id for job in jobs)
                queue.ack_many(jobs)

    with pytest.raises(CASConflictError, match=r"another import or copy into .* Run it again"):
        copy(source, target, progress=overtaken)
    assert sorted(done) == [str(n) for n in range(10)]
    assert jobs_in(target) == []
    report = copy(source, target)
    assert (report.added, report.known) == (0, 10)


def test_a_known_job_that_changed_in_the_source_since_is_noted(source: str, target: str) -> None:
    with Queue(source) as queue:
        queue.enqueue_many([NewJob("a", id=id, retain=timedelta(days=1)) for id in "abc"])
        queue.nack(queue.dequeue(id="c")[0])
    copy(source, target, pause=True)
    with Queue(target) as queue:
        queue.resume("default")
        queue.ack(queue.dequeue(id="b")[0])
    assert copy(source, target).notes == []
    with Queue(source) as queue:
        queue.resume("default")
        queue.ack(queue.dequeue(id="a")[0])
    report = copy(source, target, pause=True)
    assert (report.added, report.known) == (0, 3)
    [note] = report.notes
    assert note.startswith("job a is known from an earlier copy, but changed in the source")


# -- what the source must be -------------------------------------------------------


def test_an_unpaused_queue_is_refused_and_nothing_changes(source: str, target: str) -> None:
    fill(source)
    with pytest.raises(InvalidError, match="queues default, tenant/1, ünï are not paused"):
        copy(source, target)
    assert jobs_in(target) == []
    assert drive(open_store(source).records(PAUSE)) == []


def test_a_live_lease_is_refused_and_its_end_is_named(source: str, target: str) -> None:
    with Queue(source, lease=timedelta(hours=1)) as queue:
        queue.enqueue("a")
        [held] = queue.dequeue()
        assert held.lease_until is not None
        ends = f"{held.lease_until:%Y-%m-%d %H:%M:%S}Z"
        with pytest.raises(InvalidError, match=f"1 job is in progress, with leases until {ends}"):
            copy(source, target, pause=True)
        assert jobs_in(target) == []
        queue.ack(held)
        assert copy(source, target).seen == 0


def test_a_job_whose_lease_expired_arrives_queued_or_dead(tmp_path: Path) -> None:
    clock = FakeClock()
    source, target = MemoryStore(clock), SqliteStore(tmp_path / "target.db", clock=clock)
    with Queue(source, worker="gone") as queue:
        queue.enqueue("a", id="again")
        queue.enqueue("a", id="last", max_attempts=1)
        queue.dequeue(batch_size=2, lease=timedelta(seconds=30))
    clock.advance(timedelta(seconds=31))
    copy(source, target, pause=True)
    again, last = jobs_in(target)
    assert (again.status, again.attempts) == (JobStatus.QUEUED, 1)
    assert (last.status, last.attempts) == (JobStatus.DEAD, 1)
    for job in (again, last):
        assert job.error is not None
        assert "worker gone was lost" in job.error
        assert [one.worker for one in job.history] == ["gone"]
        assert job.lease_until is None


def test_a_store_in_memory_is_not_copied_into_itself() -> None:
    store = MemoryStore()
    with pytest.raises(InvalidError, match="both the source and the target"):
        copy(store, store)


def test_a_store_is_not_copied_into_itself(source: str, tmp_path: Path) -> None:
    fill(source)
    (tmp_path / "link.db").symlink_to(source)
    with pytest.raises(InvalidError, match="both the source and the target"):
        copy(source, tmp_path / "link.db", pause=True)


@pytest.mark.parametrize("name", ["none.db", "none.json", "none/"])
def test_a_source_that_does_not_exist_is_refused(name: str, target: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="there is no store of casque at"):
        copy(f"{tmp_path}/{name}", target)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [0, 2_000], ids=["at the end", "in the middle"])
def test_a_queue_that_appears_during_the_copy_is_paused_before_its_jobs_are_read(
    count: int, source: str, target: str
) -> None:
    fill(source, count)

    def enqueue_once(done: int, _: int | None) -> None:
        with Queue(source) as queue:
            queue.enqueue("late", id="late", queue="new")

    report = copy(source, target, pause=True, progress=enqueue_once)
    assert report.paused == ["default", "new", "tenant/1", "ünï"]
    assert "new" in {record.name for record in drive(open_store(target).records(PAUSE))}
    assert jobs_in(target) == jobs_in(source)
    with pytest.raises(InvalidError, match="queue other is not paused"):
        copy(source, target, progress=lambda _d, _t: _enqueue(source, "other"))


def _enqueue(address: str, queue: str) -> None:
    with Queue(address) as opened:
        opened.enqueue("a", id=f"in-{queue}", queue=queue)


# -- the target --------------------------------------------------------------------


def test_tokens_of_the_target_are_above_those_of_the_source(source: str, target: str) -> None:
    far = SystemClock().now() + 1_000 * DAY_US
    with OpenedStore(source) as opened:
        opened.submit_all([Insert((), far)])
    with Queue(source) as queue:
        queue.enqueue("a")
    copy(source, target, pause=True)
    with Queue(target) as queue:
        queue.resume("default")
        assert queue.dequeue()[0].token > far


def test_tokens_rise_even_if_no_job_is_left_to_copy(source: str, target: str) -> None:
    far = SystemClock().now() + 1_000 * DAY_US
    with OpenedStore(source) as opened:
        opened.submit_all([Insert((), far)])
    copy(source, target)
    with OpenedStore(target) as opened:
        assert opened.last_token() >= far


def test_settings_and_pauses_are_copied_and_the_records_of_processes_are_not(
    source: str, target: str
) -> None:
    fill(source)
    kinds = (LOCK, WORKER)
    with OpenedStore(source) as opened:
        opened.submit_all([PutRecord(kind, "x", b"1", ABSENT, DAY_US) for kind in kinds])
        opened.submit_all([PutRecord(CONFIG, name, b"7", ABSENT) for name in ("one", "two")])
    with OpenedStore(target) as opened:
        opened.submit_all([PutRecord(CONFIG, "two", b"8", ABSENT)])
    report = copy(source, target, pause=True)
    assert report.paused == ["default", "tenant/1", "ünï"]
    assert report.notes == ["config two is different in the target and stayed as it is there."]
    with OpenedStore(target) as opened:
        config = {record.name: record.value for record in opened.records(CONFIG)}
        assert config == {"one": b"7", "two": b"8"}
        assert {record.name for record in opened.records(PAUSE)} == {*report.paused}
        assert [opened.records(kind) for kind in kinds] == [[], []]


def test_another_job_with_the_same_id_is_listed_and_stays(source: str, target: str) -> None:
    for address, payload in ((source, b"mine"), (target, b"theirs")):
        with Queue(address) as queue:
            queue.enqueue("a", payload, id="x")
    report = copy(source, target, pause=True)
    assert (report.added, report.known) == (0, 0)
    assert report.not_taken == [NotTaken("x", f"another job in {target} has this id")]
    assert [job.payload for job in jobs_in(target)] == [b"theirs"]


def test_large_payloads_go_in_small_batches(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH_BYTES", 1_000)
    with Queue(source) as queue:
        queue.enqueue_many([NewJob("a", bytes(400)) for _ in range(10)])
    seen: list[int] = []
    copy(source, target, pause=True, progress=lambda done, _: seen.append(done))
    assert seen == [3, 6, 9, 10]


def test_progress_is_told_with_the_total(source: str, target: str) -> None:
    fill(source)
    told: list[tuple[int, int | None]] = []
    copy(source, target, pause=True, progress=lambda *one: told.append(one))
    assert told[-1] == (7, 7)


def test_schedules_arrive_paused(source: str, target: str) -> None:
    hourly = Schedule(entrypoint="report", line="@hourly", since_us=5, last_tick_us=5)
    put = [
        PutRecord(SCHEDULE, "hourly", encode(hourly), ABSENT),
        PutRecord(SCHEDULE, "odd", b"not JSON", ABSENT),
    ]
    drive(commit_batch(open_store(source), "operator", 1, put))
    for _ in range(2):
        copy(source, target, pause=True)
        arrived = {one.name: one.value for one in drive(open_store(target).records(SCHEDULE))}
        assert arrived == {"hourly": encode(replace(hourly, is_paused=True)), "odd": b"not JSON"}
