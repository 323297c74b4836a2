"""Records and locks: statements K1 to K4."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from casque.errors import CASConflictError
from casque.queues.lock import Lock
from casque.record import ABSENT, LOCK, WORKER, Record
from casque.rules.operations import DeleteRecord, Operation, PutRecord
from casque.stores.port import Store
from casque.stores.url import StoreAddress, open_store
from casque.system.clock import span_us
from casque.testing.batches import commit_batch
from casque.testing.relays import Gate, Outage
from casque.testing.rig import Rig, counted
from casque.testing.statement import Statements, statement
from casque.testing.suite.body import Body

KIND = "setting"
LEASE = timedelta(seconds=30)
HOUR = timedelta(hours=1)
NO_TIME = timedelta(0)


class RecordStatements(Statements):
    @statement("K1")
    async def test_when_eight_processes_create_a_record_exactly_one_succeeds(
        self, rig: Rig
    ) -> None:
        names = [f"r{n}" for n in range(5)]
        reports = await rig.in_processes(8, create, names)
        store = rig.harness.open()
        stored = {record.name: record for record in await store.records(KIND)}
        assert sorted(stored) == names
        for name in names:
            answers = {place: outcome[name] for place, outcome in reports}
            winners = [place for place, version in answers.items() if version is not None]
            assert len(answers) == 8
            assert [str(place).encode() for place in winners] == [stored[name].value]
            assert answers[winners[0]] == stored[name].version

    @statement("K1")
    async def test_an_existing_record_is_not_created_again(self, rig: Rig) -> None:
        a, b = Writer(rig.harness.open()), Writer(rig.harness.open())
        [first] = await a.commit(PutRecord(KIND, "r", b"a", ABSENT))
        with counted(rig.harness.writes) as grown:
            for writer in (a, b):
                [refusal] = await writer.commit(PutRecord(KIND, "r", b"again", ABSENT))
                assert isinstance(refusal, CASConflictError)
            assert grown() == 0
        assert await b.records() == [first]
        # A name is unique within its kind only.
        [other] = await b.commit(PutRecord("other", "r", b"b", ABSENT))
        assert await a.records("other") == [other]
        assert await a.records() == [first]

    @statement("K2")
    async def test_a_record_change_with_a_stale_version_is_refused(self, rig: Rig) -> None:
        a, b = Writer(rig.harness.open()), Writer(rig.harness.open())
        [first] = await a.commit(PutRecord(KIND, "r", b"1", ABSENT))
        [second] = await b.commit(PutRecord(KIND, "r", b"2", first.version))
        assert second.version > first.version
        for stale in (first.version, ABSENT, second.version + 1):
            for change in (PutRecord(KIND, "r", b"3", stale), DeleteRecord(KIND, "r", stale)):
                await refused(rig, a, change)
                await refused(rig, b, change)
        assert await a.records() == await b.records() == [second]
        [deleted] = await a.commit(DeleteRecord(KIND, "r", second.version))
        assert deleted is None
        assert await b.records() == []
        for change in (
            PutRecord(KIND, "r", b"3", second.version),
            DeleteRecord(KIND, "r", second.version),
        ):
            await refused(rig, b, change)
        [again] = await b.commit(PutRecord(KIND, "r", b"4", ABSENT))
        assert again.version > second.version
        await refused(rig, a, PutRecord(KIND, "r", b"5", first.version))
        assert rig.harness.raw().token >= again.version

    @statement("K2")
    async def test_a_record_change_without_a_version_always_succeeds(self, rig: Rig) -> None:
        a, b = Writer(rig.harness.open()), Writer(rig.harness.open())
        for kind in (KIND, WORKER):
            for value, writer in ((b"1", a), (b"2", a), (b"3", b)):
                [record] = await writer.commit(PutRecord(kind, "r", value, None, span_us(LEASE)))
                assert record.value == value
                assert await a.records(kind) == await b.records(kind) == [record]
            for _ in range(2):
                assert await a.commit(DeleteRecord(kind, "r", None)) == [None]
                assert await b.records(kind) == []

    @statement("K2")
    async def test_a_stale_change_fails_alone_in_its_batch(self, rig: Rig) -> None:
        a = Writer(rig.harness.open())
        [first] = await a.commit(PutRecord(KIND, "r", b"1", ABSENT))
        made, changed, stale = await a.commit(
            PutRecord(KIND, "s", b"", ABSENT),
            PutRecord(KIND, "r", b"2", first.version),
            PutRecord(KIND, "r", b"3", first.version),
        )
        assert isinstance(stale, CASConflictError)
        assert sorted(await a.records(), key=lambda one: one.name) == [changed, made]

    @statement("K3")
    async def test_a_record_is_gone_after_its_expiry(self, rig: Rig) -> None:
        a, b = Writer(rig.harness.open()), Writer(rig.harness.open())
        [stays] = await a.commit(PutRecord(KIND, "stays", b"", ABSENT))
        [first] = await a.commit(PutRecord(KIND, "r", b"1", ABSENT, span_us(LEASE)))
        rig.advance(seconds=20)
        [renewed] = await a.commit(PutRecord(KIND, "r", b"2", first.version, span_us(LEASE)))
        assert renewed.expires_us == rig.clock.now() + span_us(LEASE)
        rig.advance(seconds=30, milliseconds=-1)
        await b.records()  # B reads the newest state: a lost race would make time pass
        await refused(rig, b, PutRecord(KIND, "r", b"3", ABSENT))
        assert renewed in await b.records()
        with counted(rig.harness.writes) as grown:
            rig.advance(milliseconds=1)
            assert await a.records() == await b.records() == [stays]
            assert grown() == 0
        await refused(rig, a, PutRecord(KIND, "r", b"3", renewed.version))
        await refused(rig, a, DeleteRecord(KIND, "r", renewed.version))
        [again] = await b.commit(PutRecord(KIND, "r", b"3", ABSENT))
        assert again.version > renewed.version
        rig.advance(days=400)
        await b.commit(PutRecord(KIND, "later", b"", ABSENT))
        assert {record.name for record in await a.records()} == {"stays", "r", "later"}

    @statement("K4")
    async def test_a_lock_has_one_holder_at_a_time(self, rig: Rig) -> None:
        here, there = rig.harness.open(), rig.harness.open()
        for holder_on_thread in (False, True):
            async with Body(Lock(here, "l"), on_thread=holder_on_thread) as holder:
                for on_thread in (False, True):
                    with pytest.raises(CASConflictError, match="no slot came free"):
                        await taken(Lock(there, "l", timeout=NO_TIME), on_thread=on_thread)
                    await taken(Lock(there, "another", timeout=NO_TIME), on_thread=on_thread)
                await holder.finish()
            for on_thread in (False, True):
                await taken(Lock(there, "l", timeout=NO_TIME), on_thread=on_thread)
        assert await here.records(LOCK) == []

    @statement("K4")
    async def test_a_body_that_fails_releases_the_lock_and_keeps_its_error(self, rig: Rig) -> None:
        store = rig.harness.open()

        def fail() -> None:
            with Lock(store, "l"):
                raise KeyError

        with pytest.raises(KeyError):
            async with Lock(store, "l"):
                raise KeyError
        with pytest.raises(KeyError):
            await asyncio.to_thread(fail)
        await taken(Lock(store, "l", timeout=NO_TIME), on_thread=False)

    @statement("K4")
    async def test_waiting_for_a_lock_ends_at_the_timeout(self, rig: Rig) -> None:
        await Writer(rig.harness.open()).commit(held_by_the_dead("l", HOUR))
        start = rig.clock.monotonic()
        wait = taken(
            Lock(rig.harness.open(), "l", timeout=timedelta(seconds=5)), on_thread=is_sync(rig)
        )
        with pytest.raises(CASConflictError, match="no slot came free"):
            await to_the_end(rig, wait)
        waited = rig.clock.monotonic() - start
        assert span_us(timedelta(seconds=5)) <= waited < span_us(timedelta(seconds=6))

    @statement("K4")
    async def test_a_waiter_gets_the_lock_when_it_is_released(self, rig: Rig) -> None:
        for timeout in (timedelta(minutes=1), None):
            async with Body(
                Lock(rig.harness.open(), "l", lease=HOUR), on_thread=is_sync(rig)
            ) as holder:
                token = holder.context.token
                waiting = asyncio.create_task(
                    taken(Lock(rig.harness.open(), "l", timeout=timeout), on_thread=is_sync(rig))
                )
                rig.advance(seconds=1)
                done, _ = await asyncio.wait({waiting}, timeout=0.02)
                assert not done
                await holder.finish()
                step = timedelta(milliseconds=100)
                assert await rig.until_done(waiting, step=step) > token

    @statement("K4")
    async def test_a_lock_is_renewed_while_it_is_held(self, rig: Rig) -> None:
        here, there = rig.harness.open(), rig.harness.open()
        start = rig.clock.monotonic()
        async with Body(Lock(here, "l", lease=LEASE), on_thread=is_sync(rig)) as holder:
            token = holder.context.token
            for _ in range(15):
                [record] = await there.records(LOCK)
                await holder.beat(rig)
                assert rig.clock.now() < (record.expires_us or 0)
                with pytest.raises(CASConflictError):
                    await taken(Lock(there, "l", timeout=NO_TIME), on_thread=is_sync(rig))
            assert rig.clock.monotonic() - start > span_us(4 * LEASE)
            assert (holder.context.token, holder.context.lost) == (token, False)
            await holder.finish()
        assert await taken(Lock(there, "l", timeout=NO_TIME), on_thread=is_sync(rig)) > token

    @statement("K4")
    async def test_the_tokens_of_a_lock_only_rise(self, rig: Rig) -> None:
        stores = [rig.harness.open() for _ in range(3)]
        tokens = []
        for turn in range(6):
            lock = Lock(stores[turn % 3], "l", lease=LEASE, timeout=NO_TIME)
            async with Body(lock, on_thread=turn % 2 == 0) as holder:
                tokens.append(lock.token)
                if turn == 2:
                    for _ in range(4):  # renewals take numbers from the same counter
                        await holder.beat(rig)
                    assert lock.token == tokens[-1]
                [record] = await stores[0].records(LOCK)
                assert rig.harness.raw().token >= record.version >= lock.token
                await holder.finish()
        [dead] = await Writer(stores[0]).commit(held_by_the_dead("l", LEASE))
        rig.clock.advance(LEASE)
        tokens.append(dead.version)
        tokens.append(await taken(Lock(stores[1], "l", timeout=NO_TIME), on_thread=False))
        assert tokens == sorted(set(tokens))

    @statement("K4")
    async def test_the_lock_of_a_dead_holder_expires(self, rig: Rig) -> None:
        [dead] = await Writer(rig.harness.open()).commit(held_by_the_dead("l", LEASE))
        store = rig.harness.open()
        rig.clock.advance(LEASE - timedelta(seconds=1))
        with counted(rig.harness.writes) as grown:
            with pytest.raises(CASConflictError):
                await taken(Lock(store, "l", timeout=NO_TIME), on_thread=is_sync(rig))
            assert grown() == 0
        wait = taken(Lock(store, "l", timeout=timedelta(seconds=2)), on_thread=is_sync(rig))
        assert await to_the_end(rig, wait) > dead.version

    @statement("K4")
    async def test_a_lock_has_as_many_holders_as_it_has_slots(self, rig: Rig) -> None:
        stores = [rig.harness.open() for _ in range(4)]

        def lock(place: int) -> Lock:
            return Lock(stores[place], "l", slots=3, lease=LEASE, timeout=NO_TIME)

        holders = [Body(lock(place), on_thread=is_sync(rig)) for place in range(3)]
        async with holders[0], holders[1], holders[2]:
            tokens = [holder.context.token for holder in holders]
            assert len(set(tokens)) == 3
            with pytest.raises(CASConflictError):
                await taken(lock(3), on_thread=is_sync(rig))
            await holders[1].finish()
            async with Body(lock(3), on_thread=is_sync(rig)) as fourth:
                assert fourth.context.token > max(tokens)
                with pytest.raises(CASConflictError):
                    await taken(lock(1), on_thread=is_sync(rig))
        assert await stores[0].records(LOCK) == []

    @statement("K4")
    async def test_an_old_holder_neither_renews_nor_releases_a_lock_that_another_has(
        self, rig: Rig
    ) -> None:
        other = Writer(rig.harness.open())
        lock = Lock(rig.harness.open(), "l", lease=LEASE)
        async with Body(lock, on_thread=is_sync(rig)) as holder:
            token = lock.token
            [held] = await other.records(LOCK)
            _, now_held = await other.commit(
                DeleteRecord(LOCK, held.name, held.version),
                PutRecord(LOCK, held.name, b"other", ABSENT, span_us(HOUR)),
            )
            with counted(rig.harness.writes) as grown:
                await holder.until_lost(rig)
                assert grown() == 0
        assert now_held.version > token
        assert await other.records(LOCK) == [now_held]

    @statement("K4")
    async def test_a_holder_that_cannot_renew_its_lock_loses_it_when_the_lease_ends(
        self, rig: Rig
    ) -> None:
        store = Outage(rig.harness.open())
        start = rig.clock.monotonic()
        lock = Lock(store, "l", lease=LEASE, timeout=NO_TIME)
        async with Body(lock, on_thread=is_sync(rig)) as holder:
            store.unanswered = 1_000  # so many that the release is not answered either
            await holder.until_lost(rig)
        held = rig.clock.monotonic() - start
        assert span_us(LEASE) <= held <= span_us(LEASE * 4 / 3)
        await taken(Lock(rig.harness.open(), "l", timeout=NO_TIME), on_thread=is_sync(rig))

    @statement("K4")
    async def test_a_lock_released_during_its_renewal_is_free_at_once(self, rig: Rig) -> None:
        for is_stored in (False, True):
            store = Gate(rig.harness.open(), is_stored=is_stored)
            store.opened.set()
            async with Body(Lock(store, "l", lease=LEASE), on_thread=False) as holder:
                store.opened.clear()
                store.reached.clear()
                await holder.asleep(rig)
                rig.clock.advance(LEASE / 3)
                await rig.until_done(store.reached.wait())
                leaving = asyncio.create_task(holder.finish())
                await asyncio.wait({leaving}, timeout=0.02)
                store.opened.set()
                await rig.until_done(leaving)
            await taken(Lock(rig.harness.open(), "l", timeout=NO_TIME), on_thread=False)


class Writer:
    """A writer with its own name, which numbers its commits."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = store.clock.new_id()
        self._number = 0

    async def commit(self, *operations: Operation) -> list[Any]:
        self._number += 1
        return await commit_batch(self._store, self._name, self._number, operations)

    async def records(self, kind: str = KIND) -> list[Record]:
        return await self._store.records(kind)


async def refused(rig: Rig, writer: Writer, change: PutRecord | DeleteRecord) -> None:
    """The change is refused as a conflict, and nothing is written."""
    with counted(rig.harness.writes) as grown:
        [refusal] = await writer.commit(change)
        assert isinstance(refusal, CASConflictError)
        assert grown() == 0


def create(
    address: StoreAddress, report: Callable[[Any], None], place: int, names: list[str]
) -> None:
    """Create every record; report the versions of those that this process created.

    Run in eight processes at once.
    """
    asyncio.run(_create(open_store(address), report, place, names))


async def _create(
    store: Store, report: Callable[[Any], None], place: int, names: list[str]
) -> None:
    writer = Writer(store)
    await writer.commit(PutRecord("ready", str(place), b"", ABSENT))
    while len(await writer.records("ready")) < 8:  # so that all of them start together
        await store.clock.sleep(1_000, blocking=False)
    created: dict[str, int | None] = {}
    for name in names:
        [outcome] = await writer.commit(PutRecord(KIND, name, str(place).encode(), ABSENT))
        if isinstance(outcome, Record):
            created[name] = outcome.version
        else:
            assert isinstance(outcome, CASConflictError)
            created[name] = None
    report((place, created))


def held_by_the_dead(name: str, lease: timedelta) -> PutRecord:
    """The lock `name`, as left behind by a holder that died right after taking it."""
    return PutRecord(LOCK, f"0:{name}", b"dead", ABSENT, span_us(lease))


def is_sync(rig: Rig) -> bool:
    return rig.flavour == "queue"


async def taken(lock: Lock, *, on_thread: bool) -> int:
    """Take the lock and release it. Returns its token."""
    if on_thread:
        return await asyncio.to_thread(_taken, lock)
    async with lock:
        return lock.token


def _taken(lock: Lock) -> int:
    with lock:
        return lock.token


async def to_the_end(rig: Rig, work: Any) -> Any:
    """Await `work`; move the clock to the next sleeper's time whenever it waits."""
    task = asyncio.ensure_future(work)
    for _ in range(10_000):
        done, _ = await asyncio.wait({task}, timeout=0.001)
        if done:
            return task.result()
        rig.clock.advance_to_next()
    raise AssertionError("still waiting after 10,000 steps of the fake clock")
