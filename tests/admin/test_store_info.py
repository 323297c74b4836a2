"""`info` and `requests`: what a store says of itself, on each kind of store."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from casque import InvalidError, Queue, open_store
from casque.admin import Requests, Size, info, requests
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import PAGE
from casque.stores.url import StoreAddress
from casque.testing.relays import Relay


@pytest.fixture(params=["jobs.db", "queue.json", "ledger/"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{tmp_path}/{request.param}"


def fill(address: StoreAddress, jobs: int = 3) -> None:
    with Queue(address) as q:
        for number in range(jobs):
            q.enqueue("e", b"%d" % number)


def test_it_counts_the_jobs_and_names_the_store(address: str) -> None:
    fill(address)
    found = info(address)
    assert (found.stats.pending, found.stats.total) == (3, 3)
    assert found.name == open_store(address).name
    assert found.format == 1


def test_the_identity_stays_and_a_new_store_in_its_place_has_another(
    address: str, tmp_path: Path
) -> None:
    fill(address)
    first = info(address).identity
    fill(address)
    assert info(address).identity == first
    other = f"{tmp_path}/other/{Path(address).name}{'/' if address.endswith('/') else ''}"
    fill(other)
    assert first
    assert info(other).identity not in (None, first)


def test_it_is_the_identity_that_is_stored(tmp_path: Path) -> None:
    fill(tmp_path / "jobs.db")
    stored = sqlite3.connect(tmp_path / "jobs.db")
    row = stored.execute("SELECT identity FROM casque_counter WHERE writer = ''").fetchone()
    stored.close()
    assert info(tmp_path / "jobs.db").identity == row[0]
    fill(f"{tmp_path}/ledger/")
    mark = json.loads((tmp_path / "ledger" / "format").read_bytes())
    assert info(f"{tmp_path}/ledger/").identity == mark["identity"]


def test_the_size_is_that_of_the_files(tmp_path: Path) -> None:
    fill(tmp_path / "queue.json")
    assert info(tmp_path / "queue.json").size == Size(1, (tmp_path / "queue.json").stat().st_size)
    fill(f"{tmp_path}/ledger/")
    files = [one for one in (tmp_path / "ledger").rglob("[!.]*") if one.is_file()]
    assert len(files) == 4
    assert info(f"{tmp_path}/ledger/").size == Size(4, sum(one.stat().st_size for one in files))
    with Queue(tmp_path / "jobs.db") as q:
        q.enqueue("e")
        sizes = [(tmp_path / name).stat().st_size for name in ("jobs.db", "jobs.db-wal")]
        assert info(q.store).size == Size(2, sum(sizes))


def test_of_a_large_ledger_it_counts_one_page_and_says_so() -> None:
    bucket = MemoryBucket()
    fill(bucket, PAGE)
    store = open_store(bucket)
    before = info(store).requests
    found = info(store)
    assert found.size is not None
    assert (found.size.objects, found.size.is_partial) == (PAGE, True)
    assert found.requests is not None
    assert before is not None
    assert (found.requests - before).list == 1


@pytest.mark.parametrize("name", ["jobs.db", "queue.json", "ledger/", "no/folder/jobs.db"])
def test_it_creates_no_store(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="there is no store at"):
        info(f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


def test_memory_has_neither_place_nor_bucket() -> None:
    with Queue("memory://") as q:
        q.enqueue("e")
        found = info(q.store)
    assert found[:5] == ("memory://", "memory", None, None, None)
    assert (found.stats.total, found.requests) == (1, None)


def test_a_store_of_the_user_is_named_by_its_class() -> None:
    found = info(Relay(open_store("memory://")))
    assert (found.kind, found.identity, found.size) == ("Relay", None, None)


def test_the_requests_of_a_store_object_are_counted_from_its_first_one() -> None:
    store = open_store(MemoryBucket())
    assert requests(store) == Requests()
    with Queue(store) as q:
        q.enqueue("e")
        before = requests(store)
        q.enqueue("e", b"x" * 1_000)
        after = requests(store)
    assert before is not None
    assert after is not None
    assert ((after - before).put, (after - before).sent_bytes > 1_000) == (1, True)


def test_only_a_ledger_has_requests(tmp_path: Path) -> None:
    assert requests(open_store(tmp_path / "jobs.db")) is None
