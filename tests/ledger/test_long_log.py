"""A long log: the cost of opening it, and how a read that was given up continues."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from casque import DirectQueue, NewJob, Queue
from casque.buckets import folder, synced_names
from casque.buckets.disk import LocalDisk
from casque.buckets.folder import FolderBucket
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Found
from casque.stores.ledger import log, log_reader
from casque.stores.ledger.log import number_in
from casque.system.clock import SystemClock

PAGE = 10
ENTRIES = 400


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small pages, so that hundreds of entries act like tens of thousands."""
    monkeypatch.setattr(folder, "PAGE", PAGE)
    monkeypatch.setattr(log, "PAGE", PAGE)
    monkeypatch.setattr(synced_names, "OBJECTS_KEPT", 16 * PAGE)


class CountsSyncs(LocalDisk):
    syncs = 0

    def sync_folder(self, path: str) -> None:
        self.syncs += 1
        super().sync_folder(path)


def test_a_folder_syncs_once_for_a_page_of_entries_and_not_for_each(tmp_path: Path) -> None:
    with Queue(FolderBucket(tmp_path)) as q:
        for number in range(ENTRIES):
            q.enqueue("e", b"%d" % number)
    files = CountsSyncs(SystemClock())
    with Queue(FolderBucket(tmp_path, files=files)) as q:
        assert q.stats().pending == ENTRIES
    assert files.syncs < ENTRIES / 4


def test_files_of_others_beside_the_entries_do_not_hide_the_end(tmp_path: Path) -> None:
    with Queue(FolderBucket(tmp_path)) as q:
        for _ in range(3):
            q.enqueue("e")
    [folder] = tmp_path.glob("*/log")
    for number in range(PAGE * (log.PAGES_AHEAD + 1)):
        (folder / f"{3:020}.{number}").write_bytes(b"a copy")
    (folder / "zzz").write_bytes(b"a note")
    with Queue(FolderBucket(tmp_path)) as q:
        q.enqueue("e")
        assert q.stats().pending == 4


class OfTheNet(MemoryBucket):
    """A bucket that answers at the next turn of the loop, and counts what is read."""

    blocking = False
    read = 0
    """How many entries."""
    under_way = 0
    """How many requested bytes are not answered yet."""
    most = 0

    async def get(self, key: str) -> Found | None:
        self.read += number_in(key) is not None
        found = await super().get(key)
        size = 0 if found is None else len(found.body)
        self.under_way += size
        self.most = max(self.most, self.under_way)
        await SystemClock().sleep(0, blocking=False)
        self.under_way -= size
        return found


def test_a_read_of_a_long_log_continues_after_it_was_given_up() -> None:
    async def main() -> None:
        bucket = OfTheNet()
        producer = DirectQueue(bucket)
        for _ in range(ENTRIES):
            await producer.enqueue("e")
        bucket.read = 0
        reader = DirectQueue(bucket)
        tries = 0
        while True:
            look = asyncio.create_task(reader.queues())
            given_up_at, tries = bucket.read + ENTRIES // 3, tries + 1
            while not look.done() and bucket.read < given_up_at:
                await SystemClock().sleep(0, blocking=False)
            if look.done():
                break
            look.cancel()
            await asyncio.wait([look])
        assert await look == ["default"]
        assert (await reader.stats()).pending == ENTRIES
        assert tries > 1
        assert bucket.read < 2 * ENTRIES

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("payload", [0, 300, 3_000, 30_000])
def test_parallel_reads_are_no_more_than_a_slow_line_carries(
    payload: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "_BYTES_AT_ONCE", 10_000)

    async def main() -> None:
        bucket = OfTheNet()
        producer = DirectQueue(bucket)
        for _ in range(50):
            await producer.enqueue_many([NewJob("e", bytes(payload // 5)) for _ in range(5)])
        bucket.most = 0
        assert (await DirectQueue(bucket).stats()).pending == 250
        assert payload < bucket.most <= max(10_000, payload + 1_000)

    asyncio.run(asyncio.wait_for(main(), 60))
