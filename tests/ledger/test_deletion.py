"""Deleted entries: a process that was stopped past the deletion notices it, and loses nothing.

The name of a deleted entry is free. So a process that knows the log up to entry n finds no entry
n+1, and could create it: on a log that went on long ago.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from casque.buckets.folder import FolderBucket
from casque.buckets.port import Expect, Version
from casque.errors import CorruptError, StorageError
from casque.stores.ledger import bucket_requests
from casque.stores.ledger.ledger_bucket import MARKER
from casque.stores.ledger.log import key_of
from tests.conformance.harnesses import BucketClock
from tests.ledger.shortened import LONG, UPKEEP, Objects, Stopping, both_kinds, run


@pytest.fixture(autouse=True)
def _no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for an answer however long it takes: `Stopping` stops a request, not its copies."""
    monkeypatch.setattr(bucket_requests, "_COPIES", 1)
    monkeypatch.setattr(bucket_requests, "REQUEST_SECONDS", 25)


NEW_IDENTITY = "018cc251-f400-7123-8abc-0123456789ab"
MOMENTS = {
    "before the call": None,
    "before its entry is stored": ("put log/", False),
    "before the answer": ("put log/", True),
}


@both_kinds
@pytest.mark.parametrize("minted", [True, False], ids=["blind", "with a state"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_job_added_by_a_process_stopped_past_the_deletion_is_stored_once(
    moment: str, minted: bool, blocking: bool
) -> None:
    async def main(objects: Objects) -> None:
        bucket = Stopping(objects.bucket)
        sleeper = objects.process("sleeper", bucket)
        await sleeper.add("before", minted=True)
        if not minted:
            assert await sleeper.jobs() == ["before"]
        stop = MOMENTS[moment]
        if stop is None:
            await objects.shorten()
        else:
            bucket.stop_at(stop[0], objects.shorten, carried_out=stop[1])
        await sleeper.add("late", minted=minted)
        # Whether it wrote an entry under the name that was free.
        assert bucket.has_stopped
        assert (key_of(2) in bucket.created) == (stop is not None)
        seen = await objects.process("other").jobs()
        assert seen.count("late") == 1
        assert await sleeper.jobs() == seen

    run(blocking, main)


@both_kinds
@pytest.mark.parametrize("carried_out", [False, True])
def test_a_read_that_finds_no_next_entry_because_it_was_deleted_is_not_believed(
    carried_out: bool, blocking: bool
) -> None:
    async def main(objects: Objects) -> None:
        bucket = Stopping(objects.bucket)
        sleeper = objects.process("sleeper", bucket)
        await sleeper.add("before")
        assert await sleeper.jobs() == ["before"]
        bucket.stop_at("get log/00000000000000000002", objects.shorten, carried_out=carried_out)
        seen = await sleeper.jobs()
        assert bucket.has_stopped
        # If the read came first, nothing followed then, within the call.
        assert len(seen) > 10
        assert await sleeper.jobs() == await objects.process("other").jobs()

    run(blocking, main)


@both_kinds
def test_an_empty_dequeue_is_not_believed_if_the_next_entry_was_deleted(blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        bucket = Stopping(objects.bucket)
        sleeper = objects.process("sleeper", bucket)
        await sleeper.add("before")
        await sleeper.ack(await sleeper.claim())
        bucket.stop_at("get log/00000000000000000004", objects.shorten, carried_out=False)
        assert (await sleeper.claim()).id.startswith("first-")
        assert bucket.has_stopped

    run(blocking, main)


@both_kinds
def test_two_sleepers_with_one_view_do_not_believe_each_others_entries(blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        buckets = [Stopping(objects.bucket) for _ in range(2)]
        one, other = (objects.process(f"sleeper{n}", b) for n, b in enumerate(buckets))
        await one.add("before")
        assert await other.jobs() == ["before"]

        async def stop_the_other_too() -> None:
            buckets[1].stop_at("put log/", objects.shorten, carried_out=False)
            buckets[1].keeps = "log/"
            await other.add("of the other")

        buckets[0].stop_at("put log/", stop_the_other_too, carried_out=False)
        await one.add("of the one")
        # The other wrote an entry under a name that was free, and this one found it there.
        assert key_of(2) in buckets[1].created
        assert key_of(2) not in buckets[0].created
        seen = await objects.process("reader").jobs()
        assert seen.count("of the one") == seen.count("of the other") == 1
        assert await one.jobs() == await other.jobs() == seen

    run(blocking, main)


@both_kinds
def test_an_unanswered_commit_whose_entry_was_replaced_by_a_snapshot_is_not_done_twice(
    blocking: bool,
) -> None:
    async def main(objects: Objects) -> None:
        async def shorten_and_fail() -> None:
            await objects.shorten()
            raise StorageError("no answer", outcome_unknown=True)

        bucket = Stopping(objects.bucket)
        sleeper = objects.process("sleeper", bucket)
        await sleeper.add("before")
        bucket.stop_at("put log/", shorten_and_fail, carried_out=True)
        with pytest.raises(StorageError, match="outcome unknown"):
            await sleeper.claim()
        job = await sleeper.claim(number=2)
        assert (job.id, job.attempts) == ("before", 1)
        found = await objects.process("reader").store.get("before")
        assert found is not None
        assert (found.attempts, found.token) == (1, job.token)

    run(blocking, main)


@both_kinds
def test_a_late_entry_under_a_freed_name_settles_nothing(blocking: bool) -> None:
    """The process sent its entry twice: the second time under a name that was freed."""

    async def main(objects: Objects) -> None:
        async def shorten_and_hide() -> None:
            objects.clock.advance(timedelta(minutes=16))  # so that no row shows what it stored
            await objects.shorten()
            bucket.fails = "list snapshot/"

        bucket = Stopping(objects.bucket)
        sleeper = objects.process("sleeper", bucket)
        await sleeper.add("before", minted=True)
        bucket.fails = "put log/"
        with pytest.raises(StorageError, match="outcome unknown"):
            await sleeper.add("late", minted=True)
        bucket.fails = "nothing"
        bucket.stop_at("put log/", shorten_and_hide, carried_out=False)
        bucket.keeps = "log/"
        with pytest.raises(StorageError, match="outcome unknown"):
            await sleeper.add("late", minted=True, number=2)
        assert key_of(2) in bucket.created
        bucket.fails = "nothing"
        seen = await sleeper.jobs()
        assert "late" not in seen
        with pytest.raises(StorageError, match="outcome unknown"):
            await sleeper.add("late", minted=True, number=2)
        assert await objects.process("reader").jobs() == seen

    run(blocking, main)


@both_kinds
def test_a_process_stopped_past_the_deletion_twice_in_one_call_blames_nobody(
    blocking: bool,
) -> None:
    async def main(objects: Objects) -> None:
        bucket = Stopping(objects.bucket)
        sleeper = objects.process("sleeper", bucket)
        await sleeper.add("before")
        await objects.shorten()
        # It reads the log again from a snapshot, and is stopped before the entries that follow.
        bucket.stop_at("list log/", objects.shorten, carried_out=False)
        with pytest.raises(StorageError, match=r"was suspended.*try again"):
            await sleeper.jobs()
        assert bucket.has_stopped
        assert await sleeper.jobs() == await objects.process("reader").jobs()

    run(blocking, main)


# -- what is deleted, and when ----------------------------------------------------


@both_kinds
def test_entries_are_deleted_once_another_process_finds_the_snapshot_old_and_whole(
    blocking: bool,
) -> None:
    async def main(objects: Objects) -> None:
        one, other = objects.process("one"), objects.process("other")
        await one.grow(10)
        objects.clock.advance(timedelta(microseconds=UPKEEP.deletion_age_us))
        await other.grow(3)
        assert objects.entries()[0] == 1, "too early"
        objects.clock.advance(timedelta(seconds=20))
        await one.grow(1)
        assert objects.entries()[0] == 1, "nobody else has checked it"
        await other.grow(1)
        assert objects.entries() == [10, 11, 12, 13, 14, 15]
        assert await one.jobs() == await objects.process("reader").jobs()

    run(blocking, main)


@both_kinds
def test_a_process_that_is_alone_checks_its_own_snapshot_later(blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        alone = objects.process("alone")
        await alone.grow(10)
        objects.clock.advance(LONG)
        await alone.grow(2)
        assert objects.entries()[0] == 1
        objects.clock.advance(LONG)
        await alone.grow(2)
        assert objects.entries()[0] == 10

    run(blocking, main)


@both_kinds
def test_the_two_newest_snapshots_stay_with_their_parts(blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        one, other = objects.process("one"), objects.process("other")
        for _ in range(4):
            await one.grow(10)
            objects.clock.advance(LONG)
            await other.grow(2)
        assert [key[-2:] for key in objects.keys("snapshot/")] == ["30", "40"]
        assert len(objects.keys("part/")) == 2
        assert objects.entries()[0] == 40
        assert len(await objects.process("reader").jobs()) == 48

    run(blocking, main)


@both_kinds
def test_parts_without_a_manifest_are_deleted_when_nobody_can_still_be_writing_them(
    blocking: bool,
) -> None:
    async def main(objects: Objects) -> None:
        bucket = Stopping(objects.bucket)
        killed = objects.process("killed", bucket)
        bucket.refuses = "put snapshot/"
        await killed.grow(10)
        [left] = objects.keys("part/")
        other = objects.process("other")
        await other.grow(5)
        objects.clock.advance(timedelta(microseconds=23 * UPKEEP.deletion_age_us))
        await other.grow(2)
        assert left in objects.keys("part/")
        objects.clock.advance(2 * LONG)
        await other.grow(2)
        assert left not in objects.keys("part/")
        assert len(objects.keys("part/")) == len(objects.keys("snapshot/")) > 0
        assert len(await objects.process("reader").jobs()) == 19

    run(blocking, main)


@both_kinds
def test_the_parts_of_a_manifest_that_cannot_be_read_stay(blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        one, other = objects.process("one"), objects.process("other")
        await one.grow(10)
        [manifest], [part] = objects.keys("snapshot/"), objects.keys("part/")
        content = objects.body(manifest)
        objects.replace(manifest, content[:-1] + b"?")
        await other.store.close()  # it has read all entries
        for _ in range(3):
            objects.clock.advance(30 * LONG)
            await one.grow(1)
        assert part in objects.keys("part/")
        objects.replace(manifest, content)  # restored from a copy
        assert len(await other.jobs()) == 13

    run(blocking, main)


@both_kinds
def test_a_process_that_slept_while_it_wrote_the_parts_writes_no_manifest(blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        async def sleep() -> None:
            objects.clock.advance(timedelta(microseconds=UPKEEP.orphan_age_us // 2 + 1))

        bucket = Stopping(objects.bucket)
        process = objects.process("one", bucket)
        bucket.stop_at("put part/", sleep, carried_out=True)
        await process.grow(10)
        assert bucket.has_stopped
        assert objects.keys("snapshot/") == []

    run(blocking, main)


# -- where little is allowed ------------------------------------------------------


@both_kinds
def test_a_bucket_that_refuses_deletions_disturbs_nobody(blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        one = objects.process("one")
        await one.grow(10)
        bucket = Stopping(objects.bucket)
        other = objects.process("other", bucket)
        await other.grow(1)
        bucket.refuses = "delete log/"
        objects.clock.advance(LONG)
        await other.grow(5)
        assert 1 <= bucket.asked.count("delete log/") <= 32, "it tries at every commit"
        assert objects.entries()[0] == 1
        bucket.refuses = "nothing"
        objects.clock.advance(LONG)
        await other.grow(1)
        assert objects.entries()[0] == 10
        assert await one.jobs() == await other.jobs()

    run(blocking, main)


class ReadOnlyFolder(FolderBucket):
    """A folder in which this process may not write."""

    async def put(self, key: str, body: bytes, *, expect: Expect | Version) -> Version:
        raise StorageError("read-only file system", outcome_unknown=False)

    async def delete(self, key: str) -> None:
        raise StorageError("read-only file system", outcome_unknown=False)


def test_a_process_that_may_not_write_reads_a_log_that_is_shortened(tmp_path: Path) -> None:
    def first_entry() -> str:
        return min(path.name for path in tmp_path.glob("*/log/*"))

    async def main(objects: Objects) -> None:
        stamps = BucketClock(objects.clock)
        writable, read_only = FolderBucket(tmp_path, stamps), ReadOnlyFolder(tmp_path, stamps)
        one, other = (objects.process(name, writable) for name in ("one", "other"))
        await one.grow(9)
        reader = objects.process("reader", read_only)
        assert len(await reader.jobs()) == 9
        await one.grow(12)
        objects.clock.advance(LONG)
        await other.grow(2)
        assert first_entry().endswith("20")
        assert len(await reader.jobs()) == 23
        assert len(await objects.process("new", read_only).jobs()) == 23
        with pytest.raises(StorageError, match="read-only"):
            await reader.add("new")

    run(True, main)


@both_kinds
@pytest.mark.parametrize("moment", ["before the call", "before its entry is stored"])
def test_a_process_notices_that_the_format_was_raised(moment: str, blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        async def upgrade() -> None:
            mark = json.loads(objects.body(MARKER))
            new = mark | {"format": mark["format"] + 1, "identity": NEW_IDENTITY}
            objects.replace(MARKER, json.dumps(new).encode())

        bucket = Stopping(objects.bucket)
        old = objects.process("old", bucket)
        await old.grow(3)
        before = objects.keys()
        objects.clock.advance(timedelta(seconds=2))
        if moment == "before the call":
            await upgrade()
        else:
            bucket.stop_at("get format", upgrade, carried_out=False)
        with pytest.raises(CorruptError, match=r"newer casque.*Upgrade casque here"):
            await old.add("late")
        with pytest.raises(CorruptError, match=r"newer casque.*Upgrade casque here"):
            await old.jobs()
        # In an object storage, the entry sent beside the check is in the old folder.
        after = objects.keys()
        assert not [key for key in after if key.startswith(NEW_IDENTITY)]
        assert len(after) <= len(before) + (not blocking)

    run(blocking, main)
