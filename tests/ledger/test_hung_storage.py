"""Requests that hang: their cost, and when callers get an error, however many are ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from casque import BrokerQueue, DirectQueue, StorageError
from casque.buckets.port import Found
from casque.stores.ledger.log import key_of, number_in
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US
from casque.testing.simulation.clock import SimClock
from tests.ledger.virtual import Distant, in_virtual_time

ENTRIES = 2_000
BOUND_US = 31 * SECOND_US


async def fill(bucket: Distant, entries: int) -> None:
    trip, bucket.trip_us = bucket.trip_us, 0
    q = DirectQueue(LedgerStore(bucket, bucket.clock))
    for _ in range(entries):
        await q.enqueue("e")
    bucket.trip_us = trip


def test_one_request_in_a_hundred_that_hangs_costs_opening_little() -> None:
    async def main(clock: SimClock) -> tuple[int, int]:
        bucket = Distant(clock)
        await fill(bucket, ENTRIES)

        async def opening_takes() -> int:
            begun = clock.monotonic()
            assert (
                await DirectQueue(LedgerStore(bucket, clock)).stats("default")
            ).pending == ENTRIES
            return clock.monotonic() - begun

        clean = await opening_takes()
        bucket.share = 0.01
        return clean, await opening_takes()

    clean, hanging = in_virtual_time(main)
    assert hanging <= 3 * clean, (clean, hanging)


Call = Callable[[], Coroutine[Any, Any, Any]]


async def told_after(clock: SimClock, delay_us: int, call: Call) -> int:
    """Return how long a call took to raise the error that the storage does not answer."""
    await clock.sleep(delay_us, blocking=False)
    begun = clock.monotonic()
    with pytest.raises(StorageError):
        await call()
    return clock.monotonic() - begun


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
def test_every_caller_of_a_hung_storage_gets_its_error_in_time(
    kind: type[BrokerQueue | DirectQueue],
) -> None:
    async def main(clock: SimClock) -> list[int]:
        bucket = Distant(clock)
        store = LedgerStore(bucket, clock)
        async with kind(store) as q, kind(store) as other:
            await q.enqueue("e", id="1")
            await other.queues()
            bucket.is_hung = True
            calls: list[Call] = [
                lambda: q.enqueue("e"),
                lambda: q.get("1"),
                lambda: other.enqueue("e", id="2"),
                q.dequeue,
                other.stats,
                other.dequeue,
            ]
            told = [
                told_after(clock, number * 700_000, calls[number % len(calls)])
                for number in range(60)
            ]
            took = await asyncio.gather(*told)
            bucket.is_hung = False
            assert (await q.stats()).total == 1
            await q.enqueue("e")  # it works again without being reopened
        return took

    took = in_virtual_time(main)
    assert max(took) <= BOUND_US, [f"{one / SECOND_US:.1f}" for one in took]


def test_counts_that_are_read_without_the_jobs_wait_no_longer_than_other_calls() -> None:
    async def main(clock: SimClock) -> list[int]:
        bucket = Distant(clock)
        store = LedgerStore(bucket, clock)
        async with BrokerQueue(store) as q, DirectQueue(store) as other:
            await q.enqueue("e")
            bucket.is_hung = True
            told = [
                told_after(
                    clock, number * 700_000, (q.stats, lambda: other.enqueue("e"))[number % 2]
                )
                for number in range(40)
            ]
            return list(await asyncio.gather(*told))

    took = in_virtual_time(main)
    assert max(took) <= BOUND_US, [f"{one / SECOND_US:.1f}" for one in took]


def test_a_dequeue_that_waits_on_a_hung_storage_ends_in_time() -> None:
    wait = timedelta(seconds=2)

    async def main(clock: SimClock) -> list[int]:
        bucket = Distant(clock)
        async with BrokerQueue(LedgerStore(bucket, clock)) as q:
            await q.dequeue()
            first = asyncio.create_task(told_after(clock, 0, lambda: q.dequeue(wait=wait)))
            await clock.sleep(SECOND_US, blocking=False)
            bucket.is_hung = True
            behind = [
                told_after(clock, 900_000 * number, lambda: q.dequeue(wait=wait))
                for number in range(1, 20)
            ]
            return [await first, *await asyncio.gather(*behind)]

    took = in_virtual_time(main)
    assert max(took) <= 2 * SECOND_US + BOUND_US


def test_a_wall_clock_set_forward_gives_a_call_no_more_time() -> None:
    async def main(clock: SimClock) -> int:
        bucket = Distant(clock)
        q = DirectQueue(LedgerStore(bucket, clock))
        await q.enqueue("e")
        bucket.is_hung = True
        call = asyncio.create_task(told_after(clock, 0, lambda: q.enqueue("e")))
        await clock.sleep(SECOND_US, blocking=False)
        clock.skew_us += 3600 * SECOND_US
        return await call

    assert in_virtual_time(main) <= BOUND_US


def test_opening_a_hung_storage_is_given_up_in_time() -> None:
    async def main(clock: SimClock) -> list[int]:
        bucket = Distant(clock)
        await fill(bucket, 3)
        took = list[int]()
        for answered in range(4):

            async def open_it(answered: int = answered) -> None:
                store = LedgerStore(bucket, clock)
                opening = asyncio.create_task(DirectQueue(store).stats("default"))
                await clock.sleep(answered * bucket.trip_us, blocking=False)
                bucket.is_hung = True
                await opening

            took.append(await told_after(clock, 0, open_it))
            bucket.is_hung = False
        return took

    assert max(in_virtual_time(main)) <= BOUND_US + SECOND_US  # it began to hang within the first


@pytest.mark.parametrize("opens", ["look", "commit"])
def test_a_caller_behind_one_that_opens_a_long_log_waits_for_it(opens: str) -> None:
    async def main(clock: SimClock) -> int:
        bucket = Distant(clock)
        await fill(bucket, 400)
        bucket.trip_us = 4 * SECOND_US
        q = DirectQueue(LedgerStore(bucket, clock))
        other = DirectQueue(q.store)
        first = other.stats("default") if opens == "look" else other.dequeue()
        opening = asyncio.create_task(first)
        await clock.sleep(SECOND_US, blocking=False)
        begun = clock.monotonic()
        assert (await q.enqueue("e", id="1")).id == "1"
        assert await opening
        return clock.monotonic() - begun

    assert in_virtual_time(main) > BOUND_US


def test_the_next_entry_is_asked_for_as_soon_as_the_first_is_there() -> None:
    class FirstIsQuick(Distant):
        async def get(self, key: str) -> Found | None:
            self.trip_us = 10_000 if number_in(key) == 1 else 50_000
            return await super().get(key)

    async def main(clock: SimClock) -> list[str]:
        bucket = FirstIsQuick(clock)
        await fill(bucket, 40)
        bucket.asked.clear()
        opening = asyncio.create_task(DirectQueue(LedgerStore(bucket, clock)).stats("default"))
        while f"get {key_of(1)}" not in bucket.asked:
            await clock.sleep(1_000, blocking=False)
        await clock.sleep(20_000, blocking=False)
        asked = list(bucket.asked)
        assert (await opening).pending == 40
        return asked

    assert in_virtual_time(main)[-1] == f"get {key_of(33)}"


def test_a_put_that_hangs_is_never_sent_twice_at_once() -> None:
    async def main(clock: SimClock) -> list[str]:
        bucket = Distant(clock)
        q = DirectQueue(LedgerStore(bucket, clock))
        await q.enqueue("e")
        bucket.asked.clear()
        bucket.is_hung = True
        call = asyncio.create_task(q.enqueue("e"))
        await clock.sleep(9 * SECOND_US, blocking=False)
        bucket.is_hung = False
        sent = list(bucket.asked)
        await call
        return sent

    assert in_virtual_time(main) == [f"put {key_of(2)}"]
