"""Schedules: statements S1 to S5."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from casque.errors import CASConflictError
from casque.job import Job
from casque.record import ABSENT, DISMISSAL, SCHEDULE, Record
from casque.rules.decide import Leased
from casque.rules.operations import (
    Ack,
    Batch,
    DeleteRecord,
    Dequeue,
    Operation,
    PutRecord,
    Tick,
)
from casque.rules.views import JobFilter
from casque.schedule import Schedule, decode, encode
from casque.stores.port import Store
from casque.stores.url import StoreAddress, open_store
from casque.system.clock import MINUTE_US, span_us, to_datetime, to_us
from casque.tasks.schedules import changed, due_tick, readable, restarted, synchronised, tick_of
from casque.testing.rig import Rig, counted
from casque.testing.statement import Statements, statement
from casque.testing.suite.records import Writer

NAME = "report"
APP = "tasks:app"
HOUR_US = 60 * MINUTE_US
HOURLY = Schedule(entrypoint="report", line="@hourly", payload=b"p", retain_us=None)
TICKS = 12
RACERS = 5
ZONES = ("America/New_York", "Europe/Berlin")


class ScheduleStatements(Statements):
    @statement("S1", "S4", in_every_flavour=False)
    async def test_a_tick_adds_one_job_however_many_workers_offer_it(self, rig: Rig) -> None:
        store = rig.harness.open()
        first = replace(HOURLY, line="", every_us=MINUTE_US, since_us=MINUTE_US)
        await put(Writer(store), first)
        reports = await rig.in_processes(RACERS, race)
        won = [tick for ticks in reports for tick in ticks]
        expected = [n * MINUTE_US for n in range(2, TICKS + 2)]
        assert sorted(won) == expected
        [(record, after)] = readable(await store.records(SCHEDULE)).values()
        assert after.last_tick_us == after.since_us == expected[-1]
        # The winners have acked every other job at once: those are gone.
        left = [ticks_of(job) for job in await all_jobs(store)]
        assert left == [tick for tick in expected if tick % (2 * MINUTE_US)]
        assert rig.harness.raw().token >= record.version

    @statement("S1", in_every_flavour=False)
    async def test_a_tick_whose_job_is_gone_cannot_fire_again(self, rig: Rig) -> None:
        a, slow = Worker(rig), Worker(rig)
        await put(a.writer, replace(HOURLY, since_us=rig.clock.now()))
        rig.advance(hours=1)
        [late] = await slow.offers()
        assert len(await a.fire()) == 1
        [leased] = await a.writer.commit(Dequeue("a", HOUR_US))
        [job] = leased.jobs
        assert (job.entrypoint, job.payload) == (HOURLY.entrypoint, HOURLY.payload)
        assert job.headers == {
            "casque-schedule": NAME,
            "casque-tick": to_datetime(rig.clock.now()).isoformat(),
        }
        assert await a.writer.commit(Ack(job.id, job.token)) == [None]
        assert await all_jobs(a.store) == []
        await refused(rig, slow.writer, late)
        assert await slow.offers() == await a.offers() == []
        assert await all_jobs(a.store) == []

    @statement("S1", in_every_flavour=False)
    async def test_the_tick_and_its_job_appear_together(self, rig: Rig) -> None:
        a = Worker(rig)
        await put(a.writer, replace(HOURLY, since_us=rig.clock.now()))
        rig.advance(hours=1)
        [tick] = await a.offers()
        with counted(rig.harness.writes) as grown:
            [record, leased] = await a.writer.commit(tick, Dequeue("a", HOUR_US))
            assert grown() == 1
        assert isinstance(record, Record)
        assert isinstance(leased, Leased)
        schedule = decode(record)
        assert [job.id for job in leased.jobs] == [schedule.last_job]
        assert schedule.last_tick_us == rig.clock.now()
        assert list(rig.harness.raw().jobs) == [schedule.last_job]
        assert await a.store.records(SCHEDULE) == [record]

    @statement("S1", in_every_flavour=False)
    async def test_a_tick_in_the_future_of_the_store_is_refused(self, rig: Rig) -> None:
        a = Worker(rig)
        record = await put(a.writer, replace(HOURLY, since_us=rig.clock.now()))
        due = rig.clock.now() + HOUR_US
        early = tick_of(record, decode(record), due, rig.clock.mint)
        rig.advance(hours=1, milliseconds=-1)
        await a.store.records(SCHEDULE)
        await refused(rig, a.writer, early)
        rig.advance(milliseconds=1)
        [record] = await a.writer.commit(early)
        assert isinstance(record, Record)
        await refused(rig, a.writer, replace(early, expect=record.version))
        await refused(rig, a.writer, replace(early, name="nobody", expect=ABSENT))

    @statement("S2", in_every_flavour=False)
    async def test_a_daily_job_runs_once_when_the_clocks_change(self, rig: Rig) -> None:
        a, b = Worker(rig), Worker(rig)
        changes = clock_changes(to_datetime(rig.clock.now()))
        assert len(changes) == 4
        for day, zone in changes:
            begin = to_us(day - timedelta(hours=12))
            rig.clock.advance(timedelta(microseconds=begin - rig.clock.now()))
            for hour in (1, 2):
                daily = replace(HOURLY, line=f"30 {hour} * * *", tz=zone, since_us=begin)
                await put(a.writer, daily, f"{zone} {day} {hour}")
            fired: dict[str, list[int]] = {}
            for _ in range(60):
                rig.advance(hours=1)
                if to_datetime(rig.clock.now()).astimezone(ZoneInfo(zone)).hour not in (1, 2, 3):
                    continue
                for worker in (a, b):
                    for name, tick in await worker.fire():
                        fired.setdefault(name, []).append(tick)
            for hour in (1, 2):
                ticks = fired[f"{zone} {day} {hour}"]
                local = [to_datetime(tick).astimezone(ZoneInfo(zone)) for tick in ticks]
                days = [one.date() for one in local]
                assert days == [day.date() + timedelta(days=n) for n in range(len(days))]
                assert len(days) in (2, 3)
                for one in local:  # a time that the clock skips becomes the next that there is
                    assert (one.hour, one.minute) in ((hour, 30), (hour + 1, 0))
            for name in list(fired):
                await a.writer.commit(DeleteRecord(SCHEDULE, name, None))

    @statement("S3", in_every_flavour=False)
    async def test_missed_ticks_follow_the_policy(self, rig: Rig) -> None:
        a = Worker(rig)
        start = rig.clock.now()
        window = replace(HOURLY, catch_up="all", window_us=3 * HOUR_US, since_us=start)
        await put(a.writer, window, "all")
        await put(a.writer, replace(HOURLY, catch_up="one", since_us=start), "one")
        await put(a.writer, replace(HOURLY, catch_up="skip", since_us=start), "skip")
        rig.advance(hours=5, minutes=30)
        hours = [start + n * HOUR_US for n in range(8)]
        assert sorted(await a.fire()) == [
            *(("all", hours[n]) for n in (3, 4, 5)),
            ("one", hours[5]),
        ]
        assert await a.fire() == []
        rig.advance(minutes=30, seconds=9)  # late, but not missed
        assert sorted(await a.fire()) == [(name, hours[6]) for name in ("all", "one", "skip")]
        rig.advance(hours=1, seconds=2)
        assert sorted(await a.fire()) == [("all", hours[7]), ("one", hours[7])]
        assert len(await all_jobs(a.store)) == 9

    @statement("S3", in_every_flavour=False)
    async def test_a_tick_adds_no_job_while_the_last_one_is_open(self, rig: Rig) -> None:
        a = Worker(rig)
        await put(a.writer, replace(HOURLY, overlap="skip", since_us=rig.clock.now()))
        rig.advance(hours=1)
        assert len(await a.fire()) == 1
        [job] = await all_jobs(a.store)
        rig.advance(hours=1)
        assert len(await a.fire()) == 1  # queued
        [leased] = await a.writer.commit(Dequeue("a", 10 * HOUR_US))
        rig.advance(hours=1)
        assert len(await a.fire()) == 1  # in progress
        [(_, schedule)] = readable(await a.store.records(SCHEDULE)).values()
        assert schedule.skipped_us == schedule.last_tick_us == rig.clock.now()
        assert [one.id for one in await all_jobs(a.store)] == [job.id] == [schedule.last_job]
        # A run by hand that has ended does not hide the job of the tick.
        [(record, schedule)] = readable(await a.store.records(SCHEDULE)).values()
        by_hand = tick_of(record, schedule, None, rig.clock.mint)
        await a.writer.commit(by_hand)
        [other] = await a.writer.commit(Dequeue("a", 10 * HOUR_US))
        await a.writer.commit(Ack(by_hand.job.id, other.jobs[0].token))
        rig.advance(hours=1)
        assert len(await a.fire()) == 1
        assert [one.id for one in await all_jobs(a.store)] == [job.id]
        await a.writer.commit(Ack(job.id, leased.jobs[0].token))
        assert await a.fire() == []
        rig.advance(hours=1)
        assert len(await a.fire()) == 1
        [(_, schedule)] = readable(await a.store.records(SCHEDULE)).values()
        assert [one.id for one in await all_jobs(a.store)] == [schedule.last_job] != [job.id]

    @statement("S4", in_every_flavour=False)
    async def test_a_tick_survives_the_worker_that_was_about_to_fire_it(self, rig: Rig) -> None:
        a, b = Worker(rig), Worker(rig)
        await put(a.writer, replace(HOURLY, since_us=rig.clock.now()))
        rig.advance(hours=1)
        [decided] = await a.offers()  # and A is killed
        rig.advance(seconds=5)
        assert len(await b.fire()) == 1
        await refused(rig, a.writer, decided)
        assert len(await all_jobs(b.store)) == 1

    @statement("S4", in_every_flavour=False)
    async def test_a_repeated_tick_fires_once(self, rig: Rig) -> None:
        a = Worker(rig)
        await put(a.writer, replace(HOURLY, since_us=rig.clock.now()))
        for number, is_remote in enumerate((False, True), start=1):
            rig.advance(hours=1)
            [tick] = await a.offers()
            batch = Batch(f"sender {number}", 1, [tick], is_remote=is_remote)
            stores = [rig.harness.open() for _ in range(2)] if is_remote else [a.store] * 2
            answers = [await store.commit([batch]) for store in stores]
            assert answers[0] == answers[1]
            assert len(await all_jobs(a.store)) == number

    @statement("S5", in_every_flavour=False)
    async def test_a_change_of_the_code_fires_nothing_twice(self, rig: Rig) -> None:
        a, old = Worker(rig), Worker(rig)
        await a.deploy({NAME: HOURLY})
        rig.advance(hours=1)
        assert len(await a.fire()) == 1
        # The same code again changes nothing.
        with counted(rig.harness.writes) as grown:
            await a.deploy({NAME: HOURLY})
            assert grown() == 0
        # Another line that has the same tick: it holds from now on.
        await a.deploy({NAME: replace(HOURLY, line="*/30 * * * *")})
        assert await old.fire() == []
        rig.advance(minutes=30)
        # Another payload: a tick that was decided with the old one is refused.
        [stale] = await old.offers()
        half_hourly = replace(HOURLY, line="*/30 * * * *", payload=b"new")
        await a.deploy({NAME: half_hourly})
        await refused(rig, old.writer, stale)
        [stale] = await old.offers()
        assert stale.job.payload == b"new"
        # Renamed: the old one is stopped, and what was decided on it is refused.
        await a.deploy({"renamed": half_hourly})
        await refused(rig, old.writer, stale)
        stored = readable(await a.store.records(SCHEDULE))
        assert (stored[NAME][1].is_stopped, stored["renamed"][1].is_stopped) == (True, False)
        assert await a.fire() == []
        rig.advance(minutes=30)
        assert [name for name, _ in await a.fire()] == ["renamed"]
        # Back again: without the ticks of the meantime.
        rig.advance(hours=3, minutes=10)
        await a.deploy({NAME: HOURLY})
        assert await a.fire() == []
        rig.advance(minutes=50)
        assert [name for name, _ in await a.fire()] == [NAME]
        assert len(await all_jobs(a.store)) == 3

    @statement("S5", in_every_flavour=False)
    async def test_a_paused_or_removed_schedule_does_not_fire(self, rig: Rig) -> None:
        a, b = Worker(rig), Worker(rig)
        record = await put(a.writer, replace(HOURLY, since_us=rig.clock.now()))
        rig.advance(hours=1)
        [decided] = await b.offers()
        paused = replace(decode(record), is_paused=True)
        [record] = await a.writer.commit(replaced(record, paused))
        await refused(rig, b.writer, decided)
        await refused(rig, b.writer, replace(decided, expect=record.version))
        assert await b.fire() == []
        rig.advance(hours=2, minutes=1)
        resumed = replace(restarted(paused, rig.clock.now()), is_paused=False)
        [record] = await a.writer.commit(replaced(record, resumed))
        assert await b.fire() == []
        # An operator may run it at any time: that fires no tick.
        by_hand = tick_of(record, resumed, None, rig.clock.mint)
        [record] = await a.writer.commit(by_hand)
        after = decode(record)
        assert after == replace(resumed, last_job=by_hand.job.id)
        rig.advance(minutes=59)
        [decided] = await b.offers()
        await a.writer.commit(DeleteRecord(SCHEDULE, NAME, record.version))
        await refused(rig, b.writer, decided)
        assert await b.fire() == []
        assert [job.id for job in await all_jobs(a.store)] == [by_hand.job.id]

    @statement("S5", in_every_flavour=False)
    async def test_a_changed_schedule_or_an_order_rings_the_waiting_workers(self, rig: Rig) -> None:
        store = rig.harness.open()
        writer, bell = Writer(store), CountingBell()
        with store.listen(bell):
            record = await put(writer, HOURLY)
            assert bell.rings
            bell.rings = 0
            later = changed(decode(record), replace(HOURLY, line="@daily"), rig.clock.now())
            await writer.commit(replaced(record, later))
            assert bell.rings
            bell.rings = 0
            await writer.commit(DeleteRecord(SCHEDULE, NAME, None))
            assert bell.rings
            bell.rings = 0
            await writer.commit(PutRecord(DISMISSAL, "worker", b"", None, HOUR_US))
            assert bell.rings


def clock_changes(now: datetime) -> list[tuple[datetime, str]]:
    """The days in the next year on which the clocks change, both ways, in two time zones."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    days = [midnight + timedelta(days=n) for n in range(2, 367)]
    noon = timedelta(hours=12)
    return sorted(
        (day, zone)
        for zone in ZONES
        for day in days
        if (day - noon).astimezone(ZoneInfo(zone)).utcoffset()
        != (day + noon).astimezone(ZoneInfo(zone)).utcoffset()
    )


class CountingBell:
    """Counts its rings."""

    def __init__(self) -> None:
        self.rings = 0

    def ring(self) -> None:
        self.rings += 1

    async def wait(self, timeout_us: int | None) -> bool:
        raise AssertionError


class Worker:
    """Fires the schedules of a store, as a worker does."""

    def __init__(self, rig: Rig) -> None:
        """Opens a handle, at a whole hour."""
        rig.clock.advance(timedelta(microseconds=-rig.clock.now() % HOUR_US))
        self.clock = rig.clock
        self.store = rig.harness.open()
        self.writer = Writer(self.store)

    async def offers(self) -> list[Tick]:
        """The ticks that are due by now."""
        stored = readable(await self.store.records(SCHEDULE))
        found = (
            due_tick(record, schedule, self.clock.now(), self.clock.mint)
            for record, schedule in stored.values()
        )
        return [tick for tick in found if tick is not None]

    async def fire(self) -> list[tuple[str, int]]:
        """Fire until no tick is due. Returns those that succeeded."""
        fired: list[tuple[str, int]] = []
        while ticks := await self.offers():
            outcomes = await self.writer.commit(*ticks)
            for tick, outcome in zip(ticks, outcomes, strict=True):
                assert isinstance(outcome, Record), outcome
                assert tick.tick_us is not None
                fired.append((tick.name, tick.tick_us))
        return fired

    async def deploy(self, declared: dict[str, Schedule]) -> None:
        """Store what the code declares, as a worker does at its start."""
        records = await self.store.records(SCHEDULE)
        sync = synchronised(declared, records, APP, self.clock.now())
        if sync.puts:
            outcomes = await self.writer.commit(*sync.puts)
            assert all(isinstance(one, Record) for one in outcomes)


async def put(writer: Writer, schedule: Schedule, name: str = NAME) -> Record:
    [record] = await writer.commit(PutRecord(SCHEDULE, name, encode(schedule), ABSENT))
    assert isinstance(record, Record), record
    return record


def replaced(record: Record, schedule: Schedule) -> PutRecord:
    return PutRecord(SCHEDULE, record.name, encode(schedule), record.version)


async def refused(rig: Rig, writer: Writer, operation: Operation) -> None:
    with counted(rig.harness.writes) as grown:
        [refusal] = await writer.commit(operation)
        assert isinstance(refusal, CASConflictError)
        assert grown() == 0


async def all_jobs(store: Store) -> list[Job]:
    return await store.jobs(JobFilter(), limit=1_000)


def ticks_of(job: Job) -> int:
    return to_us(datetime.fromisoformat(job.headers["casque-tick"]))


def race(address: StoreAddress, report: Callable[[Any], None], place: int) -> None:
    """Offer each tick in turn; report those that this process fired. Run in five processes."""
    asyncio.run(_race(open_store(address), report, place))


async def _race(store: Store, report: Callable[[Any], None], place: int) -> None:
    writer = Writer(store)
    await writer.commit(PutRecord("ready", str(place), b"", ABSENT))
    while len(await writer.records("ready")) < RACERS:  # so that all of them start together
        await store.clock.sleep(1_000, blocking=False)
    won: list[int] = []
    while True:
        [(record, schedule)] = readable(await writer.records(SCHEDULE)).values()
        tick_us = schedule.since_us + MINUTE_US
        if tick_us > (TICKS + 1) * MINUTE_US:
            break
        tick = tick_of(record, schedule, tick_us, store.clock.mint)
        [outcome] = await writer.commit(tick)
        if not isinstance(outcome, Record):
            assert isinstance(outcome, CASConflictError)
            continue
        won.append(tick_us)
        if not tick_us % (2 * MINUTE_US):
            claim = Dequeue(str(place), span_us(timedelta(hours=1)), id=tick.job.id)
            [leased] = await writer.commit(claim)
            [job] = leased.jobs
            await writer.commit(Ack(job.id, job.token))
    report(won)
