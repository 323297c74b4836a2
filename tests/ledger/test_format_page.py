"""The page on the ledger's format is enough to write a reader in any language.

`format_reader` was written from docs/reference/ledger-format.md, and knows nothing of casque. A
change of the format that is not on the page fails here.
"""

from __future__ import annotations

import ast
import inspect
import os
import random  # noqa: TID251 - with a seed
import re
import shutil
from collections.abc import Callable, Sequence
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
    Added,
    Batch,
    BatchStamp,
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
from casque.rules.state import WriterRow
from casque.stores.ledger import snapshot
from casque.stores.ledger.entry import FIRST, Entry, encode
from casque.stores.ledger.format_check import mark_of
from casque.stores.ledger.framing import digest_of
from casque.stores.ledger.ledger_bucket import Upkeep
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US, drive
from casque.testing import FakeClock
from tests.ledger import format_reader, msgpack_decoder
from tests.ledger.format_reader import JOB_FIELDS, Reader, State, body_of, job_of, slices_of
from tests.ledger.msgpack_decoder import DamagedError, Unpacker

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ledger-format.md"
GOLDEN = Path(__file__).parent / "golden"
OTHER = GOLDEN / "entry-1.bin"
"""An entry of another log."""
UPKEEP = Upkeep(deletion_age_us=60 * SECOND_US, proof_age_us=5 * SECOND_US, snapshot_entries=10)
LONG = timedelta(seconds=70)
LARGE = bytes(range(256)) * 40
ID = "018cc251-f400-7123-8abc-0123456789ab"
TIME = 1_704_067_200_000_000
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


# -- the bytes -----------------------------------------------------------------


def hex_on_the_page() -> list[bytes]:
    fences = re.findall(r"^```hex\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [bytes.fromhex(fence) for fence in fences]


def test_casque_writes_the_bytes_on_the_page() -> None:
    job = Job(id="a", entrypoint="send", payload=b"hi", created_us=TIME, updated_us=TIME)
    job = msgspec.structs.replace(job, run_us=TIME)
    entry = encode(Entry(1, [BatchStamp("w", 1)], TIME, FIRST, [Added(job)]))
    frozen = snapshot.Frozen(
        1,
        digest_of(entry),
        TIME,
        snapshot.Counters(1, 0, 1, 1),
        [1, 0, 0, 0, 0, 0, 0],
        [msgspec.structs.replace(job, seq=1)],
        [snapshot._Line("default", "send", 1)],
        [("w", WriterRow(1, TIME))],
        [],
    )
    [part] = [content for content in snapshot.encode_parts(frozen) if content]
    parts = [snapshot.Part.of(f"{1:020}-{ID}/000000", part)]
    manifest = snapshot.encode_manifest(frozen.manifest("p", parts))
    assert hex_on_the_page() == [entry, part, manifest]
    assert mark_of(ID).decode() in PAGE.read_text()


def test_the_reader_reads_the_bytes_on_the_page(tmp_path: Path) -> None:
    entry, part, manifest = hex_on_the_page()
    (tmp_path / "format").write_bytes(mark_of(ID))
    put(tmp_path / ID / f"log/{1:020}", entry)
    by_log = Reader(tmp_path)
    by_log.follow()
    put(tmp_path / ID / f"part/{1:020}-{ID}/000000", part)
    put(tmp_path / ID / f"snapshot/{1:020}", manifest)
    by_snapshot = Reader(tmp_path)
    by_snapshot.follow()
    assert (by_log.began_at, by_snapshot.began_at) == (0, 1)
    assert by_log.shown(TIME) == by_snapshot.shown(TIME)
    [job] = by_log.shown(TIME)
    assert (job["id"], job["payload"], job["max_attempts"], job["seq"]) == ("a", b"hi", 25, 1)
    assert {job["created"], job["run"], job["updated"]} == {TIME}


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_the_reader_reads_what_earlier_versions_wrote() -> None:
    number, stamps, time, previous, events, guest = Unpacker(
        body_of(OTHER.read_bytes(), b"csq")
    ).whole()
    assert (number, time, previous) == (3, TIME, bytes(range(8)))
    assert (stamps[1], guest[1]) == ([b"another", 1, b"\x90"], 2_000_000)
    state = State()
    state.apply(events[:3], time)
    first, given, _ = state.jobs.values()
    assert (first["id"], given["id"]) == (ID, "a given id, ünïcode")
    assert (given["priority"], given["run"], given["depth"]) == (-5, TIME - 10_000_000, 2)
    [one] = slices_of_all("part-1.bin", 0)
    held = job_of(one[1])
    assert (held["id"], held["lease_until"], held["output"]) == ("held", TIME + 9, b"o")


def slices_of_all(name: str, place: int) -> Sequence[list[Any]]:
    content = (GOLDEN / name).read_bytes()
    return [found for one in slices_of(content) if (found := one[place])]


def test_a_shorter_array_has_the_defaults_of_the_page() -> None:
    page = PAGE.read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| .* \| ?(\S*) ?\|$", page, re.MULTILINE)
    words: dict[str, Any] = {"0": 0, "nil": None, "empty": [], "": None}
    told = [(name, words[default]) for _, name, default in rows]
    assert told == JOB_FIELDS
    assert [int(place) for place, *_ in rows] == list(range(len(JOB_FIELDS)))


def test_the_reader_shares_no_code_with_casque() -> None:
    for module in (format_reader, msgpack_decoder):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"casque", "msgspec", "msgpack"} & {name.split(".")[0] for name in names}
