"""Servers that break a promise that a ledger needs: detected before a job is stored there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

import pytest

from casque import App, Queue, StorageError
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import ABSENT, Expect, Found, Listed, Version
from casque.errors import CASConflictError
from casque.stores.ledger.ledger_bucket import PROBES, split_key
from casque.stores.ledger.log import key_of
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import drive
from casque.testing import FakeClock
from casque.worker.options import WorkerOptions
from casque.worker.worker import Worker
from tests.ledger.places import ServerPlace, filled, place_of
from tests.ledger.refusals import USES, message, refused

STALE = timedelta(minutes=11)


class Elsewhere:
    """A bucket in memory, whose requests can run in parallel."""

    blocking = False

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.inner = MemoryBucket(clock)
        self.name = "elsewhere"
        self.asked: list[tuple[str, str]] = []

    def keys(self, prefix: str) -> list[str]:
        keys = [split_key(one.key)[1] for one in drive(self.inner.list())]
        return [key for key in keys if key.startswith(prefix)]

    async def get(self, key: str) -> Found | None:
        self.asked.append(("get", key))
        return await self.inner.get(key)

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        self.asked.append(("put", key))
        return await self.inner.put(key, body, expect=expect)

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        self.asked.append(("list", prefix))
        return await self.inner.list(prefix, after=after)

    async def delete(self, key: str) -> None:
        self.asked.append(("delete", key))
        await self.inner.delete(key)

    async def close(self) -> None:
        """Nothing to release."""


class ChecksThenWrites(Elsewhere):
    """Like moto: it honours conditions only for requests that come one after the other."""

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        found = await self.inner.get(key)
        if (ABSENT if found is None else found.version) != expect:
            raise CASConflictError("it is there")
        await asyncio.sleep(0)  # noqa: TID251 - lets the others check meanwhile
        await self.inner.delete(key)
        return await self.inner.put(key, body, expect=ABSENT)


class LosesSecondAnswer(ChecksThenWrites):
    """The same, but only the first winner gets a success."""

    def __init__(self) -> None:
        super().__init__()
        self._won: set[str] = set()

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        version = await super().put(key, body, expect=expect)
        if key in self._won:
            raise StorageError("no answer")
        self._won.add(key)
        return version


class Stalls(Elsewhere):
    """All racing creates but the first wait long, as on seaweedfs."""

    was_waited_for = False

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        if len([one for one in self.asked if one == ("put", key)]) > 3:
            await asyncio.sleep(5)  # noqa: TID251 - the caller gives up before
            self.was_waited_for = True
        return await super().put(key, body, expect=expect)


def racing_creates(bucket: Elsewhere) -> int:
    """Return how many creates of one object there were at most."""
    puts = [key for what, key in bucket.asked if what == "put" and key.startswith(PROBES)]
    return max(map(puts.count, puts))


def refused_by(bucket: Elsewhere) -> str:
    with Queue(bucket) as q, pytest.raises(StorageError) as caught:
        q.enqueue("e")
    assert not caught.value.outcome_unknown
    return message(caught.value)


# -- creates that race ---------------------------------------------------------


@pytest.mark.parametrize("kind", [ChecksThenWrites, LosesSecondAnswer])
def test_no_ledger_is_made_where_two_writers_can_create_one_object(
    kind: type[Elsewhere],
) -> None:
    bucket = kind()
    told = refused_by(bucket)
    assert "lets several writers create one object" in told
    assert "Nothing was overwritten" not in told
    assert bucket.keys("") == []


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_server_that_checks_and_then_writes_holds_no_ledger(
    request: pytest.FixtureRequest, kind: Literal["s3", "gs"]
) -> None:
    place = place_of(request, kind)
    assert isinstance(place, ServerPlace)
    place.server.check_then_write(0.02)
    with Queue(place.url) as q, pytest.raises(StorageError) as caught:
        q.enqueue("e")
    assert "lets several writers create one object" in message(caught.value)
    assert place.objects() == {}
    place.server.clear()
    with Queue(place.url) as q:
        assert q.enqueue("e").id


def test_creates_that_are_not_answered_do_not_count_once_one_has_won() -> None:
    bucket = Stalls()
    with Queue(bucket) as q:
        q.enqueue("e")
    assert racing_creates(bucket) > 3
    assert not bucket.was_waited_for


def test_creates_race_when_a_ledger_is_created_and_not_later() -> None:
    bucket = Elsewhere()
    with Queue(bucket) as q:
        q.enqueue("e")
    assert racing_creates(bucket) == 16
    bucket.asked.clear()
    with Queue(bucket) as q:
        q.enqueue("e")
        q.dequeue()
    assert racing_creates(bucket) <= 3


def test_a_worker_lets_creates_race_once_when_it_starts() -> None:
    bucket = Elsewhere()
    app = App(LedgerStore(bucket))

    @app.task
    def nothing() -> None:
        """Work."""

    app.queue.enqueue("other")
    for _ in range(3):
        nothing.enqueue()
    bucket.asked.clear()
    Worker(app, WorkerOptions(until_idle=True)).run()
    assert racing_creates(bucket) == 16
    assert app.queue.stats().completed == 3
    app.close()


def test_a_store_that_is_tried_out_again_where_two_creates_win_does_nothing_more() -> None:
    bucket = Elsewhere()
    with Queue(bucket) as q:
        q.enqueue("e")
    racy = ChecksThenWrites()
    racy.inner = bucket.inner
    store = LedgerStore(racy)
    with Queue(store) as q:
        q.enqueue("e")  # a producer runs no race
        store.try_out()
        for use in USES.values():
            with pytest.raises(StorageError, match="lets several writers"):
                use(q)
    assert len(bucket.keys("log/")) == 2


# -- lists ---------------------------------------------------------------------


class ShortLists(Elsewhere):
    """A bucket whose lists are empty if they begin after some key."""

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        return [] if after and self.is_broken(prefix) else await super().list(prefix, after=after)

    is_broken: Callable[[str], bool] = staticmethod(lambda prefix: True)


class ListsFromTheStart(Elsewhere):
    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        return await super().list(prefix)


@pytest.mark.parametrize("kind", [ShortLists, ListsFromTheStart])
def test_a_server_whose_lists_cannot_begin_in_the_middle_holds_no_ledger(
    kind: type[Elsewhere],
) -> None:
    good, bad = Elsewhere(), kind()
    with Queue(good) as q:
        for _ in range(5):
            q.enqueue("e")
    assert "lists its objects wrongly" in refused_by(bad)
    bad.inner = good.inner
    for use in USES.values():
        with Queue(bad) as q, pytest.raises(StorageError, match="lists its objects wrongly"):
            use(q)


def test_a_short_list_of_the_log_is_not_taken_for_the_queue() -> None:
    bucket = ShortLists()
    bucket.is_broken = lambda prefix: False
    with Queue(bucket) as q:
        for _ in range(5):
            q.enqueue("e")
    bucket.is_broken = lambda prefix: prefix.endswith("log/")
    for use in USES.values():
        with Queue(bucket) as q:
            assert key_of(1) in refused(q, use, StorageError)
    assert len(bucket.keys("log/")) == 5


def test_an_entry_that_was_written_while_the_list_was_made_is_no_gap() -> None:
    class Scans(Elsewhere):
        async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
            page = await super().list(prefix, after=after)
            return [one for one in page if one.key not in (key_of(3), key_of(4))]

    bucket = Scans()
    with Queue(bucket) as q:
        for _ in range(5):
            q.enqueue("e")
    with Queue(bucket) as seeing, Queue(bucket) as blind:
        assert seeing.stats().pending == 5
        blind.enqueue("e")
        assert seeing.stats().pending == 6


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_an_empty_404_is_not_taken_for_the_end_of_the_log(
    request: pytest.FixtureRequest, kind: Literal["s3", "gs"]
) -> None:
    place = place_of(request, kind)
    assert isinstance(place, ServerPlace)
    with filled(place) as q, Queue(place.url) as other:
        other.enqueue("e")
        place.server.fail(404, ["get"], code="", match="/log/")
        assert "Check the endpoint" in refused(q, USES["stats"], StorageError)
        place.server.clear()
        assert q.stats().pending == 5


# -- what killed processes leave -----------------------------------------------


@pytest.mark.parametrize("kind", ["elsewhere", "memory"])
def test_the_probes_of_killed_processes_are_collected(kind: str) -> None:
    clock = FakeClock()
    elsewhere = Elsewhere(clock)
    bucket = elsewhere if kind == "elsewhere" else elsewhere.inner

    def left() -> str:
        key = PROBES + clock.new_id()
        drive(bucket.put(key, b"", expect=ABSENT))
        return key

    old = {left() for _ in range(7)}
    clock.advance(STALE)
    young = {left() for _ in range(3)}
    with Queue(LedgerStore(bucket, clock)) as q:
        q.enqueue("e")
        q.enqueue("e")
    assert set(elsewhere.keys(PROBES)) == young
    assert not old & young


def test_a_process_that_may_not_delete_the_probes_of_others_continues() -> None:
    class Kept(Elsewhere):
        async def delete(self, key: str) -> None:
            if key == held:
                raise StorageError("403", outcome_unknown=False)
            await super().delete(key)

    clock = FakeClock()
    bucket, held = Kept(clock), PROBES + clock.new_id()
    drive(bucket.put(held, b"", expect=ABSENT))
    clock.advance(STALE)
    with Queue(LedgerStore(bucket, clock)) as q:
        q.enqueue("e")
    assert bucket.keys(PROBES) == [held]


def test_a_process_whose_probes_were_deleted_while_it_slept_tests_again() -> None:
    class Sleeps(Elsewhere):
        async def get(self, key: str) -> Found | None:
            probes = [one for one in self.keys(PROBES) if one != key]
            if len(probes) == 1 and not self.slept:
                self.slept = True
                clock.advance(STALE)
                for probe in self.keys(PROBES):
                    await self.inner.delete(probe)
            return await super().get(key)

        slept = False

    clock = FakeClock()
    bucket = Sleeps(clock)
    with Queue(LedgerStore(bucket, clock)) as q:
        q.enqueue("e")
    assert bucket.slept
    assert bucket.keys(PROBES) == []
