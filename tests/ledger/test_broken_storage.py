"""A ledger with objects that are damaged, missing or of another program.

The tests change the storage directly. The error of a queue names the object and
the remedy, and no object is changed. After the remedy, the same queue objects
work again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest

from casque import CasqueError, CorruptError, InvalidError, Queue, StorageError
from casque.stores.ledger.log import key_of
from casque.stores.ledger.log_reader import CHECK_EVERY_US
from tests.ledger.places import (
    FolderPlace,
    Kind,
    Place,
    entry_of,
    filled,
    impatient,
    let_pass,
    mostly_in_a_folder,
    place_of,
)
from tests.ledger.refusals import BLIND, SEEING, USES, message, refused, refuses

KEPT = "Nothing was overwritten"
MARK = b'{"casque":"ledger","format":1}\n'
LONG_ENOUGH = timedelta(microseconds=CHECK_EVERY_US + 1)


def ids(queue: Queue) -> set[str]:
    return {job.id for job in queue.read_state().jobs}


def first(count: int) -> set[str]:
    """Return the ids of the jobs in the first entries."""
    return {f"j{number}" for number in range(1, count + 1)}


def goes_on(place: Place, queue: Queue, *known: str) -> None:
    """Check that this queue, a new one and a blind producer all work, on the same jobs."""
    with Queue(place.url) as producer, Queue(place.url) as fresh:
        added = {producer.enqueue("e").id, queue.enqueue("e").id}
        assert ids(fresh) == ids(queue) == added | set(known)


# -- somebody else's -----------------------------------------------------------

FOREIGN = (
    *("readme.txt", "formatted.txt", "format.json", "waiting.txt", "sub/format"),
    *("log/readme", "log/123", f"{key_of(1)}.bak", f"{key_of(1)}/x", key_of(0)),
    *("logs/1", "probe/notes", "probe/0198c0de", f"sub/{key_of(1)}"),
)


@mostly_in_a_folder("key", FOREIGN)
def test_a_place_with_files_of_another_program_does_not_become_a_queue(
    place: Place, key: str
) -> None:
    place.write(key, b"mine")
    says = rf"{key} is not ours.*Nothing was written.*empty"
    refuses(place, says, InvalidError, [USES[BLIND], USES["stats"]])
    with Queue(place.url) as q:
        refused(q, USES[BLIND], InvalidError)
        place.empty()
        q.enqueue("e", id="new")
        goes_on(place, q, "new")


def test_one_foreign_file_among_a_thousand_valid_names_is_found(place: Place) -> None:
    for number in range(1_000):
        place.write(f"probe/01a1deb3-c30b-711e-b925-{number:012}", b"")
    place.write("zebra", b"mine")
    refuses(place, "zebra is not ours", InvalidError, [USES[BLIND]])


def test_files_added_beside_a_queue_are_left_alone(place: Place) -> None:
    with filled(place) as q:
        for key in FOREIGN:
            if not key.endswith("/x"):  # in a folder an entry is a file
                place.write(key, b"mine")
        goes_on(place, q, *first(4))
    assert all(body == b"mine" for key, body in place.objects().items() if key in FOREIGN)


# -- damaged entries -----------------------------------------------------------


def flipped(body: bytes) -> bytes:
    place = len(body) // 2
    return body[:place] + bytes([body[place] ^ 0x04]) + body[place + 1 :]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut short": (lambda body: body[:-3], "cut short or changed"),
    "cut to nothing": (lambda body: b"", "not a casque log entry"),
    "another file": (lambda body: b'{"version": 1, "jobs": []}', "not a casque log entry"),
    "one bit changed": (flipped, "cut short or changed"),
    "longer": (lambda body: body + b"\0", "cut short or changed"),
    "of a newer version": (lambda body: body[:3] + b"\2" + body[4:], "newer casque.*Upgrade"),
}


@mostly_in_a_folder("name", DAMAGE)
def test_a_damaged_entry_is_reported_by_every_call_that_reads_it(place: Place, name: str) -> None:
    damage, says = DAMAGE[name]
    with filled(place) as q:
        for number, uses in ((2, SEEING), (4, USES)):
            body = entry_of(place, number)
            place.write(key_of(number), damage(body))
            refuses(place, f"{key_of(number)} .*{says}", uses=uses.values())
            place.write(key_of(number), body)
        goes_on(place, q, *first(4))


@mostly_in_a_folder("name", DAMAGE)
def test_jobs_added_behind_a_damaged_entry_are_there_once_it_is_restored(
    place: Place, name: str
) -> None:
    damage, _ = DAMAGE[name]
    with filled(place) as q, Queue(place.url) as producer:
        body = entry_of(place, 2)
        place.write(key_of(2), damage(body))
        q.enqueue("e", id="by one that has it in memory")
        [claimed] = q.dequeue(id="j1")
        blind = producer.enqueue("e").id
        place.write(key_of(2), body)
        q.ack(claimed)
        expected = (first(4) - {"j1"}) | {"by one that has it in memory", blind}
        assert ids(q) == expected
        goes_on(place, producer, *expected)


@pytest.mark.parametrize("name", sorted(set(DAMAGE) - {"one bit changed", "of a newer version"}))
def test_a_damaged_end_of_the_log_is_seen_before_something_is_written_after_it(
    request: pytest.FixtureRequest, name: str
) -> None:
    place = place_of(request, "folder")
    with filled(place) as q, Queue(place.url) as producer:
        producer.enqueue("e", id="p")
        body = entry_of(place, 5)
        place.write(key_of(5), DAMAGE[name][0](body))
        before = place.objects()
        for queue in (q, producer):
            for use in USES.values():
                assert key_of(5) in refused(queue, use)
        assert place.objects() == before
        place.write(key_of(5), body)
        goes_on(place, q, *first(4), "p")
        producer.enqueue("e")


# -- entries that do not follow each other -------------------------------------


def test_an_entry_of_another_queue_does_not_fit_in(
    place: Place, request: pytest.FixtureRequest
) -> None:
    other = place_of(request, "folder")
    with filled(place) as q, filled(other):
        for number in (1, 2, 4):
            body = entry_of(place, number)
            place.write(key_of(number), entry_of(other, number))
            # A first entry has nothing before it to fit, so the second entry shows the error.
            says = f"{key_of(max(number, 2))} does not fit.*restore both"
            refuses(place, says, uses=SEEING.values())
            place.write(key_of(number), body)
        goes_on(place, q, *first(4))


@pytest.mark.parametrize(("one", "other"), [(2, 3), (1, 4), (3, 4)])
def test_swapped_entries_are_reported(place: Place, one: int, other: int) -> None:
    with filled(place) as q:
        bodies = {number: entry_of(place, number) for number in (one, other)}
        place.write(key_of(one), bodies[other])
        place.write(key_of(other), bodies[one])
        refuses(place, f"{key_of(one)} does not fit", uses=SEEING.values())
        if other == 4:  # the only entry that a producer reads
            refuses(place, f"{key_of(4)} does not fit", uses=[USES[BLIND]])
        for number, body in bodies.items():
            place.write(key_of(number), body)
        goes_on(place, q, *first(4))


# -- entries that are gone -----------------------------------------------------


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_an_entry_missing_from_the_middle_is_reported(place: Place, gone: int) -> None:
    with filled(place) as q:
        body = entry_of(place, gone)
        place.remove(key_of(gone))
        refuses(place, f"{key_of(gone)} is missing.*expiry rule.*restore")
        before = place.objects()
        with Queue(place.url) as fresh:
            for use in (*USES.values(), *USES.values()):  # twice: the first read is remembered
                assert f"{key_of(gone)} is missing" in refused(fresh, use)
        assert place.objects() == before
        q.enqueue("e", id="while it is gone")
        place.write(key_of(gone), body)
        goes_on(place, q, *first(4), "while it is gone")


def test_a_process_that_has_read_an_entry_does_not_continue_without_it(place: Place) -> None:
    """It was acknowledged, and a new process cannot see that it ever existed."""
    filled(place).close()
    seeing, clock = impatient(place.url)
    blind, blind_clock = impatient(place.url)
    with seeing, blind:
        assert ids(seeing) == first(4)
        added = blind.enqueue("e").id
        assert added in ids(seeing)
        body = entry_of(place, 5)
        place.remove(key_of(5))
        let_pass(place, LONG_ENOUGH, clock, blind_clock)
        before = place.objects()
        for q in (seeing, blind):
            for use in (*USES.values(), *USES.values()):
                assert f"{key_of(5)} is missing" in refused(q, use)
        assert place.objects() == before
        with Queue(place.url) as fresh:
            fresh.enqueue("e", id="in its place")
        for q in (seeing, blind):
            assert f"{key_of(5)} is missing, or no longer" in refused(q, USES["stats"])
        place.write(key_of(5), body)
        goes_on(place, seeing, *first(4), added)
        blind.enqueue("e")


def test_a_producer_notices_at_its_first_read_that_its_last_entry_is_missing(place: Place) -> None:
    with Queue(place.url) as producer:
        for _ in range(3):
            producer.enqueue("e")
        place.remove(key_of(3))
        assert f"{key_of(3)} is missing" in refused(producer, USES["stats"])
        assert f"{key_of(3)} is missing" in refused(producer, USES[BLIND])


def test_a_command_that_only_reads_makes_no_queue(place: Place) -> None:
    with Queue(place.url) as q:
        assert q.stats().total == 0
        assert q.peek() == []
        assert q.queues() == []
        assert "format" not in place.objects()
        q.enqueue("e")
        assert "format" in place.objects()
        assert q.stats().total == 1


def test_a_process_whose_open_queue_was_removed_uses_no_other(place: Place) -> None:
    filled(place).close()
    seeing, clock = impatient(place.url)
    blind, blind_clock = impatient(place.url)
    idle, idle_clock = impatient(place.url)
    with seeing, blind, idle:
        assert ids(seeing) == first(4)
        blind.enqueue("e")
        idle.dequeue("nothing")
        place.empty()
        let_pass(place, LONG_ENOUGH, clock, blind_clock, idle_clock)
        for q in (seeing, blind, idle):
            gone = replaced(q, USES["stats"]), replaced(q, USES[BLIND])
            assert all(re.search("format is gone.*acknowledge nothing", told) for told in gone)
        with Queue(place.url) as fresh:
            fresh.enqueue("e", id="new")
            for q in (seeing, blind, idle):
                for use in USES.values():
                    assert "format belongs to another queue" in replaced(q, use)
            goes_on(place, fresh, "new")


def replaced(q: Queue, use: Callable[[Queue], object]) -> str:
    with pytest.raises(CorruptError) as caught:
        use(q)
    assert caught.value.is_replaced
    return message(caught.value)


def test_running_processes_notice_what_an_expiry_rule_deletes_first(
    place: Place,
) -> None:
    filled(place).close()
    q, clock = impatient(place.url)
    with q:
        assert ids(q) == first(4)
        bodies = {key: place.objects()[key] for key in ("format", key_of(1))}
        for key in bodies:
            place.remove(key)
        let_pass(place, LONG_ENOUGH, clock)
        before = place.objects()
        for use in USES.values():
            assert "format is gone" in replaced(q, use)
        # In a bucket the check runs in parallel with the write, and both end in the error.
        assert set(before) <= set(place.objects()) <= {*before, key_of(5)}
        place.write("format", bodies["format"])
        with Queue(place.url) as fresh:
            assert re.search(f"{key_of(1)} is missing", refused(fresh, USES["stats"]))
        place.write(key_of(1), bodies[key_of(1)])
        assert ids(q) >= first(4)


# -- the mark ------------------------------------------------------------------

MARKS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", f"not the mark.*{KEPT}.*it should read"),
    "bytes": (b"\0\xff" * 20, f"not the mark.*{KEPT}.*it should read"),
    "text": (b"TIFF\n", f"not the mark.*{KEPT}.*it should read"),
    "of another program": (b'{"name": "x"}', f"not the mark.*{KEPT}.*choose another prefix"),
    "cut short": (MARK[:12], f"not the mark.*{KEPT}.*it should read"),
    "of another kind": (
        b'{"casque": "document", "format": 1}',
        f"expected a ledger.*{KEPT}.*another",
    ),
    "of no version": (b'{"casque": "ledger", "format": 0}', f"expected a ledger.*{KEPT}"),
    "of a newer version": (b'{"casque": "ledger", "format": 2}', f"newer.*{KEPT}.*Upgrade casque"),
    "of another kind, newer": (b'{"casque": "x", "format": 9}', f"newer.*{KEPT}.*Upgrade casque"),
    "deep": (b"[" * 100_000, f"not the mark.*{KEPT}"),
}


@mostly_in_a_folder("name", MARKS)
def test_a_mark_that_is_not_ours_is_left_alone(place: Place, name: str) -> None:
    body, says = MARKS[name]
    place.write("format", body)
    refuses(place, f"format.*{says}", uses=[USES[BLIND]])
    place.remove("format")
    with filled(place):
        mark = place.objects()["format"]
    place.write("format", body)
    with Queue(place.url) as q:
        refuses(place, f"format.*{says}")
        refused(q, USES["stats"])
        place.write("format", mark)
        goes_on(place, q, *first(4))


def test_a_running_process_notices_a_newer_format(place: Place) -> None:
    filled(place).close()
    seeing, clock = impatient(place.url)
    blind, blind_clock = impatient(place.url)
    with seeing, blind:
        assert ids(seeing) == first(4)
        blind.enqueue("e")
        mark = place.objects()["format"]
        place.write("format", mark.replace(b'"format":1', b'"format":2'))
        let_pass(place, LONG_ENOUGH, clock, blind_clock)
        for q in (seeing, blind):
            for use in USES.values():
                assert re.search("format.*newer casque.*Upgrade casque", refused(q, use))
        place.write("format", mark)
        assert ids(seeing) >= first(4)
        blind.enqueue("e")


def test_a_mark_that_is_gone_is_put_back_by_hand_as_the_message_says(place: Place) -> None:
    with filled(place) as q, Queue(place.url) as fresh:
        place.remove("format")
        refuses(
            place, f"format is gone, though there is a log.*{KEPT}.*create it with this content"
        )
        told = refused(fresh, USES["stats"])
        place.write("format", told[told.index("{") :].encode())
        goes_on(place, fresh, *first(4))
        goes_on(place, q, *ids(fresh))


# -- folders -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder"])
@pytest.mark.parametrize(
    ("in_the_way", "says"),
    [
        ("", "A file is where a folder should be"),
        ("log", "log is not ours"),
        ("format/x", "format/x is not ours"),
    ],
)
def test_a_file_or_a_folder_in_the_way_is_left_alone(
    request: pytest.FixtureRequest, kind: Kind, in_the_way: str, says: str
) -> None:
    place = place_of(request, kind)
    assert isinstance(place, FolderPlace)
    path = place.path / in_the_way
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"mine")
    for use in USES.values():
        with Queue(place.url) as q:
            assert says in refused(q, use, CasqueError)
            assert path.read_bytes() == b"mine"
    with Queue(place.url) as q:
        refused(q, USES["stats"], CasqueError)
        path.unlink()
        if path.parent.name == "format":
            path.parent.rmdir()
        q.enqueue("e", id="new")
        goes_on(place, q, "new")


def test_a_folder_that_was_missing_for_a_while_works_again_when_it_is_back(
    request: pytest.FixtureRequest,
) -> None:
    place = place_of(request, "folder")
    assert isinstance(place, FolderPlace)
    with filled(place) as q:
        away = place.path.with_name("away")
        place.path.rename(away)
        place.path.write_bytes(b"")  # so that no process makes a new one there
        for use in USES.values():
            assert "A file is where a folder should be" in refused(q, use, StorageError)
        place.path.unlink()
        away.rename(place.path)
        goes_on(place, q, *first(4))
