"""Workers on a ledger: their registry entries are beside the log; idle workers write no log."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import App, Queue
from casque.buckets.folder import FolderBucket
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Version
from casque.cli.store import Access
from casque.errors import CorruptError, StorageError
from casque.record import ABSENT, WORKER, Record
from casque.rules.operations import DeleteRecord, Dequeue, Operation, PutRecord
from casque.stores.ledger.ledger_bucket import split_key
from casque.stores.ledger.presence import FOLDER, is_presence
from casque.stores.ledger.store import LedgerStore
from casque.stores.url import open_store
from casque.system.clock import SystemClock, drive, to_datetime
from casque.testing import FakeClock
from casque.testing.batches import commit_batch
from casque.testing.simulation.clock import SimClock
from tests.ledger.virtual import Distant, in_virtual_time
from tests.worker.apps import beside, hasten, wait_for

MINUTE_US = 60_000_000


def test_idle_workers_write_no_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)  # 600 beats a minute
    app = App(f"{tmp_path}/ledger/")

    @app.task
    def task() -> None: ...

    with app, Access(app.store) as access:

        def versions() -> list[int]:
            return [one.version for one in access.records(WORKER)]

        with beside(app, lease_us=MINUTE_US), beside(app, lease_us=MINUTE_US):
            wait_for("both are there", lambda: len(versions()) == 2)
            first = set(versions())
            wait_for("both beat", lambda: not first & set(versions()))
        assert access.records(WORKER) == []
    assert list(tmp_path.glob("ledger/*/log/*")) == []


class Ledger:
    """A ledger in memory, and processes that open it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.bucket = MemoryBucket(self.clock)
        self._number = 0

    def opened(self) -> LedgerStore:
        return LedgerStore(self.bucket, self.clock)

    def commit(self, store: LedgerStore, *operations: Operation) -> list[Any]:
        self._number += 1
        return drive(commit_batch(store, "writer", self._number, operations))

    def keys(self, folder: str) -> list[str]:
        keys = [split_key(one.key)[1] for one in drive(self.bucket.list())]
        return [key for key in keys if key.startswith(folder)]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def put(value: bytes, *, expect: int | None = None, name: str = "host:1/ü") -> PutRecord:
    return PutRecord(WORKER, name, value, expect, MINUTE_US)


def test_an_entry_is_one_object_that_is_overwritten(ledger: Ledger) -> None:
    one, other = ledger.opened(), ledger.opened()
    for value in (b"1", b"2", b"3"):
        [record] = ledger.commit(one, put(value))
        assert isinstance(record, Record)
        assert drive(other.records(WORKER)) == [record]
        assert record.value == value
        ledger.clock.advance(timedelta(seconds=1))
    [key] = ledger.keys(FOLDER)
    assert is_presence(key)
    assert ledger.keys("log/") == []
    ledger.commit(one, DeleteRecord(WORKER, "host:1/ü", None))
    assert ledger.keys(FOLDER) == []


def test_other_operations_of_the_commit_are_stored_in_the_log(ledger: Ledger) -> None:
    store = ledger.opened()
    ordinary = PutRecord("config", "a", b"1", ABSENT)
    before, record, after = ledger.commit(store, ordinary, put(b"2"), ordinary)
    assert (before.kind, record.kind) == ("config", WORKER)
    assert isinstance(after, Exception), "it is there already"
    assert len(ledger.keys("log/")) == 1


def test_an_entry_that_is_refused_fails_alone(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real = ledger.opened(), ledger.bucket.put

    async def refused(key: str, body: bytes, *, expect: Any) -> Version:
        if f"/{FOLDER}" in key:
            raise StorageError("403", outcome_unknown=False)
        return await real(key, body, expect=expect)

    monkeypatch.setattr(ledger.bucket, "put", refused)
    refusal, record = ledger.commit(store, put(b"1"), PutRecord("config", "a", b"1", ABSENT))
    assert isinstance(refusal, StorageError)
    assert drive(store.records("config")) == [record]


def test_an_expired_entry_is_deleted_by_the_next_reader(ledger: Ledger) -> None:
    store = ledger.opened()
    ledger.commit(store, put(b"1"), put(b"2", name="other"))
    ledger.clock.advance(timedelta(seconds=40))
    ledger.commit(store, put(b"3", name="other"))
    ledger.clock.advance(timedelta(seconds=40))
    assert [one.name for one in drive(ledger.opened().records(WORKER))] == ["other"]
    assert len(ledger.keys(FOLDER)) == 1


def test_an_entry_is_created_for_another_only_if_there_is_none(ledger: Ledger) -> None:
    owner, other = ledger.opened(), ledger.opened()
    ledger.commit(other, put(b"for another", expect=ABSENT))
    [record] = ledger.commit(owner, put(b"own"))
    [refusal] = ledger.commit(other, put(b"for another", expect=ABSENT))
    assert isinstance(refusal, Exception)
    assert drive(other.records(WORKER)) == [record]


def test_a_lost_answer_or_an_entry_that_vanished_does_not_stop_the_next(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ledger.opened()
    ledger.commit(store, put(b"1"))
    real, lost = ledger.bucket.put, [True]

    async def unanswered(key: str, body: bytes, *, expect: Any) -> Version:
        version = await real(key, body, expect=expect)
        if lost and f"/{FOLDER}" in key:
            lost.pop()
            raise StorageError("no answer", outcome_unknown=True)
        return version

    monkeypatch.setattr(ledger.bucket, "put", unanswered)
    ledger.commit(store, put(b"2"))
    [key] = [one.key for one in drive(ledger.bucket.list()) if f"/{FOLDER}" in one.key]
    drive(ledger.bucket.delete(key))
    [record] = ledger.commit(store, put(b"3"))
    assert drive(store.records(WORKER)) == [record]


def test_a_place_with_nothing_but_entries_may_become_a_ledger(ledger: Ledger) -> None:
    ledger.commit(ledger.opened(), put(b"1"))
    drive(ledger.bucket.delete("format"))
    assert Queue(ledger.opened()).enqueue("e").id


def test_an_entry_that_hangs_delays_nothing_else_in_its_commit() -> None:
    async def main(clock: SimClock) -> int:
        bucket = Distant(clock)
        store = LedgerStore(bucket, clock)
        await commit_batch(store, "w", 1, [put(b"1")])
        real = bucket.put

        async def hung(key: str, body: bytes, *, expect: Any) -> Version:
            if f"/{FOLDER}" in key:
                await asyncio.Event().wait()
            return await real(key, body, expect=expect)

        bucket.put = hung  # type: ignore[method-assign]
        begun = clock.monotonic()
        ordinary = PutRecord("config", "a", b"1", ABSENT)
        refusal, stored = await commit_batch(store, "w", 2, [put(b"2"), ordinary])
        assert isinstance(refusal, StorageError)
        assert isinstance(stored, Record)
        return clock.monotonic() - begun

    assert in_virtual_time(main) < 3_000_000


def test_where_the_ledger_is_gone_no_entry_is_written(tmp_path: Path) -> None:
    folder, moved = tmp_path / "queue", tmp_path / "moved"
    store = open_store(f"{folder}/")
    drive(commit_batch(store, "w", 1, [put(b"1")]))
    folder.rename(moved)
    with pytest.raises(CorruptError, match="format is gone"):
        drive(commit_batch(store, "w", 2, [put(b"2")]))
    assert not folder.exists()


def folder(path: Path, clock: FakeClock, ahead: timedelta = timedelta()) -> LedgerStore:
    of_process = clock.skewed(ahead)
    return LedgerStore(FolderBucket(path, of_process), of_process)


@pytest.mark.parametrize("has_read_log", [True, False])
def test_a_clock_three_days_ahead_hides_no_entry_and_keeps_none(
    tmp_path: Path, *, has_read_log: bool
) -> None:
    clock = FakeClock()
    Queue(folder(tmp_path, clock, ahead=timedelta(days=3))).enqueue("e")
    worker, other = folder(tmp_path, clock), folder(tmp_path, clock)
    if has_read_log:
        drive(worker.records("config"))
    for number in range(1, 4):
        [record] = drive(commit_batch(worker, "w", number, [put(b"1")]))
        assert isinstance(record, Record)
        clock.advance(timedelta(seconds=50))
        assert drive(other.records(WORKER)) == [record]
    clock.advance(timedelta(seconds=50))
    assert drive(other.records(WORKER)) == []


def test_an_entry_is_written_though_the_rest_of_its_commit_is_refused(tmp_path: Path) -> None:
    clock = FakeClock()
    Queue(folder(tmp_path, clock, ahead=timedelta(days=3))).enqueue("e")
    store = folder(tmp_path, clock)
    claim = Dequeue("host:1/ü", MINUTE_US, 1)
    record, refusal = drive(commit_batch(store, "w", 1, [put(b"1"), claim]))
    assert isinstance(refusal, StorageError)
    assert "is dated" in str(refusal)
    assert drive(store.records(WORKER)) == [record]
    drive(commit_batch(store, "w", 2, [DeleteRecord(WORKER, "host:1/ü", None), claim]))
    assert drive(store.records(WORKER)) == []


def test_a_worker_whose_claims_are_refused_is_in_the_registry(tmp_path: Path) -> None:
    ahead = FakeClock(to_datetime(SystemClock().now()) + timedelta(days=3))
    app = App(f"{tmp_path}/ledger/")

    @app.task
    def task() -> None: ...

    Queue(folder(tmp_path / "ledger", ahead)).enqueue("e")
    with app, Access(app.store) as access, beside(app):
        wait_for("it is there", lambda: len(access.records(WORKER)) == 1)


def test_no_entry_is_sent_to_a_silent_storage() -> None:
    async def main(clock: SimClock) -> int:
        bucket = Distant(clock)
        store = LedgerStore(bucket, clock)
        await commit_batch(store, "w", 1, [put(b"1")])
        bucket.is_hung = True
        begun = clock.monotonic()
        with pytest.raises(StorageError):
            await commit_batch(store, "w", 2, [put(b"2"), PutRecord("config", "a", b"1", ABSENT)])
        return clock.monotonic() - begun

    assert in_virtual_time(main) <= 31_000_000
