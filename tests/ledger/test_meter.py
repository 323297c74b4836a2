"""The meter: it counts every request that reaches the bucket, also those sent again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from casque import DirectQueue, Queue, StorageError, open_store
from casque.admin import requests
from casque.buckets.meter import Requests
from casque.buckets.port import PAGE
from casque.buckets.prices import PRICES
from casque.stores.ledger.ledger_bucket import LedgerBucket
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US
from casque.testing.simulation.clock import SimClock
from tests.ledger.places import Kind, ServerPlace, place_of
from tests.ledger.virtual import Distant, in_virtual_time
from tests.servers.client import GET, PUT, BucketServer
from tests.servers.fixtures import MakeBucket
from tests.servers.openers import BUCKET


def kinds(bucket: Distant) -> Counter[str]:
    """What the bucket was asked, by kind."""
    return Counter(asked.partition(" ")[0] for asked in bucket.asked)


def by_kind(sent: Requests) -> Counter[str]:
    return Counter({kind: getattr(sent, kind) for kind in ("put", "get", "list", "delete")})


async def work(store: LedgerStore) -> None:
    q = DirectQueue(store)
    await q.enqueue("e", b"payload")
    [job] = await q.dequeue("e")
    await q.ack(job)
    assert await q.get("none") is None


def counted(prepare: Callable[[Distant], None]) -> tuple[Requests, Counter[str]]:
    """Run a job to its end. Returns what the meter counted, and what the bucket was asked."""

    async def main(clock: SimClock) -> tuple[Requests, Counter[str]]:
        bucket = Distant(clock)
        store = LedgerStore(bucket, clock)
        prepare(bucket)
        await work(store)
        return store.requests, kinds(bucket)

    return in_virtual_time(main)


def test_every_kind_is_counted() -> None:
    sent, asked = counted(lambda _: None)
    assert by_kind(sent) == asked
    assert sent.total == asked.total()
    assert min(asked.values()) > 0
    assert 0 < sent.missing < sent.get
    assert sent.sent_bytes > 0
    assert sent.received_bytes > 0


def test_copies_of_slow_requests_are_counted() -> None:
    calm, _ = counted(lambda _: None)

    def hang(bucket: Distant) -> None:
        bucket.share = 0.3

    sent, asked = counted(hang)
    assert by_kind(sent) == asked
    assert sent.get > calm.get


def test_requests_that_get_no_answer_are_counted() -> None:
    async def main(clock: SimClock) -> tuple[Requests, Counter[str]]:
        bucket = Distant(clock)
        store = LedgerStore(bucket, clock)
        await work(store)
        before, bucket.is_hung = store.requests, True
        bucket.asked.clear()
        with pytest.raises(StorageError):
            await work(store)
        return store.requests - before, kinds(bucket)

    sent, asked = in_virtual_time(main)
    assert by_kind(sent) == asked
    assert sent.total > 1


def test_the_loser_of_a_race_pays_for_its_put_and_its_reads() -> None:
    async def main(clock: SimClock) -> tuple[Requests, Requests]:
        bucket = Distant(clock)
        stores = [LedgerStore(bucket, clock) for _ in range(2)]
        winner, loser = map(DirectQueue, stores)
        for q in (loser, winner):  # the winner is at the end of the log
            await q.enqueue("e")
            await q.get("none")
        before = [store.requests for store in stores]
        await winner.enqueue("e")
        await loser.enqueue("e")
        won, lost = (one.requests - old for one, old in zip(stores, before, strict=True))
        return won, lost

    won, lost = in_virtual_time(main)
    assert (won.put, lost.put) == (1, 2)
    assert lost.get > won.get


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_it_counts_what_a_server_receives(request: pytest.FixtureRequest, kind: Kind) -> None:
    place = place_of(request, kind)
    assert isinstance(place, ServerPlace)
    before, store = Counter(place.server.counts()), open_store(place.url)
    place.server.fail(503, PUT, match="/log/", times=1)
    place.server.fail(500, GET, match="/log/", skip=2, times=1)
    with Queue(store) as q:
        q.enqueue("e", id="a")
        place.server.lose_replies(PUT, match="/log/", times=1)
        [job] = q.dequeue("e")
        q.ack(job)
        place.server.drop_requests(GET, match="/log/", times=2)
        assert q.get("a") is None
        assert place.server.hits() >= 4
    sent = requests(store)
    assert sent is not None
    assert by_kind(sent) == Counter(place.server.counts()) - before


def test_a_page_of_a_list_is_one_request(s3: MakeBucket, bucket_server: BucketServer) -> None:
    bucket = s3()
    root = bucket.name.removeprefix(f"s3://{BUCKET}/")
    for number in range(PAGE + 1):
        bucket_server.write(BUCKET, f"{root}/log/{number:020}", b"")

    async def listed() -> list[int]:
        home = LedgerBucket(bucket)
        first = await home.list("log/")
        rest = await home.list("log/", after=first[-1].key)
        await home.close()
        return [len(first), len(rest), home.meter.list]

    before = Counter(bucket_server.counts())
    assert asyncio.run(listed()) == [PAGE, 1, 2]
    assert Counter(bucket_server.counts()) - before == {"list": 2}


def test_reading_the_meter_sends_nothing_and_a_close_does_not_reset_it() -> None:
    async def main(clock: SimClock) -> None:
        store = LedgerStore(Distant(clock), clock)
        await work(store)
        before = store.requests
        await store.close()
        await clock.sleep(SECOND_US, blocking=False)
        assert store.requests == before

    in_virtual_time(main)


def test_requests_add_up_and_subtract() -> None:
    one, more = Requests(1, 2, 1, 3, 4, 100, 50), Requests(10, 20, 2, 30, 40, 1_000, 500)
    assert one + more == Requests(11, 22, 3, 33, 44, 1_100, 550)
    assert one + more - one == more


@pytest.mark.parametrize(
    ("sent", "dollars"),
    [
        ({"put": 1_000_000}, {"s3": 5.0, "gs": 5.0, "az": 5.0}),
        ({"list": 1_000_000}, {"s3": 5.0, "gs": 5.0, "az": 5.0}),
        ({"get": 1_000_000}, {"s3": 0.4, "gs": 0.4, "az": 0.4}),
        ({"get": 1_000_000, "missing": 1_000_000}, {"s3": 0.4, "gs": 0.0, "az": 0.4}),
        ({"delete": 1_000_000}, {"s3": 0.0, "gs": 0.0, "az": 0.4}),
        ({"sent_bytes": 10**12, "received_bytes": 10**12}, {"s3": 0.0, "gs": 0.0, "az": 0.0}),
    ],
)
def test_each_kind_has_its_price(sent: dict[str, Any], dollars: dict[str, float]) -> None:
    priced = Requests(**sent)
    assert {name: pytest.approx(one.cost(priced)) for name, one in PRICES.items()} == dollars


def test_storage_is_priced_by_the_month() -> None:
    assert PRICES["s3"].storage_cost(10**9) == pytest.approx(0.023)
