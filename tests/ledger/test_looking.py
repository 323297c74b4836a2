"""A reader of a ledger in a folder writes nothing; a writer tests the folder first."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import CorruptError, Queue, StorageError
from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT, Expect, Version
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import Clock, drive
from casque.testing import FakeClock
from tests.conformance.untouched import disk
from tests.ledger.places import FolderPlace, filled
from tests.ledger.refusals import Use

LOOKS: dict[str, Use] = {
    "stats": lambda q: q.stats(),
    "get": lambda q: q.get("j1"),
    "peek": lambda q: q.peek(),
    "queues": lambda q: q.queues(),
    "read_state": lambda q: q.read_state(),
}
WRITES: dict[str, Use] = {
    "enqueue": lambda q: q.enqueue("e"),
    "enqueue of an id": lambda q: q.enqueue("e", id="new"),
    "dequeue": lambda q: q.dequeue(),
    "pause": lambda q: q.pause("a"),
}


class Unwritable(FolderBucket):
    """A bucket on a disk that is mounted read-only."""

    async def put(self, key: str, body: bytes, *, expect: Any) -> Version:
        raise StorageError(f"cannot write {key}", outcome_unknown=False)

    async def delete(self, key: str) -> None:
        raise StorageError(f"cannot delete {key}", outcome_unknown=False)


class Careless(FolderBucket):
    """A bucket that ignores conditions: every put succeeds."""

    async def put(self, key: str, body: bytes, *, expect: Any) -> Version:
        found = await self.get(key)
        return await super().put(key, body, expect=ABSENT if found is None else found.version)


@pytest.mark.parametrize("name", LOOKS)
def test_a_reader_writes_nothing(name: str, tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "queue")
    with filled(place) as q:
        before, seen = disk(place.path), LOOKS[name](q)
    with Queue(Unwritable(place.path)) as q:
        assert LOOKS[name](q) == seen
        for use in WRITES.values():
            with pytest.raises(StorageError, match="cannot write probe/"):
                use(q)
        assert LOOKS[name](q) == seen
    assert disk(place.path) == before


def test_a_reader_sees_what_others_write_later(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "queue")
    with Queue(Unwritable(place.path)) as looking:
        for total in (4, 5):
            filled(place, total).close()
            assert looking.stats().total == total
        place.empty()
        for use in LOOKS.values():
            with pytest.raises(CorruptError, match="format is gone"):
                use(looking)
    with Queue(Unwritable(place.path)) as looking:
        assert looking.stats().total == 0


def test_a_clock_three_days_ahead_stops_writers_and_not_readers(
    tmp_path: Path,
) -> None:
    place, clock = FolderPlace(tmp_path / "queue"), FakeClock()
    with Queue(_folder(place, clock.skewed(timedelta(days=3)))) as ahead:
        ahead.enqueue("e", id="j1")
    before = disk(place.path)
    with Queue(_folder(place, clock)) as q:
        for look in LOOKS.values():
            assert look(q)
        for write in WRITES.values():
            with pytest.raises(StorageError, match=r"is dated 259200 s after .* runs ahead"):
                write(q)
        assert q.stats().total == 1
        assert disk(place.path) == before
        clock.advance(timedelta(days=3))
        q.enqueue("e")


def _folder(place: FolderPlace, clock: Clock) -> LedgerStore:
    return LedgerStore(FolderBucket(place.path, clock), clock)


def test_a_read_of_an_empty_place_creates_nothing_and_a_job_is_stored_there_later(
    tmp_path: Path,
) -> None:
    place = FolderPlace(tmp_path / "queue")
    with Queue(place.url) as q, Queue(place.url) as other:
        for use in LOOKS.values():
            use(q)
        assert disk(tmp_path) == {}
        other.enqueue("e", id="a")
        assert q.stats().total == 1
        q.enqueue("e", id="b")
        assert other.stats().total == 2


def test_a_process_that_read_an_empty_place_has_the_positions_of_its_jobs(
    tmp_path: Path,
) -> None:
    with Queue(f"{tmp_path}/queue/") as q:
        assert q.stats().total == 0
        assert [q.enqueue("e").seq for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("name", WRITES)
def test_a_folder_that_was_read_is_tested_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    place = FolderPlace(tmp_path / "queue")
    filled(place).close()
    before = place.objects()
    with Queue(Careless(place.path)) as q:
        assert q.stats().total == 4
        with pytest.raises(StorageError, match="ignores conditional writes"):
            WRITES[name](q)
    assert place.objects() == before


def test_a_folder_has_the_time_that_dates_its_files(tmp_path: Path) -> None:
    clock = FakeClock()
    bucket = FolderBucket(tmp_path / "queue", clock)
    drive(bucket.put("a", b"", expect=Expect.ABSENT))
    found = drive(bucket.get("a"))
    assert found is not None
    assert found.modified_us == bucket.time_us() == clock.now()
