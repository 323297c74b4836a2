"""`verify` on a ledger: it finds each kind of damage, names the object, and cries no wolf."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import cache

import msgspec
import pytest

from casque import CorruptError, InvalidError, Queue
from casque.admin import Verification, verify
from casque.buckets import memory
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import ABSENT
from casque.rules.operations import Claimed
from casque.stores.ledger import entry, inventory, log, snapshot_listing
from casque.stores.ledger.log import number_in
from casque.stores.ledger.snapshot import decode_manifest, encode_manifest
from casque.system.clock import drive
from casque.testing import FakeClock
from tests.ledger.copies import (
    EVERY,
    Relayed,
    bucket_of,
    identity_of,
    objects,
    replace,
    store_on,
    worked_on,
)

ENTRIES = 3 * EVERY + 5


@cache
def ledger() -> dict[str, bytes]:
    clock = FakeClock(seed=99)
    bucket = MemoryBucket(clock)
    worked_on(store_on(bucket, clock), ENTRIES)
    return objects(bucket)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def bucket(clock: FakeClock) -> MemoryBucket:
    """A ledger of 35 entries, all of them there, with snapshots after each 10."""
    return bucket_of(ledger(), clock)


def verified(bucket: MemoryBucket, clock: FakeClock) -> Verification:
    return verify(store_on(bucket, clock))


def damage_in(bucket: MemoryBucket, clock: FakeClock) -> str:
    before = objects(bucket)
    with pytest.raises(CorruptError, match="What to do: docs/how-to/recover-a-damaged") as caught:
        verified(bucket, clock)
    assert objects(bucket) == before
    return str(caught.value)


def key(bucket: MemoryBucket, rest: str) -> str:
    return f"{identity_of(bucket)}/{rest}"


def log_key(bucket: MemoryBucket, number: int) -> str:
    return key(bucket, f"log/{number:020}")


def manifest_key(bucket: MemoryBucket, number: int) -> str:
    return key(bucket, f"snapshot/{number:020}")


def parts_of(bucket: MemoryBucket, number: int) -> list[str]:
    folder = key(bucket, f"part/{number:020}-")
    return [name for name in objects(bucket) if name.startswith(folder)]


def test_a_whole_ledger_is_replayed_from_its_first_entry(
    bucket: MemoryBucket, clock: FakeClock
) -> None:
    before, steps = objects(bucket), list[tuple[int, int]]()
    found = verify(store_on(bucket, clock), progress=lambda *step: steps.append(step))
    assert (found.entries, found.first_entry, found.snapshots) == (ENTRIES, 1, 3)
    state = drive(store_on(bucket, clock).stats(None))
    assert found.stats == state
    assert found.size_bytes == sum(map(len, before.values()))
    assert (found.strangers, found.left) == ((), ())
    assert objects(bucket) == before
    assert steps == sorted(steps)
    assert len(steps) == ENTRIES + 3
    assert steps[-1][0] <= steps[-1][1]


def test_it_sends_no_request_that_writes(bucket: MemoryBucket, clock: FakeClock) -> None:
    sent: list[str] = []
    verify(store_on(Relayed(bucket, sent.append), clock))
    assert {one.split()[0] for one in sent} == {"get", "list"}


def test_no_ledger_is_no_damage_and_none_is_created(clock: FakeClock) -> None:
    bucket = MemoryBucket(clock)
    with pytest.raises(InvalidError, match="there is no store at"):
        verified(bucket, clock)
    assert objects(bucket) == {}


def test_an_empty_ledger_is_whole(clock: FakeClock) -> None:
    bucket = MemoryBucket(clock)
    drive(store_on(bucket, clock).stats(None))
    q = Queue(store_on(bucket, clock))
    q.enqueue("e")
    drive(bucket.delete(log_key(bucket, 1)))
    found = verified(bucket, clock)
    assert (found.stats.total, found.entries, found.first_entry, found.snapshots) == (0, 0, 1, 0)


@pytest.mark.parametrize("number", [30, 31, 34])
def test_a_missing_entry_is_found(bucket: MemoryBucket, clock: FakeClock, number: int) -> None:
    drive(bucket.delete(log_key(bucket, number)))
    assert f"log/{number:020} is missing" in damage_in(bucket, clock)


@pytest.mark.parametrize(("number", "first"), [(1, 11), (15, 21), (29, 31)])
def test_an_entry_that_a_snapshot_replaces_may_be_missing(
    bucket: MemoryBucket, clock: FakeClock, number: int, first: int
) -> None:
    drive(bucket.delete(log_key(bucket, number)))
    assert verified(bucket, clock).first_entry == first


def test_a_backup_of_a_queue_that_was_shortened_meanwhile_is_whole(
    bucket: MemoryBucket, clock: FakeClock
) -> None:
    early = objects(bucket)
    shorten(bucket, clock)
    copy = bucket_of(early | objects(bucket), clock)
    assert verified(copy, clock).stats == verified(bucket, clock).stats


@pytest.mark.parametrize("number", [1, 10, 22, ENTRIES])
@pytest.mark.parametrize("place", [0, 5, 30, -1])
def test_a_changed_byte_in_an_entry_is_found(
    bucket: MemoryBucket, clock: FakeClock, number: int, place: int
) -> None:
    body = bytearray(objects(bucket)[log_key(bucket, number)])
    body[place] ^= 1
    replace(bucket, log_key(bucket, number), bytes(body))
    assert f"log/{number:020} cannot be read" in damage_in(bucket, clock)


def test_an_entry_of_another_log_is_found(bucket: MemoryBucket, clock: FakeClock) -> None:
    other = MemoryBucket(clock)
    worked_on(store_on(other, FakeClock(seed=1)), ENTRIES)
    replace(bucket, log_key(bucket, 12), objects(other)[log_key(other, 12)])
    assert "log/00000000000000000012 does not fit" in damage_in(bucket, clock)


def test_an_entry_whose_events_do_not_fit_is_found(bucket: MemoryBucket, clock: FakeClock) -> None:
    last = entry.decode(objects(bucket)[log_key(bucket, ENTRIES)], "")
    replace(
        bucket,
        log_key(bucket, ENTRIES),
        entry.encode(last._replace(events=[Claimed(("nobody",), "w", 2**52, 2**52)])),
    )
    assert f"log/{ENTRIES:020}: its events do not fit" in damage_in(bucket, clock)
    early = entry.encode(last._replace(time_us=1))
    replace(bucket, log_key(bucket, ENTRIES), early)
    assert "is dated before the entry before it" in damage_in(bucket, clock)


@pytest.mark.parametrize("number", [10, 20, 30])
def test_a_missing_part_is_found(bucket: MemoryBucket, clock: FakeClock, number: int) -> None:
    [part] = parts_of(bucket, number)
    drive(bucket.delete(part))
    assert f"{part} is missing" in damage_in(bucket, clock)


@pytest.mark.parametrize("place", [0, 100, -1])
def test_a_changed_byte_in_a_part_or_a_manifest_is_found(
    bucket: MemoryBucket, clock: FakeClock, place: int
) -> None:
    for name in (*parts_of(bucket, 20), manifest_key(bucket, 20)):
        whole = objects(bucket)[name]
        body = bytearray(whole)
        body[place] ^= 1
        replace(bucket, name, bytes(body))
        assert f"{name} cannot be read" in damage_in(bucket, clock)
        replace(bucket, name, whole)
    assert verified(bucket, clock).snapshots == 3


def test_a_part_of_another_snapshot_is_found(bucket: MemoryBucket, clock: FakeClock) -> None:
    [one], [other] = parts_of(bucket, 20), parts_of(bucket, 30)
    replace(bucket, one, objects(bucket)[other])
    assert f"{one} cannot be read: it is not the part" in damage_in(bucket, clock)


def test_a_manifest_of_another_snapshot_is_found(bucket: MemoryBucket, clock: FakeClock) -> None:
    replace(bucket, manifest_key(bucket, 20), objects(bucket)[manifest_key(bucket, 30)])
    assert f"{manifest_key(bucket, 20)} cannot be read: it is the manifest" in damage_in(
        bucket, clock
    )


@pytest.mark.parametrize("name", ["version", "token", "seq", "turn"])
@pytest.mark.parametrize("step", [-1_000, 1])
@pytest.mark.parametrize("number", [10, 30])
def test_a_manifest_whose_counters_are_wrong_is_found(
    bucket: MemoryBucket, clock: FakeClock, name: str, step: int, number: int
) -> None:
    where = manifest_key(bucket, number)
    manifest = decode_manifest(objects(bucket)[where], "")
    right = getattr(manifest.counters, name)
    counters = msgspec.structs.replace(manifest.counters, **{name: max(right + step, 0)})
    changed = msgspec.structs.replace(manifest, counters=counters)
    replace(bucket, where, encode_manifest(changed))
    found = damage_in(bucket, clock)
    assert re.search(rf"{where}(: its counters differ| is inconsistent)", found)


def test_a_manifest_that_counts_other_jobs_is_found(bucket: MemoryBucket, clock: FakeClock) -> None:
    where = manifest_key(bucket, 10)
    manifest = decode_manifest(objects(bucket)[where], "")
    counts = [manifest.counts[0] + 1, *manifest.counts[1:]]
    replace(bucket, where, encode_manifest(msgspec.structs.replace(manifest, counts=counts)))
    assert f"{where} is inconsistent: it does not have as many" in damage_in(bucket, clock)


def test_a_snapshot_of_another_ledger_is_found(bucket: MemoryBucket, clock: FakeClock) -> None:
    other = MemoryBucket(clock)
    worked_on(store_on(other, FakeClock(seed=1)), ENTRIES)
    for name in (*parts_of(other, 20), manifest_key(other, 20)):
        body = objects(other)[name]
        mine = name.replace(identity_of(other), identity_of(bucket))
        drive(bucket.delete(mine))
        drive(bucket.put(mine, body, expect=ABSENT))
    assert f"{manifest_key(bucket, 20)}: its " in damage_in(bucket, clock)


def test_a_missing_payload_is_found(bucket: MemoryBucket, clock: FakeClock) -> None:
    with Queue(store_on(bucket, clock)) as q:
        q.enqueue("e", b"x" * 10_000, id="large")
    [payload] = [name for name in objects(bucket) if "/payload/" in name]
    verified(bucket, clock)
    whole = objects(bucket)[payload]
    replace(bucket, payload, whole[:-1])
    assert f"{payload} is missing, or has another size" in damage_in(bucket, clock)
    drive(bucket.delete(payload))
    assert "it is the payload of job large" in damage_in(bucket, clock)


@pytest.mark.parametrize("at", range(1, 14))
def test_a_payload_whose_job_ends_meanwhile_is_no_damage(
    bucket: MemoryBucket, clock: FakeClock, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (memory, inventory, log, snapshot_listing):
        monkeypatch.setattr(module, "PAGE", EVERY)
    store, sent = store_on(bucket, clock), 0
    q = Queue(store)
    q.enqueue("large", b"x" * 10_000)
    [job] = q.dequeue("large")

    def before(_: str) -> None:
        nonlocal sent
        sent += 1
        if sent == at:
            q.ack(job)
            drive(store._payloads.finish(10))

    verify(store_on(Relayed(bucket, before), clock))


def test_the_mark_is_checked_too(bucket: MemoryBucket, clock: FakeClock) -> None:
    replace(bucket, "format", b"{}")
    with pytest.raises(CorruptError, match="format is not the mark of a casque queue"):
        verified(bucket, clock)
    drive(bucket.delete("format"))
    with pytest.raises(CorruptError, match="format is gone, though there is a log beside it"):
        verified(bucket, clock)


def test_objects_of_others_are_named_and_do_no_damage(
    bucket: MemoryBucket, clock: FakeClock
) -> None:
    names = ("README", key(bucket, "log/notes.txt"), key(bucket, "part/x"))
    for name in names:
        drive(bucket.put(name, b"mine", expect=ABSENT))
    left = "01234567-89ab-7def-8123-456789abcdef/"
    drive(bucket.put(f"{left}log/{1:020}", b"old", expect=ABSENT))
    drive(bucket.put(key(bucket, f"presence/worker-{'0' * 32}"), b"{", expect=ABSENT))
    found = verified(bucket, clock)
    assert sorted(found.strangers) == sorted(names)
    assert found.left == (left,)


# -- a log that was shortened --------------------------------------------------


def shorten(bucket: MemoryBucket, clock: FakeClock) -> None:
    """Let snapshots become old, and let another process delete what they replace."""
    store = store_on(bucket, clock)
    drive(store.picture())  # only a process with the state deletes
    clock.advance(timedelta(hours=3))
    worked_on(store, 2)


def test_a_shortened_ledger_is_replayed_from_the_snapshot_that_replaces_the_rest(
    bucket: MemoryBucket, clock: FakeClock
) -> None:
    shorten(bucket, clock)
    first = min(filter(None, map(number_in, objects(bucket))))
    assert first == 30
    found = verified(bucket, clock)
    assert (found.first_entry, found.snapshots) == (31, 2)
    assert found.entries == ENTRIES + 2 - 30
    last = log_key(bucket, 30)
    other = entry.decode(objects(bucket)[last], "")._replace(events=[])
    replace(bucket, last, entry.encode(other))
    assert f"{last} is not the entry that the snapshot" in damage_in(bucket, clock)
    drive(bucket.delete(last))
    assert f"{last} is missing" in damage_in(bucket, clock)


def test_what_an_interrupted_deletion_leaves_is_no_damage(
    bucket: MemoryBucket, clock: FakeClock
) -> None:
    clock.advance(timedelta(hours=3))
    for number in (1, 4, 7, 11, 29):
        drive(bucket.delete(log_key(bucket, number)))
    assert verified(bucket, clock).first_entry == 31


def test_the_older_snapshot_of_a_shortened_ledger_is_checked_by_itself(
    bucket: MemoryBucket, clock: FakeClock
) -> None:
    shorten(bucket, clock)
    [part] = parts_of(bucket, 20)
    drive(bucket.delete(part))
    assert f"{part} is missing" in damage_in(bucket, clock)


@pytest.mark.parametrize("at", range(1, 60, 4))
def test_deletion_by_another_process_meanwhile_is_no_damage(
    bucket: MemoryBucket, clock: FakeClock, at: int
) -> None:
    sent = 0

    def before(_: str) -> None:
        nonlocal sent
        sent += 1
        if sent == at:
            shorten(bucket, clock)

    found = verify(store_on(Relayed(bucket, before), clock))
    assert found.first_entry in (1, 31)
    assert found.snapshots in (2, 3)


@pytest.mark.parametrize("at", range(1, 12))
def test_a_snapshot_that_another_process_takes_meanwhile_is_no_damage(
    bucket: MemoryBucket, clock: FakeClock, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (
        memory,
        inventory,
        log,
        snapshot_listing,
    ):  # so that a list takes several requests
        monkeypatch.setattr(module, "PAGE", EVERY)
    other, sent = store_on(bucket, clock), 0
    drive(other.picture())

    def before(_: str) -> None:
        nonlocal sent
        sent += 1
        if sent == at:
            worked_on(other, EVERY)

    found = verify(store_on(Relayed(bucket, before), clock))
    assert found.entries is not None
    assert found.entries >= ENTRIES
    drive(other.picture())
    assert len([key for key in objects(bucket) if "/snapshot/" in key]) == 4


def test_entries_that_others_add_meanwhile_are_no_damage(
    bucket: MemoryBucket, clock: FakeClock
) -> None:
    busy = Queue(store_on(bucket, clock))
    sent = 0

    def before(_: str) -> None:
        nonlocal sent
        sent += 1
        if sent % 3 == 0:
            busy.enqueue("e")

    found = verify(store_on(Relayed(bucket, before), clock))
    assert found.entries is not None
    assert found.entries >= ENTRIES
