"""The harness of each store: it describes the store to the suite."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, TypeVar

from casque import (
    CasqueError,
    InMemoryStorage,
    LocalFileSystemStorage,
    ObjectStoragePort,
    StorageError,
    Store,
)
from casque.adapters.storage.s3 import S3Storage
from casque.buckets.folder import FolderBucket
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import ABSENT, PAGE, Bucket, Expect, Found, Listed, Version
from casque.rules.state import State
from casque.stores.document.store import DocumentStore
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.entry import decode
from casque.stores.ledger.format_check import mark_of
from casque.stores.ledger.ledger_bucket import MARKER, LedgerBucket, Upkeep
from casque.stores.ledger.log import key_of, number_in
from casque.stores.ledger.replica import Replica
from casque.stores.ledger.snapshot_loader import load_newest
from casque.stores.ledger.store import LedgerStore
from casque.stores.memory import MemoryStore
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import SECOND_US, Clock, SystemClock, drive, to_datetime, to_us
from casque.testing import FakeClock, Raw, RawLine
from casque.testing.faults import SlowBucket, SlowStorage
from casque.testing.rig import Tier
from tests.servers.client import BucketServer
from tests.servers.openers import BUCKET

T = TypeVar("T")


def wait_for(call: Coroutine[Any, Any, T]) -> T:
    """Wait for a bucket's answer, whether or not the caller runs inside an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, call).result()


class MemoryHarness:
    """All handles are one store: no other process can reach this memory."""

    tier: Tier = "full"
    address: str | None = None
    empty_is_new = True

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._store = MemoryStore(self.clock)

    @property
    def _state(self) -> State:
        return self._store._state

    def open(self, clock: Clock | None = None) -> Store:
        return self._store

    def raw(self) -> Raw:
        return raw_state(self._state)

    def writes(self) -> int:
        return self._state.version

    def touched(self) -> int | None:
        return self._state.touched

    def stored(self) -> bytes | None:
        return None

    def replace_stored(self, content: bytes) -> None:
        raise AssertionError("a memory store has no stored bytes to replace")

    def wipe(self) -> bool:
        return False

    def slowed(self, delay: timedelta) -> Store | None:
        return None


def raw_state(state: State) -> Raw:
    jobs: dict[str, dict[str, Any]] = {
        job.id: {
            "status": job.status.value,
            "queue": job.queue,
            "entrypoint": job.entrypoint,
            "priority": job.priority,
            "attempts": job.attempts,
            "token": job.token,
            "due_us": job.due_us,
        }
        for job in state.jobs.values()
    }
    lines = [RawLine(line.queue, line.entrypoint, line.visit_us) for line in state.lines()]
    writers = {name: row.number for name, row in state.writers.items()}
    return Raw(jobs, lines, writers, state.token)


class DocumentHarness:
    """Reads the raw data with the standard library's json, not with casque's codec."""

    tier: Tier = "small"
    empty_is_new = False

    def __init__(self, folder: Path | None) -> None:
        self.clock = FakeClock()
        self.address: str | None = None
        self._port: ObjectStoragePort
        if folder is None:
            self._port = InMemoryStorage()
        else:
            self._port = LocalFileSystemStorage(folder / "queue.json")
            self.address = f"json:///{folder / 'queue.json'}"

    def open(self, clock: Clock | None = None) -> Store:
        return DocumentStore(self._port, clock or self.clock)

    def raw(self) -> Raw:
        document = self._document()
        ours = document.get("casque", {})
        lines = [RawLine(line["queue"], line["entrypoint"], None) for line in ours.get("lines", [])]
        writers = {row["writer"]: row["number"] for row in ours.get("writers", [])}
        jobs = {job["id"]: _raw_job(job) for job in document["jobs"]}
        return Raw(jobs, lines, writers, ours.get("token", 0))

    def writes(self) -> int:
        version: int = self._document()["version"]
        return version

    def touched(self) -> int | None:
        return None

    def stored(self) -> bytes | None:
        if isinstance(self._port, LocalFileSystemStorage):
            return self._port.path.read_bytes() if self._port.path.exists() else b""
        assert isinstance(self._port, InMemoryStorage)
        return self._port._content

    def replace_stored(self, content: bytes) -> None:
        if isinstance(self._port, LocalFileSystemStorage):
            self._port.path.write_bytes(content)
            return
        assert isinstance(self._port, InMemoryStorage)
        self._port._content = content
        self._port._writes += 1

    def wipe(self) -> bool:
        if isinstance(self._port, LocalFileSystemStorage):
            self._port.path.unlink()
            return True
        return False

    def slowed(self, delay: timedelta) -> Store | None:
        return DocumentStore(SlowStorage(self._port, self.clock, delay), self.clock)

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.stored() or b'{"version": 0, "jobs": []}')
        return document


class S3DocumentHarness(DocumentHarness):
    """Reads and damages the object inside the server, not over its protocol."""

    def __init__(self, server: BucketServer, key: str) -> None:
        super().__init__(None)
        self._server = server
        self._key = key
        self._port = S3Storage(BUCKET, key, None, "us-east-1", server.url)

    def stored(self) -> bytes:
        return self._server.objects(BUCKET, self._key).get(self._key, b"")

    def replace_stored(self, content: bytes) -> None:
        self._server.write(BUCKET, self._key, content)

    def wipe(self) -> bool:
        self._server.remove(BUCKET, self._key)
        return True


class SqliteHarness:
    """Reads the raw data on a separate connection, without casque's SQL."""

    tier: Tier = "full"
    empty_is_new = True  # as in any SQLite database

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.path = folder / "jobs.db"
        self.address: str | None = f"sqlite:///{self.path}"
        self._stores: list[SqliteStore] = []
        self._monitor: sqlite3.Connection | None = None
        self._seen: tuple[int, int] | None = None

    def open(self, clock: Clock | None = None) -> Store:
        store = SqliteStore(self.path, clock=clock or self.clock)
        self._stores.append(store)
        return store

    def raw(self) -> Raw:
        if not self.path.exists():
            return Raw({}, [], {}, 0)
        connection = self._connect()
        try:
            return self._raw(connection)
        finally:
            connection.close()

    def _raw(self, connection: sqlite3.Connection) -> Raw:
        stages = ["queued"] * 2 + ["in_progress"] * 2 + ["completed", "dead", "cancelled"]
        jobs: dict[str, dict[str, Any]] = {
            row["id"]: {
                "status": stages[row["stage"]],
                **{
                    name: row[name]
                    for name in (
                        "queue",
                        "entrypoint",
                        "priority",
                        "attempts",
                        "token",
                        "due_us",
                    )
                },
            }
            for row in connection.execute("SELECT * FROM casque_job")
        }
        lines = [
            RawLine(row["queue"], row["entrypoint"], row["visit_us"])
            for row in connection.execute("SELECT * FROM casque_line")
        ]
        counters = {
            row["writer"]: row for row in connection.execute("SELECT * FROM casque_counter")
        }
        token = counters.pop("")["token"]
        return Raw(jobs, lines, {name: row["number"] for name, row in counters.items()}, token)

    def writes(self) -> int:
        """The commits that the handles counted, checked against SQLite's data_version."""
        commits = sum(store.commits for store in self._stores)
        if self.path.exists():
            self._monitor = self._monitor or self._connect()
            [version] = self._monitor.execute("PRAGMA data_version").fetchone()
            changed = self._seen is not None and version != self._seen[0]
            counted = self._seen is not None and commits != self._seen[1]
            assert counted or not changed, "the file has changed, but no handle counted a commit"
            self._seen = version, commits
        return commits

    def touched(self) -> int | None:
        return sum(store.touched for store in self._stores)

    def stored(self) -> bytes | None:
        if not self.path.exists():
            return b""
        connection = self._connect()
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.DatabaseError:
            pass  # the file is damaged, and has no log
        finally:
            connection.close()
        return self.path.read_bytes()

    def replace_stored(self, content: bytes) -> None:
        """Put another file in its place, without a log, as a restored backup would."""
        for store in self._stores:
            drive(store.close())  # a store that has the file open would refuse permanently
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = self._seen = None
        other = self.path.with_name("other")
        other.write_bytes(content)
        other.replace(self.path)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def wipe(self) -> bool:
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = self._seen = None
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        return True

    def slowed(self, delay: timedelta) -> Store | None:
        return None

    def close(self) -> None:
        for store in self._stores:
            drive(store.close())
        if self._monitor is not None:
            self._monitor.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path)
        connection.row_factory = sqlite3.Row
        return connection


class BucketClock(SystemClock):
    """The clock by which a storage dates its objects. It does not follow steps of a wall clock.

    It waits in real time, for locks that others hold.
    """

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock, self._start = clock, clock.now() - clock.monotonic()

    def now(self) -> int:
        return self._start + self._clock.monotonic()

    def moment(self) -> tuple[int, int]:
        return self.now(), self.monotonic()


UPKEEP = Upkeep(deletion_age_us=60 * SECOND_US, proof_age_us=5 * SECOND_US, snapshot_entries=50)
"""Snapshots are taken, and old entries deleted, while the suite runs."""


class LedgerHarness:
    """Reads the raw data from the log in the bucket, replayed from its first entry.

    If entries were deleted before it has read them, it goes on from the snapshot.
    """

    empty_is_new = False

    def __init__(
        self,
        clock: FakeClock,
        bucket: Callable[[], Bucket],
        *,
        tier: Tier,
        address: str | None = None,
    ) -> None:
        self.clock = clock
        self.tier: Tier = tier
        self.address = address
        self._bucket = bucket
        self._is_here = bucket().blocking  # then reading needs no event loop
        self._stores: list[LedgerStore] = []
        self._read: list[tuple[int, bytes]] = []
        """The entries by number, from the first one or the one after a snapshot on."""
        self._replica = Replica(blind=False)
        self._behind = LedgerBucket(bucket())
        """The harness's own handle, to read and damage the log without the stores."""

    def open(self, clock: Clock | None = None) -> Store:
        return self._opened(self._bucket(), clock)

    def _opened(self, bucket: Bucket, clock: Clock | None = None) -> LedgerStore:
        store = LedgerStore(bucket, clock or self.clock, upkeep=UPKEEP)
        self._stores.append(store)
        return store

    def raw(self) -> Raw:
        entries, replica = self._entries(), self._replica
        for number, content in entries:
            if number > replica.number:
                replica.take(content, key_of(number))
        assert replica.state is not None
        return raw_state(replica.state)

    def writes(self) -> int:
        entries = self._entries()
        return entries[-1][0] if entries else self._replica.number

    def touched(self) -> int | None:
        replicas = (store._reader.replica for store in self._stores)
        return sum(one.state.touched for one in replicas if one is not None and one.state)

    def stored(self) -> bytes | None:
        """The bytes of the last entry."""
        entries = self._entries()
        return entries[-1][1] if entries else b""

    def replace_stored(self, content: bytes) -> None:
        """Write `content` as the next entry: open stores do not read earlier ones again."""
        entries = self._entries()
        good = list(takewhile(lambda one: _is_entry(*one), entries))
        number, last = good[-1]
        bucket, key = self._behind, key_of(number + 1)
        wait_for(bucket.delete(key))
        del self._read[len(good) :]
        if content != last:
            wait_for(bucket.put(key, content, expect=ABSENT))

    def wipe(self) -> bool:
        async def remove_all() -> None:
            bucket = self._bucket()
            while page := await bucket.list():
                for one in page:
                    await bucket.delete(one.key)

        wait_for(remove_all())
        self._read.clear()
        self._replica, self._behind = Replica(blind=False), LedgerBucket(self._bucket())
        return True

    def slowed(self, delay: timedelta) -> Store | None:
        return self._opened(SlowBucket(self._bucket(), self.clock, delay))

    def _entries(self) -> list[tuple[int, bytes]]:
        """Read all entries directly from the bucket."""
        if self._is_here:
            return drive(self._read_entries())
        try:
            return wait_for(self._read_entries())
        except StorageError:  # the server closed a connection that was idle
            return wait_for(self._read_entries())

    async def _read_entries(self) -> list[tuple[int, bytes]]:
        """All entries. Each is read only once, because an entry never changes."""
        bucket = self._behind
        if not bucket.identity:
            mark = await bucket.get(MARKER)
            if mark is None:
                return []
            bucket.identity = json.loads(mark.body)["identity"]
        is_full = True  # a page that is not full is the last one
        while is_full:
            last = self._read[-1][0] if self._read else self._replica.number
            page = await bucket.list("log/", after=key_of(last))
            for one in page:
                number = number_in(one.key) or 0
                found = await bucket.get(one.key) if number == last + 1 else None
                if found is None:  # the entries before it, or this one, were deleted meanwhile
                    await self._leap()
                    break
                self._read.append((number, found.body))
                last = number
            else:
                is_full = len(page) == PAGE
        return list(self._read)

    async def _leap(self) -> None:
        """Go on from the newest snapshot."""
        loaded = await load_newest(BucketRequests(self._behind, SystemClock()))
        assert loaded is not None
        self._replica.restore(loaded.state, *loaded.view, loaded.size)
        self._read.clear()


def _is_entry(number: int, content: bytes) -> bool:
    with suppress(CasqueError):
        return decode(content, "an entry").number == number
    return False


def ledger_in_memory() -> LedgerHarness:
    clock = FakeClock()
    bucket = MemoryBucket(BucketClock(clock))
    return LedgerHarness(clock, lambda: bucket, tier="full")


def ledger_in_a_folder(folder: Path | str) -> LedgerHarness:
    clock = FakeClock(to_datetime(SystemClock().now()))  # processes in real time use it too
    stamps = BucketClock(clock)
    return LedgerHarness(
        clock,
        lambda: FolderBucket(f"{folder}/queue", stamps),
        tier="small",
        address=f"file://{folder}/queue",
    )


class Restamped:
    """A bucket on a server, with object times from the test's clock."""

    def __init__(self, bucket: Bucket, clock: Clock, stamps: dict[str, int]) -> None:
        self.name, self.blocking = bucket.name, bucket.blocking
        self.delete, self.close = bucket.delete, bucket.close
        self._bucket = bucket
        self._clock = clock
        self._stamps = stamps
        """By key: when it was written. Objects that another process wrote count as new."""

    async def get(self, key: str) -> Found | None:
        found = await self._bucket.get(key)
        return None if found is None else found._replace(modified_us=self._stamp(key))

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        stamp = self._clock.now()
        version = await self._bucket.put(key, body, expect=expect)
        self._stamps[key] = stamp
        return version

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        page = await self._bucket.list(prefix, after=after)
        return [one._replace(modified_us=self._stamp(one.key)) for one in page]

    def _stamp(self, key: str) -> int:
        return self._stamps.get(key, self._clock.now())


def ledger_on_a_server(bucket: Callable[[], Bucket], address: str | None = None) -> LedgerHarness:
    """A ledger that exists and is empty: making one takes 20 requests for its race test."""
    wait_for(bucket().put(MARKER, mark_of(SystemClock().new_id(), UPKEEP), expect=ABSENT))
    clock = FakeClock(to_datetime(SystemClock().now()))  # as for a folder
    storage_clock, stamps = BucketClock(clock), dict[str, int]()
    return LedgerHarness(
        clock,
        lambda: Restamped(bucket(), storage_clock, stamps),
        tier="small",
        address=address,
    )


def _raw_job(stored: dict[str, Any]) -> dict[str, Any]:
    due = {"queued": stored.get("run_at") or stored["created_at"]}.get(stored["status"])
    if stored["status"] == "in_progress":
        due = stored["lease_until"]
    return {
        "status": stored["status"],
        "queue": stored.get("queue", "default"),
        "entrypoint": stored["entrypoint"],
        "priority": stored["priority"],
        "attempts": stored.get("attempts", 0),
        "token": stored.get("token", 0),
        "due_us": None if due is None else _us(due),
    }


def _us(text: str) -> int:
    return to_us(datetime.fromisoformat(text))
