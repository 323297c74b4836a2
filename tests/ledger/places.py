"""Places: where a ledger can be: its URL for users, and direct access for tests that break it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Literal, Protocol

import pytest

from casque import Queue
from casque.buckets.port import Bucket
from casque.stores.ledger.ledger_bucket import MARKER, LedgerBucket, split_key
from casque.stores.ledger.log import key_of, number_in
from casque.stores.url import open_store
from casque.system.clock import SystemClock, drive, to_datetime
from casque.testing import FakeClock
from tests.servers.client import BucketServer
from tests.servers.fixtures import unique_prefix
from tests.servers.openers import BUCKET

Kind = Literal["folder", "s3", "gs"]

_seeds = count()


class Place(Protocol):
    url: str
    name: str
    """Its name in messages."""

    def objects(self) -> dict[str, bytes]:
        """Return all stored objects by key; an entry by its key in its ledger's folder."""
        ...

    def everything(self) -> dict[str, bytes]:
        """Return the same by their full keys in the place."""
        ...

    def write(self, key: str, body: bytes) -> None:
        """Store an object unconditionally."""
        ...

    def remove(self, key: str) -> None: ...

    def empty(self) -> None:
        """Remove everything."""
        ...


class FolderPlace:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"file://{path}"
        self.url = self.name

    def objects(self) -> dict[str, bytes]:
        return {split_key(key)[1]: body for key, body in self.everything().items()}

    def everything(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.path)): path.read_bytes()
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and path.name not in (".casque.lock", ".casque.gate")
        }

    def write(self, key: str, body: bytes) -> None:
        path = self.path / path_of(key, self)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(body)

    def remove(self, key: str) -> None:
        (self.path / path_of(key, self)).unlink()

    def empty(self) -> None:
        shutil.rmtree(self.path)


class ServerPlace:
    def __init__(self, server: BucketServer, scheme: str, prefix: str) -> None:
        self.server = server
        self.name = f"{scheme}://{BUCKET}/{prefix}"
        self.url = f"{self.name}?endpoint={server.url}"
        self._root = f"{prefix}/"
        self._shifted = 0.0

    def objects(self) -> dict[str, bytes]:
        return {split_key(key)[1]: body for key, body in self.everything().items()}

    def everything(self) -> dict[str, bytes]:
        found = self.server.objects(BUCKET, self._root)
        return {key.removeprefix(self._root): body for key, body in found.items()}

    def write(self, key: str, body: bytes) -> None:
        self.server.write(BUCKET, self._root + path_of(key, self), body)

    def remove(self, key: str) -> None:
        self.server.remove(BUCKET, self._root + path_of(key, self))

    def empty(self) -> None:
        for key in self.everything():
            self.server.remove(BUCKET, self._root + key)

    def shift_clock(self, seconds: float) -> None:
        self._shifted += seconds
        self.server.shift_clock(seconds)

    def close(self) -> None:
        """Do nothing: other tests use the server too."""
        self.server.clear()
        self.server.shift_clock(-self._shifted)


def path_of(key: str, place: Place) -> str:
    """Return an object's full key: an entry is in the folder of the only ledger."""
    if number_in(key) is None:
        return key
    folders = {split_key(one)[0] for one in place.everything()} - {""}
    return f"{folders.pop()}/{key}" if folders else key


def place_of(request: pytest.FixtureRequest, kind: Kind) -> Place:
    """Return a new place of that kind."""
    if kind == "folder":
        tmp_path: Path = request.getfixturevalue("tmp_path")
        return FolderPlace(tmp_path / unique_prefix())
    request.getfixturevalue("credentials")
    place = ServerPlace(request.getfixturevalue("bucket_server"), kind, unique_prefix())
    request.addfinalizer(place.close)
    return place


def mostly_in_a_folder(name: str, cases: Iterable[str]) -> pytest.MarkDecorator:
    """Run each case in a folder, and every third in a bucket too: the ledger makes the errors."""
    some = list(cases)
    placed = [("folder", case) for case in some] + [("s3", case) for case in some[::3]]
    return pytest.mark.parametrize(("place", name), placed, indirect=["place"])


def entry_of(place: Place, number: int) -> bytes:
    return place.objects()[key_of(number)]


def filled(place: Place, entries: int = 4) -> Queue:
    """Return an open queue whose log has this many entries, each with one job: j1, j2 …"""
    queue = Queue(place.url)
    for number in range(1, entries + 1):
        queue.enqueue("e", id=f"j{number}")
    return queue


def let_pass(place: Place, span: timedelta, *clocks: FakeClock) -> None:
    """Let time pass for these clocks and for the storage; a folder uses its process's clock."""
    if isinstance(place, ServerPlace):
        place.shift_clock(span.total_seconds())
    for clock in clocks:
        clock.advance(span)


def impatient(url: str) -> tuple[Queue, FakeClock]:
    """Return a queue whose pauses take no time, so its deadline comes at once; and its clock."""
    # Each has its own random source: two from the same millisecond would mint equal ids.
    clock = FakeClock(to_datetime(SystemClock().now()), seed=next(_seeds))
    return Queue(open_store(url, clock=clock)), clock


def home_of(bucket: Bucket) -> LedgerBucket:
    """Return the ledger in a bucket, as its processes see it."""
    home, found = LedgerBucket(bucket), drive(bucket.get(MARKER))
    if found is not None:
        home.identity = json.loads(found.body)["identity"]
    return home
