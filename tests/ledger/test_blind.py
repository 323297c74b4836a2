"""A producer that only adds jobs needs no other jobs, so it reads none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from casque import NewJob, Queue
from casque.stores.ledger.entry import decode
from casque.stores.ledger.log import key_of
from tests.ledger.places import Place, ServerPlace, filled, impatient, place_of
from tests.servers.client import GET, PUT

ENTRIES = 200


class Reads:
    count = 0


@contextmanager
def counted_reads(place: Place) -> Iterator[Reads]:
    """Count the log entries that are read meanwhile."""
    assert isinstance(place, ServerPlace)
    reads, before = Reads(), place.server.hits()
    place.server.delay(0, GET, match="/log/")
    yield reads
    reads.count = place.server.hits() - before
    place.server.clear()


def ids(queue: Queue) -> list[str]:
    return sorted(job.id for job in queue.read_state().jobs)


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_a_producer_reads_the_last_entry_alone_until_it_asks_for_more(place: Place) -> None:
    filled(place, ENTRIES).close()
    with Queue(place.url) as producer, Queue(place.url) as worker:
        with counted_reads(place) as reads:
            added = [producer.enqueue("e").id for _ in range(5)]
            added += [job.id for job in producer.enqueue_many([NewJob("e"), NewJob("f")])]
        assert reads.count == 2  # the last entry, for its time and digest; and the one after it

        with counted_reads(place) as reads:
            claimed = {job.id for job in worker.dequeue(batch_size=1_000)}
        assert reads.count >= ENTRIES
        assert claimed == set(added) | {f"j{number}" for number in range(1, ENTRIES + 1)}
        worker.ack_many(claimed - {"j1"})

        with counted_reads(place) as reads:
            assert producer.enqueue("e", id="j1").duplicate
        assert reads.count >= ENTRIES
        assert not producer.enqueue("e", id="j2").duplicate

        with counted_reads(place) as reads:
            producer.enqueue("e")
        assert reads.count == 0
        assert producer.stats().total == 3


def test_one_job_with_an_id_among_many_without_is_looked_up(place: Place) -> None:
    filled(place).close()
    with Queue(place.url) as producer:
        producer.enqueue("e")
        new, old = producer.enqueue_many([NewJob("e"), NewJob("e", id="j2")])
        assert (new.duplicate, old.duplicate) == (False, True)
        assert producer.stats().total == 6


def test_blind_producers_do_not_lose_each_others_jobs(place: Place) -> None:
    with Queue(place.url) as one, Queue(place.url) as two, Queue(place.url) as three:
        added = [
            producer.enqueue("e").id
            for turn in range(8)
            for producer in (one, two, three)[: 1 + turn % 3]
        ]
        assert ids(one) == ids(two) == sorted(added)
    # And each entry has the digest of the one before it, though its writer had not read the rest.
    bodies = [body for key, body in place.objects().items() if key.startswith("log/")]
    numbers = [decode(body, "").number for body in bodies]
    assert numbers == list(range(1, len(added) + 1))
    assert sorted(key_of(number) for number in numbers) == sorted(
        key for key in place.objects() if key.startswith("log/")
    )


def test_a_blind_producer_sees_all_jobs_at_its_first_read(place: Place) -> None:
    with Queue(place.url) as producer, Queue(place.url) as other:
        mine = producer.enqueue("e")
        theirs = other.enqueue("e")
        for job in (mine, theirs):
            found = producer.get(job.id)
            assert found is not None
            assert found.id == job.id
        assert {job.id for job in producer.dequeue(batch_size=9)} == {mine.id, theirs.id}
        assert other.dequeue() == []


# The last is the second answer to a request that the network delivers twice.
TROUBLES = ("replies lost", "500 once it is done", "requests dropped", "409", "412 once it is done")


@pytest.mark.parametrize("kind", ["s3", "gs"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_commit_whose_reply_was_lost_is_not_repeated_blindly(
    request: pytest.FixtureRequest, kind: str, trouble: str
) -> None:
    place = place_of(request, "s3" if kind == "s3" else "gs")
    assert isinstance(place, ServerPlace)
    server = place.server
    one, _ = impatient(place.url)
    two, _ = impatient(place.url)
    with one, two:
        expected = [one.enqueue("e").id, two.enqueue("e").id]
        before = server.hits()
        for seed in range(3):
            which = {"match": "/log/", "probability": 0.7, "seed": seed}
            match trouble:
                case "replies lost":
                    server.lose_replies(PUT, **which)
                case "requests dropped":
                    server.drop_requests(PUT, **which)
                case "409":
                    server.fail(409, PUT, code=None, carried_out=False, **which)
                case _:
                    status = int(trouble.partition(" ")[0])
                    server.fail(status, PUT, code=None, carried_out=True, **which)
            expected += [producer.enqueue("e").id for producer in (one, two, two, one)]
            server.clear()
        assert server.hits() > before
    with Queue(place.url) as fresh:
        assert ids(fresh) == sorted(expected)
