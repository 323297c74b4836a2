"""Idle workers on a bucket send few requests, and still find a job within 2 s.

The tests run a worker's store thread, which makes all of its requests, on virtual time.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

from casque import App, BrokerQueue, Queue
from casque.buckets.folder import FolderBucket
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Bucket, Expect, Found, Listed, Version
from casque.queues.session import Session
from casque.record import DISMISSAL, WORKER
from casque.rules.operations import Ack
from casque.stores.ledger.ledger_bucket import split_key
from casque.stores.ledger.log import FOLDER as LOG
from casque.stores.ledger.polling import IDLE_SHARE, QUICK_LOCAL_US, QUICK_US, SLOWEST_US
from casque.stores.ledger.presence import PRESENCE_US
from casque.stores.ledger.store import LedgerStore
from casque.stores.url import open_store
from casque.system.clock import MINUTE_US, SECOND_US, to_us
from casque.testing import FakeClock
from casque.testing.batches import commit_batch
from casque.testing.simulation.clock import SimClock
from casque.worker.attempt import Returned
from casque.worker.logging.events import Report
from casque.worker.messages import Committed, Dismissed, Message, Settlement
from casque.worker.options import WorkerOptions
from casque.worker.registry.entries import (
    OwnEntry,
    WorkerEntry,
    dismissal,
    presence_us_of,
    supervisor_entry,
    worker_entries,
)
from casque.worker.schedule_ticks import NO_APP, ScheduleTicks
from casque.worker.store_thread import StoreThread
from casque.worker.supervision.registration import Registration
from tests.ledger.virtual import Distant, in_virtual_time
from tests.worker.apps import wait_for

REQUESTS_PER_SECOND = 0.7
FOUND_WITHIN_US = 2 * SECOND_US
IDLE_MINUTES = 10
WORKERS = 10
JOBS = 40


class Counted:
    """A bucket that counts the requests of one process by method and folder."""

    blocking = False

    def __init__(self, bucket: Bucket) -> None:
        self.name, self._bucket = bucket.name, bucket
        self.requests = Counter[str]()
        self.close = bucket.close

    async def get(self, key: str) -> Found | None:
        self._count("GET", key)
        return await self._bucket.get(key)

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        self._count("PUT", key)
        return await self._bucket.put(key, body, expect=expect)

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        self._count("LIST", prefix)
        return await self._bucket.list(prefix, after=after)

    async def delete(self, key: str) -> None:
        self._count("DELETE", key)
        await self._bucket.delete(key)

    def _count(self, method: str, key: str) -> None:
        self.requests[f"{method} {split_key(key)[1].partition('/')[0]}"] += 1


class Idler:
    """The store thread of one worker, as a task, on its own connection to the ledger."""

    def __init__(
        self,
        bucket: Distant,
        clock: SimClock,
        name: str = "w",
        *,
        poll_us: int | None = None,
        works: bool = True,
    ) -> None:
        """Unless `works`, it keeps the jobs that it claims."""
        self.bucket = Counted(bucket)
        self.store = LedgerStore(self.bucket, clock, poll_us=poll_us)
        self.found: dict[str, int] = {}
        """When each job was claimed, by id."""
        self.is_dismissed = False
        self._clock = clock
        self._works = works
        app = App("memory://")

        @app.task
        def task() -> None: ...

        options = WorkerOptions()
        session = Session(self.store, owner="Worker", worker=name)
        self.thread = StoreThread(
            session,
            options,
            app.tasks,
            OwnEntry(name, options, ("task",), self.store),
            ScheduleTicks(session, {}, NO_APP, Report(name, clock)),
            report=Report(name, clock),
            post=self._post,
        )
        self.task = asyncio.ensure_future(self.thread._work())

    def _post(self, message: Message) -> None:
        self.is_dismissed |= isinstance(message, Dismissed)
        if isinstance(message, Committed):
            for attempt in message.claimed:
                self.found[attempt.job.id] = self._clock.monotonic()
                if self._works:
                    done = Settlement(attempt, Returned(None), Ack(*attempt.hold))
                    self.thread.settle(done, frees=True)
            self.thread.taken()

    def asked(self) -> Counter[str]:
        """Count the requests since the last call, by kind."""
        counts, self.bucket.requests = self.bucket.requests, Counter()
        return counts

    async def end(self) -> None:
        self.thread.finish()
        await self.task


async def used(clock: SimClock) -> Distant:
    """Return a bucket with a ledger in which a job was worked."""
    bucket = Distant(clock)
    async with BrokerQueue(LedgerStore(bucket, clock)) as q:
        await q.enqueue("task")
        [job] = await q.dequeue()
        await q.ack(job)
    return bucket


def entries(bucket: Distant) -> list[str]:
    return [key for key in bucket._objects if split_key(key)[1].startswith(LOG)]


async def registered(store: LedgerStore) -> list[WorkerEntry]:
    return worker_entries(await store.records(WORKER))


def test_idle_workers_send_few_requests_and_write_no_entries() -> None:
    async def main(clock: SimClock) -> None:
        bucket = await used(clock)
        written = entries(bucket)
        workers = [Idler(bucket, clock, f"w{n}") for n in range(WORKERS)]
        await clock.sleep(MINUTE_US, blocking=False)
        for one in workers:
            one.asked()
        await clock.sleep(IDLE_MINUTES * MINUTE_US, blocking=False)
        for one in workers:
            asked = one.asked()
            assert asked.total() <= REQUESTS_PER_SECOND * IDLE_MINUTES * 60, asked
            assert asked["PUT presence"] == IDLE_MINUTES * MINUTE_US // PRESENCE_US
        assert entries(bucket) == written

    in_virtual_time(main)


def test_an_idle_worker_finds_a_job_within_two_seconds() -> None:
    async def main(clock: SimClock) -> None:
        bucket = await used(clock)
        worker = Idler(bucket, clock)
        waited: list[int] = []
        async with BrokerQueue(LedgerStore(bucket, clock)) as q:
            for number in range(JOBS):
                # At every moment between two checks of the worker.
                moment = number * SLOWEST_US // JOBS
                await clock.sleep(MINUTE_US + moment, blocking=False)
                job = await q.enqueue("task")
                stored = clock.monotonic()
                await clock.sleep(FOUND_WITHIN_US, blocking=False)
                waited.append(worker.found[job.id] - stored)
        assert max(waited) <= FOUND_WITHIN_US
        assert max(waited) - min(waited) > SLOWEST_US // 2, "these were different moments"

    in_virtual_time(main)


def test_a_worker_checks_more_often_while_the_log_grows() -> None:
    async def main(clock: SimClock) -> None:
        bucket = await used(clock)
        worker = Idler(bucket, clock)
        await clock.sleep(MINUTE_US, blocking=False)
        async with BrokerQueue(LedgerStore(bucket, clock)) as q:
            await q.enqueue("task")
            await clock.sleep(FOUND_WITHIN_US, blocking=False)
            worker.asked()
            await clock.sleep(IDLE_SHARE * QUICK_US // 2, blocking=False)
        trip_us = QUICK_US + bucket.trip_us
        assert worker.asked()["GET log"] >= IDLE_SHARE * QUICK_US // 2 // trip_us

    in_virtual_time(main)


@pytest.mark.parametrize(("poll", "most"), [(MINUTE_US, 0.15), (5 * SECOND_US, 0.35)])
def test_an_idle_worker_sends_fewer_requests_with_a_longer_poll(poll: int, most: float) -> None:
    async def main(clock: SimClock) -> None:
        bucket = await used(clock)
        worker = Idler(bucket, clock, poll_us=poll)
        await clock.sleep(IDLE_SHARE * poll + MINUTE_US, blocking=False)
        worker.asked()
        await clock.sleep(IDLE_MINUTES * MINUTE_US, blocking=False)
        assert worker.asked().total() <= most * IDLE_MINUTES * 60
        async with BrokerQueue(LedgerStore(bucket, clock)) as q:
            job = await q.enqueue("task")
            await clock.sleep(poll + FOUND_WITHIN_US, blocking=False)
        assert job.id in worker.found

    in_virtual_time(main)


def test_an_idle_worker_obeys_an_order_at_its_next_check() -> None:
    async def main(clock: SimClock) -> None:
        bucket = await used(clock)
        worker, store = Idler(bucket, clock), LedgerStore(bucket, clock)
        await clock.sleep(MINUTE_US, blocking=False)
        [entry] = await registered(store)
        await commit_batch(store, "operator", 1, [dismissal(entry)])
        await clock.sleep(FOUND_WITHIN_US, blocking=False)
        assert worker.is_dismissed
        [entry] = await registered(store)
        assert entry.is_dismissed, "it is written at once"
        await worker.end()
        assert await registered(store) == []
        assert await store.records(DISMISSAL) == []

    in_virtual_time(main)


def test_the_entry_of_a_running_worker_is_never_older_than_readers_expect() -> None:
    async def main(clock: SimClock) -> None:
        bucket = await used(clock)
        worker, store = Idler(bucket, clock), LedgerStore(bucket, clock)
        await clock.sleep(SECOND_US, blocking=False)
        [entry] = await registered(store)
        oldest = 0
        for _ in range(IDLE_MINUTES * 6):
            await clock.sleep(10 * SECOND_US, blocking=False)
            [entry] = await registered(store)
            oldest = max(oldest, clock.now() - to_us(entry.beat_at))
        assert oldest < entry.fresh_us == 3 * MINUTE_US
        assert entry.ttl_us == 6 * MINUTE_US
        worker.task.cancel()  # as if it were killed
        await clock.sleep(entry.fresh_us, blocking=False)
        assert clock.now() - to_us(entry.beat_at) > entry.fresh_us
        await clock.sleep(entry.ttl_us - entry.fresh_us, blocking=False)
        assert await registered(store) == []

    in_virtual_time(main)


def test_a_worker_that_holds_a_job_renews_its_lease_more_often_than_its_entry() -> None:
    async def main(clock: SimClock) -> None:
        bucket = await used(clock)
        worker = Idler(bucket, clock, works=False)
        async with BrokerQueue(LedgerStore(bucket, clock)) as q:
            job = await q.enqueue("task")
            await clock.sleep(IDLE_MINUTES * MINUTE_US, blocking=False)
            found = await q.get(job.id)
        assert found is not None
        assert found.attempts == 1
        assert found.lease_until_us is not None
        assert found.lease_until_us > clock.now()
        renewals = worker.asked()["PUT presence"] - 1  # the first is at its start
        assert renewals == IDLE_MINUTES * MINUTE_US // PRESENCE_US

    in_virtual_time(main)


def test_a_worker_that_stops_writes_its_entry_at_once() -> None:
    async def main(clock: SimClock) -> None:
        bucket = await used(clock)
        worker, store = Idler(bucket, clock, works=False), LedgerStore(bucket, clock)
        async with BrokerQueue(LedgerStore(bucket, clock)) as q:
            job = await q.enqueue("task")
        await clock.sleep(MINUTE_US, blocking=False)
        worker.thread.stop_claiming()
        await clock.sleep(SECOND_US, blocking=False)
        [entry] = await registered(store)
        assert (entry.is_stopping, entry.running) == (True, (job.id,))

    in_virtual_time(main)


def test_a_supervisor_renews_its_entry_as_seldom_as_a_worker() -> None:
    clock = FakeClock()
    bucket = Counted(MemoryBucket(clock))
    store = LedgerStore(bucket, clock)
    entry = supervisor_entry(os.getpid(), WorkerOptions(), clock)
    registration = Registration(store, entry, lambda: None, lambda: None)
    try:
        wait_for("it has an entry", lambda: clock.sleepers)
        clock.advance(timedelta(seconds=119))
        assert clock.sleepers == bucket.requests["PUT presence"] == 1
        clock.advance(timedelta(seconds=1))
        wait_for("it is renewed", lambda: bucket.requests["PUT presence"] == 2)
    finally:
        registration.end()
    assert bucket.requests["DELETE presence"] == 1


def test_a_folder_is_checked_quickly_however_long_it_is_idle(tmp_path: Path) -> None:
    clock = FakeClock()
    store = LedgerStore(FolderBucket(tmp_path / "queue", clock), clock)
    Queue(store).enqueue("task")
    clock.advance(timedelta(hours=1))
    with store.listen(clock.bell(blocking=True)) as may_sleep:
        assert may_sleep() == QUICK_LOCAL_US
    assert presence_us_of(store) is None, "a write costs nothing there"


def test_the_longest_pause_is_the_one_in_the_address(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(f"file://{tmp_path}/queue?poll=20s", clock=clock)
    with Queue(store) as q, store.listen(clock.bell(blocking=True)) as may_sleep:
        q.enqueue("task")
        assert may_sleep() == QUICK_LOCAL_US
        clock.advance(timedelta(seconds=100))
        assert may_sleep() == 10 * SECOND_US
        clock.advance(timedelta(hours=1))
        assert may_sleep() == 20 * SECOND_US
