"""Deleted entries: a process that was stopped past the deletion notices it, and loses nothing.

The name of a deleted entry is free. So a process that knows the log up to entry n finds no entry
n+1, and could create it: on a log that went on long ago.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from casque.errors import StorageError
from casque.stores.ledger import bucket_requests
from casque.stores.ledger.log import key_of
from tests.ledger.shortened import Objects, Stopping, both_kinds, run


@pytest.fixture(autouse=True)
def _no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for an answer however long it takes: `Stopping` stops a request, not its copies."""
    monkeypatch.setattr(bucket_requests, "_COPIES", 1)
    monkeypatch.setattr(bucket_requests, "REQUEST_SECONDS", 25)


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
