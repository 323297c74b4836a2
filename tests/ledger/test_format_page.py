"""The page on the ledger's format is enough to write a reader in any language.

`format_reader` was written from docs/reference/ledger-format.md, and knows nothing of casque. A
change of the format that is not on the page fails here.
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - with a seed
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from casque.buckets.folder import FolderBucket
from casque.job import Attempt, Failure, Job, JobStatus
from casque.record import CONFIG, LOCK, PAUSE, WORKER
from casque.rules.operations import (
    Ack,
    Batch,
    Cancel,
    DeleteRecord,
    Dequeue,
    Discard,
    Drop,
    Enqueue,
    Event,
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
from casque.rules.retention import DEAD_RETENTION
from casque.stores.ledger.ledger_bucket import Upkeep
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US, drive
from casque.testing import FakeClock
from tests.ledger.format_reader import JOB_FIELDS, Reader
from tests.ledger.msgpack_decoder import DamagedError

OTHER = Path(__file__).parent / "golden" / "entry-1.bin"
"""An entry of another log."""
UPKEEP = Upkeep(deletion_age_us=60 * SECOND_US, proof_age_us=5 * SECOND_US, snapshot_entries=10)
LONG = timedelta(seconds=70)
LARGE = bytes(range(256)) * 40
FAILURES = [
    None,
    Failure("ValueError", "no", "Traceback"),
    Failure("", "only a text"),
    Failure("mismatch", "x"),
]


def plain(value: Any) -> Any:
    """Return a value of casque as lists, dicts, text and bytes."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def as_read(job: Job) -> dict[str, Any]:
    """Return a job of casque in the form of the reader."""
    there = set(Job.__struct_fields__)
    names = {"headers": "header_pairs"}
    values = {
        name: getattr(job, names.get(name, name if name in there else f"{name}_us"))
        for name, _ in JOB_FIELDS
    }
    told: dict[str, Any] = plain(values)
    return told


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing to disk: no power cut comes here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def counts_of(reader: Reader, now: int) -> list[int]:
    """Count the jobs of a reader as the page says."""
    counts = dict.fromkeys(
        ("pending", "scheduled", "failed", "in_progress", "completed", "dead", "cancelled"), 0
    )
    for job in reader.shown(now):
        status = job["status"]
        if status == "queued":
            status = "scheduled" if job["run"] > now else "pending"
            status = "failed" if job["attempts"] else status
        counts[status] += 1
    return list(counts.values())


class Ledger:
    """A ledger in a folder, used by two processes and by producers that know no state."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.clock = FakeClock(seed=seed)
        self.random = random.Random(seed)
        self.stores = [self._store(), self._store()]
        self._numbers = 0
        self._made = 0

    def _store(self) -> LedgerStore:
        return LedgerStore(FolderBucket(self.path, self.clock), self.clock, upkeep=UPKEEP)

    def commit(self, *operations: Operation, store: LedgerStore | None = None) -> None:
        """Commit the operations; a refusal is an outcome like any other."""
        self._numbers += 1
        at = store or self.random.choice(self.stores)
        writer = self.random.choice([self.clock.new_id(), "a writer, ü"])
        is_remote = store is None and self.random.random() < 0.2
        drive(at.commit([Batch(writer, self._numbers, operations, is_remote)]))
        drive(at.housekeeping.background.stop(60))

    def jobs(self) -> tuple[Job, ...]:
        return drive(self.stores[0].picture()).jobs

    def entries(self) -> list[Path]:
        return sorted(self.path.glob("*/log/0*"))

    def grow(self, count: int) -> None:
        for _ in range(count):
            self.commit(Enqueue((self.request(),), 16))

    def shorten(self) -> None:
        """Let snapshots replace all entries up to now, and the entries be deleted."""
        last = self.entries()[-1]
        self.grow(25)
        self.clock.advance(LONG)
        for store in self.stores * 3:
            self.clock.advance(timedelta(seconds=25))
            self.commit(Enqueue((self.request(),), 16), store=store)
        assert not last.exists()

    def check(self, reader: Reader) -> None:
        """Compare everything that the reader says with what the store says."""
        reader.follow()
        store = self.stores[0]
        seen, now = drive(store.picture()), self.clock.now()
        for job, told in zip(seen.jobs, reader.shown(now), strict=True):
            assert told == as_read(job)
        assert reader.number == seen.version
        if reader.counts is not None:
            counts, until = reader.counts
            assert counts_of(reader, reader.state.now) == counts
            assert counts_of(reader, max(until - 1, reader.state.now)) == counts
        assert reader.state.token == drive(store.last_token())
        for kind in (CONFIG, LOCK, PAUSE):
            records = {(one.kind, one.name): plain(one) for one in drive(store.records(kind))}
            found = {key: one for key, one in reader.records(now).items() if key[0] == kind}
            assert found == records

    # -- what is done at random ------------------------------------------------

    def request(self, **more: Any) -> Request:
        chance = self.random
        self._made += 1
        values: dict[str, Any] = {
            "id": chance.choice([f"job {self._made}", self.clock.new_id()]),
            "queue": chance.choice(["default", "tenant/7"]),
            "entrypoint": chance.choice(["send", "größe"]),
            "payload": chance.choice([b"", b"small", LARGE[: chance.randrange(9_000, 10_240)]]),
            "priority": chance.choice([0, -200, 70_000]),
            "max_attempts": chance.choice([1, 2, 25]),
            "delay_us": chance.choice([0, 0, 20 * SECOND_US]),
            "retain_us": chance.choice([None, 100 * SECOND_US]),
            "timeout_us": chance.choice([None, SECOND_US]),
            "depth": chance.choice([0, 3]),
            "chain": chance.choice([(), ("first", "second")]),
            "header_pairs": chance.choice([(), (("trace", "1"), ("ü", ""))]),
        }
        return Request(**(values | more))

    def operation(self) -> Operation:
        """Return an operation that is likely to do something."""
        jobs = self.jobs()
        held = [job for job in jobs if job.status is JobStatus.IN_PROGRESS]
        make = self.random.choice(MAKERS if held else MAKERS[: -len(OF_HELD)])
        some = self.random.choice(held or jobs or (Job(id="none", entrypoint="e", payload=b""),))
        return make(self, some)

    def any_job(self, status: JobStatus) -> str:
        return self.random.choice([one.id for one in self.jobs() if one.status is status] or ["-"])


def inserted(ledger: Ledger, job: Job) -> Operation:
    token = ledger.clock.now() + 5
    done = Attempt(1, "w", 5, 6, Failure("Boom", "text", "trace"))
    jobs = (
        Job(id=f"from {token}", entrypoint="e", payload=LARGE, created_us=1, run_us=2, token=3),
        Job(
            id=f"dead {token}",
            entrypoint="e",
            payload=b"p",
            status=JobStatus.DEAD,
            attempts=1,
            history=(done,),
            error="Boom: text",
            finished_us=ledger.clock.now(),
            expires_us=token + 50 * SECOND_US,
            result=b"r",
            progress=0.25,
            header_pairs=(("a", "b"),),
        ),
    )
    return Insert(jobs, token)


Maker = Callable[[Ledger, Job], Operation]
OF_ANY: list[Maker] = [
    *[lambda at, _: Enqueue(tuple(at.request() for _ in range(3)), 16)] * 4,
    lambda at, job: Enqueue((at.request(id=job.id, queue=job.queue),), 16, replace=True),
    *[lambda at, _: Dequeue("host:1", 30 * SECOND_US, at.random.randrange(1, 4))] * 6,
    lambda at, _: Cancel(at.any_job(JobStatus.QUEUED), at.random.choice(["", "why"])),
    lambda at, _: Retry(at.any_job(JobStatus.DEAD)),
    lambda at, _: RequeueStale(15 * SECOND_US),
    lambda at, _: Purge(50 * SECOND_US, at.random.choice([None, "default"])),
    lambda at, _: Drop(at.random.choice(["tenant/7", "none", "none"])),
    inserted,
    lambda at, _: PutRecord(LOCK, f"lock {at.random.randrange(3)}", b"\xff", None, 30 * SECOND_US),
    lambda at, _: PutRecord(PAUSE, "slow", b"", None),
    lambda at, _: DeleteRecord(PAUSE, "slow", None),
]
OF_HELD: list[Maker] = [
    *[lambda _, job: Ack(job.id, job.token, b"result")] * 3,
    lambda at, job: Ack(job.id, job.token, None, (at.request(),), 16),
    *[lambda at, job: Nack(job.id, job.token, 5, at.random.choice(FAILURES))] * 3,
    lambda at, job: Fail(job.id, job.token, at.random.choice(FAILURES)),
    lambda at, job: Discard(job.id, job.token, "not worth it"),
    lambda at, job: Release(job.id, job.token, 3, at.random.choice(FAILURES)),
    lambda at, job: Heartbeat(((job.id, job.token),), None, 0.5, "half", b"out"),
    lambda at, job: Heartbeat(((job.id, job.token),), 40 * SECOND_US),
    lambda at, job: Cancel(job.id, "stop"),
]
MAKERS = OF_ANY + OF_HELD


@pytest.mark.parametrize("seed", range(2))
def test_a_reader_that_follows_sees_every_job_as_casque_does(tmp_path: Path, seed: int) -> None:
    ledger = Ledger(tmp_path / "jobs", seed)
    ledger.commit(PutRecord(*DEAD_RETENTION, b"%d" % (100 * SECOND_US), None))
    follower = Reader(ledger.path)
    late = 0
    for step in range(300):
        if step % 20 == 0:  # a producer that reads no state
            ids = Enqueue((ledger.request(id=ledger.clock.new_id(), minted=True),), 16)
            ledger.commit(ids, store=ledger._store())
        ledger.commit(ledger.operation())
        ledger.clock.advance(timedelta(seconds=ledger.random.choice([0, 0, 1, 3, 12])))
        if step % 3 == 0:
            ledger.check(follower)
        if step % 40 == 0:
            new = Reader(ledger.path)
            ledger.check(new)
            late += new.began_at > 0
    assert late > 5, "most readers begin with a snapshot"
    assert ledger.entries()[0].name > f"{80:020}", "most entries were deleted"
    tags = {kind.__struct_config__.tag for kind in get_args(Event)}
    assert follower.tags == tags, "every event was read"


def test_a_reader_that_slept_notices_that_entries_were_deleted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "jobs", 1)
    ledger.grow(5)
    reader = Reader(ledger.path)
    ledger.check(reader)
    ledger.shorten()
    assert not (ledger.entries()[0].parent / f"{reader.number + 1:020}").exists()
    ledger.check(reader)
    assert reader.began_at > 5


def test_a_reader_keeps_the_history_as_casque_does(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "jobs", 1)
    ledger.commit(Enqueue((ledger.request(id="a", max_attempts=25, delay_us=0),), 16))
    reader = Reader(ledger.path)
    mismatch, other = Failure("mismatch", "x"), Failure("ValueError", "no")
    releases = [*[other, mismatch, mismatch, None] * 3, *[other, mismatch] * 4]
    for place, failure in enumerate(releases):
        ledger.clock.advance(timedelta(seconds=1))
        ledger.commit(Dequeue("host:1", 30 * SECOND_US, id="a"))
        [job] = ledger.jobs()
        is_counted = failure is other or place % 5 == 0
        end = Nack if is_counted else Release
        ledger.commit(end("a", job.token, 0, failure))
        ledger.check(reader)
    [job] = ledger.jobs()
    kinds = [one.failure.kind for one in job.history if one.failure]
    assert len(kinds) == 10
    assert "mismatch" in kinds


def test_a_reader_finds_a_worker_that_is_present(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "jobs", 1)
    ledger.commit(PutRecord(WORKER, "host:1, ü", b"\x00\xff", None, 60 * SECOND_US))
    reader = Reader(ledger.path)
    [record] = drive(ledger.stores[0].records(WORKER))
    told = reader.presence(WORKER, "host:1, ü")
    assert told == plain(record)
    assert reader.presence(WORKER, "another") is None


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_reader_falls_back_to_the_snapshot_before(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "jobs", 1)
    ledger.grow(30)
    first, *_, last = sorted(ledger.path.glob("*/snapshot/0*"))
    assert Reader(ledger.path).began_at == int(last.name)
    damaged(last)
    reader = Reader(ledger.path)
    assert int(first.name) <= reader.began_at < int(last.name)
    ledger.check(reader)
    shutil.copy(first, last)  # the manifest of another snapshot
    ledger.check(Reader(ledger.path))
    for path in ledger.path.glob("*/part/*/*"):
        damaged(path)
    with pytest.raises(DamagedError):
        Reader(ledger.path)


@pytest.mark.parametrize("how", [damaged, Path.unlink, lambda path: shutil.copy(OTHER, path)])
def test_a_reader_refuses_an_entry_that_is_damaged_missing_or_of_another_log(
    tmp_path: Path, how: Callable[[Path], object]
) -> None:
    ledger = Ledger(tmp_path / "jobs", 1)
    ledger.grow(7)
    how(ledger.entries()[3])
    with pytest.raises(DamagedError):
        Reader(ledger.path).follow()
