"""A storage that refuses, stalls, loses replies or has a wrong clock: correct errors and recovery.

The tests run on our own bucket server with faults switched on, in the dialects of
S3 and of Google. They compare a queue's error about a change with what is stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import cycle
from typing import Any

import pytest

from casque import Queue, StorageError
from casque.stores.ledger import bucket_requests
from casque.stores.ledger.bucket_time import ASK_EVERY_US
from casque.stores.ledger.entry import decode
from casque.stores.ledger.log import key_of
from tests.ledger.places import ServerPlace, filled, impatient, place_of
from tests.ledger.refusals import BLIND, USES, WRITING, refused, refuses
from tests.servers.client import PUT
from tests.servers.switches import Condition, Verb

NEEDED: dict[str, dict[Verb, str]] = {
    "s3": {
        "get": "s3:GetObject.*s3:ListBucket",
        "put": "s3:PutObject",
        "list": "s3:ListBucket",
        "delete": "s3:DeleteObject",
    },
    "gs": {
        "get": "storage.objects.get.*storage.objects.list",
        "put": "storage.objects.create",
        "list": "storage.objects.list",
        "delete": "storage.objects.delete",
    },
}
VERBS: tuple[Verb, ...] = ("get", "put", "list", "delete")
HOUR = timedelta(hours=1)


@pytest.fixture(params=["s3", "gs"])
def place(request: pytest.FixtureRequest) -> ServerPlace:
    place = place_of(request, request.param)
    assert isinstance(place, ServerPlace)
    return place


def by_turns(name: str, cases: Iterable[Any]) -> pytest.MarkDecorator:
    """Run each case in the dialect of one cloud: the ledger treats both alike."""
    placed = list(zip(cycle(["s3", "gs"]), cases))
    return pytest.mark.parametrize(("place", name), placed, indirect=["place"])


def scheme(place: ServerPlace) -> str:
    return place.name.partition(":")[0]


def stored(place: ServerPlace) -> list[str]:
    """Return the ids of all jobs, as a new process sees them once the faults are off."""
    place.server.clear()
    with Queue(place.url) as q:
        return sorted(job.id for job in q.read_state().jobs)


# -- refusals ------------------------------------------------------------------


@pytest.mark.parametrize("name", USES)
def test_a_bucket_that_is_not_there_is_named(place: ServerPlace, name: str) -> None:
    missing = f"{scheme(place)}://nobody-made-it/q"
    with Queue(f"{missing}?endpoint={place.server.url}") as q:
        told = refused(q, USES[name], StorageError)
        assert re.search("NoSuchBucket. There is no such bucket: create it first", told)


def test_a_bucket_that_is_made_later_is_used_then(place: ServerPlace) -> None:
    bucket = f"made-later-{scheme(place)}"
    with Queue(f"{scheme(place)}://{bucket}/q?endpoint={place.server.url}") as q:
        refused(q, USES[BLIND], StorageError)
        place.server.make_bucket(bucket)
        q.enqueue("e")
        assert q.stats().total == 1


def test_bad_credentials_and_missing_permissions_have_different_errors(
    place: ServerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "refused")
    source = {"s3": "AWS_ACCESS_KEY_ID", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}[scheme(place)]
    refuses(place, f"The credentials are not accepted: set {source}", StorageError)
    assert place.objects() == {}


@pytest.mark.parametrize("verb", VERBS)
def test_a_permission_that_is_missing_at_first_use_is_named(place: ServerPlace, verb: Verb) -> None:
    place.server.fail(403, [verb])
    with Queue(place.url) as q:
        # A read creates no queue and needs only the time: there a probe may stay.
        for use in (WRITING if verb == "delete" else USES).values():
            told = refused(q, use, StorageError)
            assert re.search(f"403 AccessDenied. Allow {NEEDED[scheme(place)][verb]}", told)
        # A process that may not delete leaves its probes, and nothing else.
        assert all(verb == "delete" and key.startswith("probe/") for key in place.objects())
        place.server.clear()
        q.enqueue("e", id="new")
    assert stored(place) == ["new"]


def test_a_missing_object_that_is_answered_with_403_names_the_permission_to_list(
    place: ServerPlace,
) -> None:
    place.server.hide_missing()
    refuses(place, f"format: 403.*Allow {NEEDED[scheme(place)]['get']}", StorageError)
    place.server.clear()
    filled(place).close()
    place.server.hide_missing()
    # There is a mark now, but the probe that should be missing gets the 403.
    refuses(place, f"403.*Allow {NEEDED[scheme(place)]['get']}", StorageError)
    assert stored(place) == ["j1", "j2", "j3", "j4"]


# Which calls of an open queue need which permission: data in memory is not read again.
LATER: dict[Verb, set[str]] = {
    "get": {"stats"},
    "put": {BLIND, "enqueue of an id", "dequeue"},
    "list": set(),
    "delete": set(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_permission_that_is_removed_later_stops_only_calls_that_need_it(
    place: ServerPlace, verb: Verb
) -> None:
    with filled(place) as q:
        place.server.fail(403, [verb])
        for name, use in USES.items():
            if name in LATER[verb]:
                before = place.objects()
                told = refused(q, use, StorageError)
                assert re.search(f"403 AccessDenied. Allow {NEEDED[scheme(place)][verb]}", told)
                assert place.objects() == before
            else:
                use(q)
        place.server.clear()
        assert q.enqueue("e", id="new").duplicate == (verb != "put")
    assert len(stored(place)) == 5 + (verb != "put")


@pytest.mark.parametrize("verb", ["get", "list"])
def test_a_writer_without_read_permission_reports_an_unknown_outcome(
    place: ServerPlace, verb: Verb
) -> None:
    q, _ = impatient(place.url)
    with q, Queue(place.url) as other:
        q.enqueue("e", id="a")
        other.enqueue("e", id="b")
        place.server.fail(403, [verb])
        if verb == "get":
            # The storage says that the entry exists. It can be ours, sent twice by the network.
            told = refused(q, lambda q: q.enqueue("e", id="c"), StorageError, unknown=True)
            assert f"{key_of(2)}: outcome unknown" in told
            assert re.search(f"403.*Allow {NEEDED[scheme(place)][verb]}", told)
            place.server.clear()
            assert not q.enqueue("e", id="c").duplicate
        else:
            q.enqueue("e", id="c")
    assert stored(place) == ["a", "b", "c"]


# -- conditions ----------------------------------------------------------------


@pytest.mark.parametrize("only", [None, "create", "update"])
def test_a_storage_that_ignores_conditions_holds_no_queue(
    place: ServerPlace, only: Condition | None
) -> None:
    how = "updated despite a wrong version" if only == "update" else "created twice"
    place.server.ignore_conditions(only=only)
    says = f"ignores conditional writes.*{how}.*honours If-None-Match"
    refuses(place, says, StorageError, uses=WRITING.values())
    assert place.objects() == {}
    with Queue(place.url) as q:
        refused(q, USES[BLIND], StorageError)
        place.server.clear()
        q.enqueue("e", id="new")
    place.server.ignore_conditions(only=only)
    refuses(place, "ignores conditional writes", StorageError)
    assert stored(place) == ["new"]


# -- no answer -----------------------------------------------------------------

TROUBLES: dict[str, Callable[[ServerPlace, dict[str, Any]], None]] = {
    "409": lambda place, which: place.server.fail(409, **which),
    "429": lambda place, which: place.server.fail(429, **which),
    "500": lambda place, which: place.server.fail(500, **which),
    "503": lambda place, which: place.server.fail(503, **which),
    "500 once it is done": lambda place, which: place.server.fail(500, carried_out=True, **which),
    "requests dropped": lambda place, which: place.server.drop_requests(**which),
    "replies lost": lambda place, which: place.server.lose_replies(**which),
}


@by_turns("trouble", TROUBLES)
def test_faults_that_end_within_the_deadline_are_not_noticed(
    place: ServerPlace, trouble: str
) -> None:
    q, _ = impatient(place.url)
    with q:
        TROUBLES[trouble](place, {"times": 9})
        q.enqueue("e", id="first")  # creates the ledger during the faults
        before = place.server.hits()
        for number in range(3):
            TROUBLES[trouble](place, {"times": 9})
            assert not q.enqueue("e", id=f"j{number}").duplicate
            q.stats()
            [job] = q.dequeue(id=f"j{number}")
            q.nack(job)
            place.server.clear()
        assert place.server.hits() > before
    assert stored(place) == ["first", "j0", "j1", "j2"]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_longer_faults_are_reported_with_what_is_known_of_the_outcome(
    place: ServerPlace, trouble: str
) -> None:
    q, _ = impatient(place.url)
    with q:
        TROUBLES[trouble](place, {})
        told = refused(q, USES[BLIND], StorageError)
        assert re.search(r"cannot read format: .*, for 30 s\. Nothing was written; try again", told)
        place.server.clear()
        assert place.objects() == {}

        q.enqueue("e", id="first")
        TROUBLES[trouble](place, {})
        told = refused(q, lambda q: q.enqueue("e", id="a"), StorageError, unknown=True)
        assert re.search(rf"{key_of(2)}: outcome unknown.*Look the jobs up by id", told)
        assert "Nothing was written" not in told
        assert "for 30 s. Nothing was" in refused(q, USES["stats"], StorageError)
        place.server.clear()
        place.shift_clock(120)  # the pauses advanced only the queue's clock
        # As the message says: look the job up by its id, or add it.
        landed = key_of(2) in place.objects()
        assert q.enqueue("e", id="a").duplicate == landed
        assert landed == (trouble in ("500 once it is done", "replies lost"))
    assert stored(place) == ["a", "first"]


@by_turns("lost", range(1, 8))
def test_lost_replies_to_puts_of_the_log_neither_lose_nor_double_a_job(
    place: ServerPlace, lost: int
) -> None:
    q, _ = impatient(place.url)
    with q:
        place.server.lose_replies(PUT, match="/log/", probability=lost / 8, seed=lost)
        ids = {q.enqueue("e", b"%d" % number).id for number in range(12)}
        done = [job.id for job in q.dequeue(batch_size=5)]
        q.ack_many(done)
        assert place.server.hits()
    assert set(stored(place)) == ids - set(done)


def test_a_storage_that_stalls_is_asked_again(
    place: ServerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, _ = impatient(place.url)
    with q:
        q.enqueue("e", id="first")
        with monkeypatch.context() as patch:
            patch.setattr(bucket_requests, "REQUEST_SECONDS", 0.2)
            for number, verb in enumerate(VERBS):
                place.server.delay(0.5, [verb], times=1)
                q.enqueue("e", id=f"j{number}")
                q.stats()
    assert stored(place) == ["first", "j0", "j1", "j2", "j3"]


def test_a_storage_that_stalls_permanently_is_reported(
    place: ServerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, _ = impatient(place.url)
    with q:
        q.enqueue("e", id="first")
        q.stats()
        monkeypatch.setattr(bucket_requests, "REQUEST_SECONDS", 0.01)
        place.server.delay(60)  # longer than this machine may stall
        told = refused(q, lambda q: q.enqueue("e", id="a"), StorageError, unknown=True)
        assert re.search(r"outcome unknown.*\(.*no answer within 0.01 s\)", told)
        told = refused(q, USES["stats"], StorageError)
        assert "no answer within 0.01 s, for 30 s. Nothing was written" in told


# -- clocks --------------------------------------------------------------------


def test_a_storage_whose_clock_was_set_back_is_reported_until_it_catches_up(
    place: ServerPlace,
) -> None:
    q, clock = impatient(place.url)
    with q, Queue(place.url) as fresh:
        q.enqueue("e", id="before")
        place.shift_clock(-3600)
        says = rf"{key_of(1)} is dated 3[56]\d\d s after the storage's own clock.*Nothing was wri"
        refuses(place, says, StorageError, [WRITING["enqueue of an id"], WRITING["dequeue"]])
        assert fresh.stats().total == 1
        q.enqueue("e", id="meanwhile")  # it had asked for the time while that was right
        clock.advance(timedelta(microseconds=ASK_EVERY_US + 1))
        assert "set back" in refused(q, USES["dequeue"], StorageError)
        assert q.stats().total == 2
        place.shift_clock(3600 + 700)
        q.enqueue("e", id="after")
        assert fresh.stats().total == 3
    assert stored(place) == ["after", "before", "meanwhile"]


def test_a_process_whose_clock_runs_ahead_is_named_to_the_others(place: ServerPlace) -> None:
    ahead, clock = impatient(place.url)
    with ahead, Queue(place.url) as q:
        ahead.enqueue("e", id="first")
        assert q.stats().total == 1
        clock.advance(timedelta(minutes=2))
        ahead.enqueue("e", id="from the future")
        assert q.stats().total == 2
        told = refused(q, USES["dequeue"], StorageError)
        writer = decode(place.objects()[key_of(2)], "").stamps[0].writer
        assert re.search(rf"{key_of(2)} is dated 1[12]\d s after.*ahead \(writer {writer}\)", told)
        refuses(place, "runs ahead", StorageError, WRITING.values())
        place.shift_clock(125)
        assert q.stats().total == 2
    assert stored(place) == ["first", "from the future"]


def test_a_clock_may_be_a_minute_ahead(place: ServerPlace) -> None:
    ahead, clock = impatient(place.url)
    with ahead:
        ahead.enqueue("e", id="first")
        clock.advance(timedelta(seconds=50))
        ahead.enqueue("e", id="second")
    assert stored(place) == ["first", "second"]
