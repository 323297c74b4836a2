"""BucketSuite: the tests that every bucket must pass.

To test a bucket, write a subclass with a `bucket_harness` fixture and nothing else:

    class TestFolder(BucketSuite):
        @pytest.fixture
        def bucket_harness(self, tmp_path): return FolderHarness(tmp_path)
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from casque.buckets.port import ABSENT, PAGE, Bucket, Found, Version
from casque.errors import CASConflictError, StorageError
from casque.system.clock import MINUTE_US, SECOND_US, drive
from casque.testing.racers import (
    BucketHarness,
    count_up,
    create_the_same_keys,
    list_or_come_and_go,
    race,
    replace_or_read,
)
from casque.testing.statement import Unweakened

_AT_ONCE = 16
_A_FEW = {"full": 8, "small": 4}


# Keys are sorted as plain text, not part by part: "a-b" and "a.b" come before "a/b".
# fmt: off
_KEYS = [
    "a-b", "a.b", "a/b", "a/b-c", "a/b.d/e", "a/c/d", "a/c0", "a0", "a_", "aa/b", "b", "Z",
    "log/02", "log/10", "log-1", "log0",
]
_BEFORE_A_FOLDER = ["a-b", "a.b", "log-1"]
_PREFIXES = [
    "", "a", "a/", "a/b", "a/b.", "a/b.d/", "a/b/", "a/c", "a/c/", "a/c/d", "a/x", "l", "log/",
    "log/1", "x", "~",
]
# fmt: on


class _Handles:
    """The handles of one test, closed at its end."""

    def __init__(self, harness: BucketHarness) -> None:
        self.harness = harness
        self.is_full = harness.tier == "full"
        self.hashes = "hashes" in harness.limits
        self.folders = "folders" in harness.limits
        self._opened: list[Bucket] = []

    def open(self) -> Bucket:
        self._opened.append(self.harness.open())
        return self._opened[-1]

    async def close(self) -> None:
        for bucket in self._opened:
            await bucket.close()


def promise(
    proof: Callable[[Any, _Handles], Awaitable[None]],
) -> Callable[[Any, BucketHarness], None]:
    """Turn an async method into a plain test that pytest can run."""

    @functools.wraps(proof)
    def test(self: Any, bucket_harness: BucketHarness) -> None:
        async def run() -> None:
            handles = _Handles(bucket_harness)
            try:
                await proof(self, handles)
            finally:
                await handles.close()

        asyncio.run(run())

    # pytest takes fixtures from the signature; with `__wrapped__` it would see the proof's.
    del test.__dict__["__wrapped__"]
    test.__dict__["statements"] = (proof.__name__,)
    return test


class BucketSuite(Unweakened):
    """One test for each promise of `Bucket`."""

    # -- one object ------------------------------------------------------------

    @promise
    async def test_it_is_a_bucket_with_a_name(self, handles: _Handles) -> None:
        bucket = handles.open()
        assert isinstance(bucket, Bucket)
        assert bucket.name
        if bucket.blocking:  # then it must work without an event loop
            drive(bucket.put("a", b"1", expect=ABSENT))
            assert drive(bucket.get("a"))
            assert drive(bucket.list())
            drive(bucket.delete("a"))
            drive(bucket.close())

    @promise
    async def test_get_returns_the_whole_body_that_was_put(self, handles: _Handles) -> None:
        bucket = handles.open()
        every = bytes(range(256))
        bodies = [b"", b"\0", b"\r\n", every, every * 4096]
        if handles.is_full:
            bodies.append(every * 4096 * 5 + b"!")
        for number, body in enumerate(bodies):
            version = await bucket.put(f"size/{number}", body, expect=ABSENT)
            found = await _there(bucket, f"size/{number}")
            # Compared outside the assert: pytest would print how two megabytes differ.
            is_same = found.body == body
            assert is_same, f"put {len(body)} bytes, got {len(found.body)} different ones"
            assert type(found.body) is bytes
            assert found.version == version
        sizes = {one.key: one.size for one in await bucket.list("size/")}
        assert sizes == {f"size/{number}": len(body) for number, body in enumerate(bodies)}

    @promise
    async def test_get_returns_none_for_a_missing_key(self, handles: _Handles) -> None:
        bucket = handles.open()
        assert await bucket.get("missing") is None
        assert await bucket.get("a/folder/of/missing") is None
        await bucket.put("folder/a", b"1", expect=ABSENT)
        assert await bucket.get("folder/b") is None
        assert await bucket.get("folder") is None
        assert await bucket.get("folder/a/b") is None

    @promise
    async def test_each_write_gets_a_new_version_even_for_equal_bytes(
        self, handles: _Handles
    ) -> None:
        bucket = handles.open()
        versions: list[Version] = []
        bodies = (b"%d" % number if handles.hashes else b"same" for number in itertools.count())
        for _ in range(3):
            versions.append(await bucket.put("a", next(bodies), expect=ABSENT))
            for _ in range(5):
                versions.append(await bucket.put("a", next(bodies), expect=versions[-1]))
                assert (await _there(bucket, "a")).version == versions[-1]
            await bucket.delete("a")
        assert len(set(versions)) == len(versions)

    @promise
    async def test_a_version_does_not_change_without_a_write(self, handles: _Handles) -> None:
        bucket, other = handles.open(), handles.open()
        version = await bucket.put("a", b"1", expect=ABSENT)
        for _ in range(3):
            await bucket.put(f"b{_}", b"1", expect=ABSENT)
            await bucket.list()
            assert (await _there(bucket, "a")).version == version
            assert (await _there(other, "a")).version == version

    # -- expectations ----------------------------------------------------------

    @promise
    async def test_a_second_create_conflicts_and_changes_nothing(self, handles: _Handles) -> None:
        bucket, other = handles.open(), handles.open()
        await bucket.put("a/b", b"first", expect=ABSENT)
        before = await _there(bucket, "a/b")
        for one in (bucket, other):
            for body in (b"second", b"first", b""):
                with pytest.raises(CASConflictError):
                    await one.put("a/b", body, expect=ABSENT)
                assert await _there(one, "a/b") == before

    @promise
    async def test_an_update_succeeds_only_at_the_version_it_expects(
        self, handles: _Handles
    ) -> None:
        bucket, other = handles.open(), handles.open()
        first = await bucket.put("a", b"1", expect=ABSENT)
        second = await other.put("a", b"22", expect=first)
        before = await _there(bucket, "a")
        assert (before.body, before.version) == (b"22", second)
        elsewhere = await bucket.put("b", b"1", expect=ABSENT)
        for stale in (first, elsewhere):
            for one in (bucket, other):
                with pytest.raises(CASConflictError):
                    await one.put("a", b"333", expect=stale)
                assert await _there(one, "a") == before
        await bucket.put("a", b"", expect=second)
        assert (await _there(other, "a")).body == b""

    @promise
    async def test_a_missing_object_cannot_be_updated(self, handles: _Handles) -> None:
        bucket = handles.open()
        version = await bucket.put("a", b"1", expect=ABSENT)
        with pytest.raises(CASConflictError):
            await bucket.put("b", b"1", expect=version)
        with pytest.raises(CASConflictError):
            await bucket.put("folder/of/b", b"1", expect=version)
        await bucket.delete("a")
        with pytest.raises(CASConflictError):
            await bucket.put("a", b"2", expect=version)
        assert await bucket.list() == []

    @promise
    async def test_a_deleted_object_is_gone_and_can_be_created_again(
        self, handles: _Handles
    ) -> None:
        bucket, other = handles.open(), handles.open()
        old = await bucket.put("a/b/c", b"same", expect=ABSENT)
        await bucket.delete("a/b/c")
        for one in (bucket, other):
            assert await one.get("a/b/c") is None
            assert await one.list() == []
        again = b"another" if handles.hashes else b"same"
        new = await other.put("a/b/c", again, expect=ABSENT)
        with pytest.raises(CASConflictError):
            await bucket.put("a/b/c", b"late", expect=old)
        assert (await _there(bucket, "a/b/c"))[:2] == (again, new)

    @promise
    async def test_deleting_a_missing_object_is_no_error(self, handles: _Handles) -> None:
        bucket = handles.open()
        await bucket.delete("missing")
        await bucket.delete("a/folder/of/missing")
        await bucket.put("a/b", b"1", expect=ABSENT)
        for _ in range(2):
            await bucket.delete("a/c")
        await bucket.delete("a")
        await bucket.delete("a/b/c")
        assert [one.key for one in await bucket.list()] == ["a/b"]

    # -- lists -----------------------------------------------------------------

    @promise
    async def test_a_list_is_sorted_by_whole_keys(self, handles: _Handles) -> None:
        bucket = handles.open()
        keys = [key for key in _KEYS if not (handles.folders and key in _BEFORE_A_FOLDER)]
        for key in keys:
            await bucket.put(key, key.encode(), expect=ABSENT)
        # Lists continue after a listed key; where folders come first, after nothing else.
        afters = keys if handles.folders else _PREFIXES + (_KEYS if handles.is_full else [])
        for prefix in _PREFIXES:
            named = sorted(key for key in keys if key.startswith(prefix))
            listed = await bucket.list(prefix)
            assert [one.key for one in listed] == named, prefix
            assert [one.size for one in listed] == [len(key) for key in named]
            for after in afters:
                listed = await bucket.list(prefix, after=after)
                rest = [key for key in named if key > after]
                assert [one.key for one in listed] == rest, (prefix, after)

    @promise
    async def test_a_list_without_matching_keys_is_empty(self, handles: _Handles) -> None:
        bucket = handles.open()
        for prefix in ("", "a", "a/", "a/b/c"):
            assert await bucket.list(prefix) == []
            assert await bucket.list(prefix, after="a") == []

    @promise
    async def test_a_long_list_continues_page_by_page(self, handles: _Handles) -> None:
        bucket = handles.open()
        count = PAGE + (107 if handles.is_full else 3)
        keys = [f"page/{number * 7919 % count:020}" for number in range(count)]
        await _put_all(bucket, [*keys, "other", "pages/1"])
        listed: list[str] = []
        pages = 0
        while page := await bucket.list("page/", after=listed[-1] if listed else ""):
            assert len(page) <= PAGE
            assert not listed or page[0].key > listed[-1]
            listed += [one.key for one in page]
            pages += 1
        assert listed == sorted(keys)
        assert pages >= 2

    @promise
    async def test_keys_may_use_every_allowed_character(self, handles: _Handles) -> None:
        bucket = handles.open()
        keys = [
            "abcdefghijklmnopqrstuvwxyz-ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789.-_",
            "-",
            "_",
            "0",
            "-a.b_c/-/_.-/x..y",
            "tmp",
            "x.tmp",
            "lock",
            "x" * 120,
            "/".join(["part" * 5] * 8),
            "snapshot/00000000000000000042-0198c0de-ffff-7abc-8def-0123456789ab/0001",
        ]
        for key in keys:
            await bucket.put(key, key.encode(), expect=ABSENT)
        assert [one.key for one in await bucket.list()] == sorted(keys)
        for key in keys:
            assert (await _there(bucket, key)).body == key.encode()
            assert key in [one.key for one in await bucket.list(key)]
            await bucket.delete(key)
        assert await bucket.list() == []

    # -- time, and other handles -----------------------------------------------

    @promise
    async def test_the_time_of_an_object_is_when_it_was_written(self, handles: _Handles) -> None:
        bucket = handles.open()
        latest = 0
        for number in range(10):
            version = await bucket.put(f"time/{number}", b"1", expect=ABSENT)
            if number % 2:
                await bucket.put(f"time/{number}", b"2", expect=version)
            found = await _there(bucket, f"time/{number}")
            [listed] = await bucket.list(f"time/{number}")
            assert abs(listed.modified_us - found.modified_us) <= SECOND_US
            assert found.modified_us >= latest - SECOND_US
            latest = max(latest, found.modified_us)
        assert 0 <= latest - (await _there(bucket, "time/0")).modified_us < 10 * MINUTE_US

    @promise
    async def test_an_answered_write_is_visible_to_other_handles_at_once(
        self, handles: _Handles
    ) -> None:
        one, other = handles.open(), handles.open()
        for number in range(5):
            key = f"seen/{number}"
            assert await other.get(key) is None
            version = await one.put(key, b"1", expect=ABSENT)
            assert (await _there(other, key))[:2] == (b"1", version)
            assert key in [found.key for found in await other.list("seen/")]
            version = await other.put(key, b"22", expect=version)
            assert (await _there(one, key))[:2] == (b"22", version)
            assert [found.size for found in await one.list(key)] == [2]
            await one.delete(key)
            assert await other.get(key) is None
            assert await other.list("seen/") == []
            one, other = other, one

    @promise
    async def test_a_handle_can_be_used_after_it_was_closed(self, handles: _Handles) -> None:
        bucket = handles.open()
        await bucket.close()
        version = await bucket.put("a", b"1", expect=ABSENT)
        await bucket.close()
        await bucket.close()
        assert (await _there(bucket, "a")).version == version
        await bucket.close()
        assert [one.key for one in await bucket.list()] == ["a"]
        await bucket.close()
        await bucket.put("a", b"2", expect=version)
        await bucket.close()
        await bucket.delete("a")
        assert await handles.open().list() == []

    # -- many at once ----------------------------------------------------------

    @promise
    async def test_when_many_tasks_create_one_key_exactly_one_succeeds(
        self, handles: _Handles
    ) -> None:
        bucket = handles.open()
        for number in range(3):
            key = f"race/{number}"
            answers = await asyncio.gather(
                *(bucket.put(key, b"%d" % place, expect=ABSENT) for place in range(_AT_ONCE)),
                return_exceptions=True,
            )
            won = {place for place, answer in enumerate(answers) if isinstance(answer, str)}
            unsure = {place for place, answer in enumerate(answers) if _is_unknown(answer)}
            lost = [answer for answer in answers if isinstance(answer, CASConflictError)]
            assert len(won) + len(unsure) + len(lost) == _AT_ONCE, answers
            assert len(won) <= 1
            assert int((await _there(bucket, key)).body) in (won or unsure)

    @promise
    async def test_when_many_threads_create_one_key_exactly_one_succeeds(
        self, handles: _Handles
    ) -> None:
        await _race_to_create(handles, "threads")

    @promise
    async def test_when_many_processes_create_one_key_exactly_one_succeeds(
        self, handles: _Handles
    ) -> None:
        await _race_to_create(handles, "processes")

    @promise
    async def test_threads_that_compare_and_set_lose_no_addition(self, handles: _Handles) -> None:
        await _race_to_count(handles, "threads")

    @promise
    async def test_processes_that_compare_and_set_lose_no_addition(self, handles: _Handles) -> None:
        await _race_to_count(handles, "processes")

    @promise
    async def test_an_object_that_is_being_replaced_is_read_whole(self, handles: _Handles) -> None:
        times = 60 if handles.is_full else 10
        await race(handles.harness, "threads", replace_or_read, 3, times)

    @promise
    async def test_a_list_includes_every_lasting_key_while_others_come_and_go(
        self, handles: _Handles
    ) -> None:
        stay = [f"many/{number:03}-stays" for number in range(0, 60, 2)]
        await _put_all(handles.open(), stay)
        times = 40 if handles.is_full else 5
        for named in await race(handles.harness, "threads", list_or_come_and_go, 3, times):
            assert [key for key in named if key.endswith("-stays")] == stay


async def _race_to_create(handles: _Handles, kind: Any) -> None:
    times = 50 if handles.is_full else 8
    count = _A_FEW[handles.harness.tier]
    won = await race(handles.harness, kind, create_the_same_keys, count, times)
    winners = sorted(number for number, _ in won)
    assert winners == list(range(times)), "expected exactly one winner for each key"
    bucket = handles.open()
    for number, place in won:
        assert (await _there(bucket, f"race/{number}")).body == b"%d" % place


async def _race_to_count(handles: _Handles, kind: Any) -> None:
    times = 25 if handles.is_full else 5
    count = _A_FEW[handles.harness.tier]
    await race(handles.harness, kind, count_up, count, times)
    counts = json.loads((await _there(handles.open(), "counter")).body)
    assert counts == {str(place): times for place in range(count)}


def _is_unknown(answer: object) -> bool:
    """Whether the outcome is unknown, as may happen with a bucket under load."""
    return isinstance(answer, StorageError) and answer.outcome_unknown


async def _there(bucket: Bucket, key: str) -> Found:
    found = await bucket.get(key)
    assert found is not None, f"{key} is missing"
    return found


async def _put_all(bucket: Bucket, keys: list[str]) -> None:
    turns = asyncio.Semaphore(_AT_ONCE)

    async def put(key: str) -> None:
        async with turns:
            try:
                await bucket.put(key, b"1", expect=ABSENT)
            except StorageError as error:
                if not error.outcome_unknown:
                    raise
                # A busy server closed the connection, which is normal in a thousand puts.
                with suppress(CASConflictError):
                    await bucket.put(key, b"1", expect=ABSENT)

    await asyncio.gather(*(put(key) for key in keys))
