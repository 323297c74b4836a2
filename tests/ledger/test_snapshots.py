"""Snapshots: their format, what they must hold, and how they are written beside the commits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casque.errors import CasqueError, CorruptError, StorageError
from casque.job import Attempt, Failure, Job, JobStatus
from casque.record import Record
from casque.rules.comparison import contents
from casque.rules.operations import Dequeue, PutRecord
from casque.rules.state import State, WriterRow
from casque.stores.ledger import snapshot
from casque.stores.ledger.snapshot import (
    Builder,
    Counters,
    Frozen,
    Manifest,
    Part,
    decode_manifest,
    encode_manifest,
    encode_parts,
)
from casque.stores.ledger.snapshot_writer import write_snapshot
from casque.system.clock import SECOND_US
from tests.ledger.shortened import LONG, UPKEEP, Objects, Stopping, both_kinds, run

GOLDEN = Path(__file__).parent / "golden"
ID = "018cc251-f400-7123-8abc-0123456789ab"
TIME = 1_704_067_200_000_000


def job(id: str, **more: Any) -> Job:
    values: dict[str, Any] = {
        "entrypoint": "send",
        "payload": b"\0\xff",
        "created_us": 1,
        "run_us": 2,
    } | more
    return Job(**{"id": id, "updated_us": 3, **values})


JOBS = [
    job(ID, seq=1),
    job(
        "held",
        seq=2,
        queue="q",
        status=JobStatus.IN_PROGRESS,
        attempts=1,
        token=TIME,
        worker="w",
        claimed_us=5,
        heartbeat_us=6,
        lease_until_us=TIME + 9,
        progress=0.5,
        note="half",
        output=b"o",
    ),
    job(
        "dead, ünïcode",
        seq=3,
        priority=-1,
        status=JobStatus.DEAD,
        attempts=2,
        max_attempts=2,
        error="no",
        result=b"r",
        history=(Attempt(2, "w", 5, 6, Failure("Boom", "text", "trace")),),
        depth=1,
        chain=("first",),
        header_pairs=(("a", "b"),),
        finished_us=6,
        expires_us=TIME + 9,
        retain_us=8,
        timeout_us=9,
    ),
]
FROZEN = Frozen(
    7,
    bytes(range(8)),
    TIME,
    Counters(7, TIME + 1, 3, 5),
    [1, 0, 1, 0, 0, 1, 0],
    JOBS,
    [snapshot._Line("default", "send", 4), snapshot._Line("q", "send", 5)],
    [(ID, WriterRow(4, TIME - 1, b"\x90")), ("another", WriterRow(1, TIME, b""))],
    [Record("lock", "name", b"\xff", 12, TIME + 7), Record("pause", "slow", b"", 13)],
)


def parts_of(frozen: Frozen) -> list[bytes]:
    return [content for content in encode_parts(frozen) if content is not None]


def built(manifest: Manifest, contents: list[bytes]) -> State:
    builder = Builder(manifest)
    for content in contents:
        builder.add(content, "part/1")
    return builder.finish()


def test_a_state_comes_back_as_it_was() -> None:
    contents = parts_of(FROZEN)
    parts = [Part.of(f"{place}", content) for place, content in enumerate(contents)]
    manifest = decode_manifest(encode_manifest(FROZEN.manifest("w", parts)), "x")
    again = Frozen.of(built(manifest, contents), manifest.number, manifest.entry_digest)
    assert again == FROZEN
    assert (manifest.writer, manifest.counts, manifest.parts) == ("w", FROZEN.counts, parts)


def test_a_state_of_many_parts_comes_back_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_SLICE", 2)
    monkeypatch.setattr(snapshot, "PART_BYTES", 200)
    contents = parts_of(FROZEN)
    assert len(contents) == 2
    manifest = FROZEN.manifest("w", [Part.of("1", content) for content in contents])
    assert Frozen.of(built(manifest, contents), 7, bytes(range(8))) == FROZEN


def test_an_empty_state_has_a_manifest_and_no_parts() -> None:
    frozen = Frozen.of(State(), 1, bytes(8))
    assert parts_of(frozen) == []
    assert Frozen.of(built(frozen.manifest("w", []), []), 1, bytes(8)) == frozen


def test_snapshots_of_earlier_versions_are_read_and_written_the_same() -> None:
    part, manifest = (GOLDEN / f"{name}-1.bin" for name in ("part", "manifest"))
    [content] = parts_of(FROZEN)
    parts = [Part.of(f"{7:020}-{ID}/000000", content)]
    assert part.read_bytes() == content
    assert manifest.read_bytes() == encode_manifest(FROZEN.manifest("w", parts))
    read = decode_manifest(manifest.read_bytes(), "x")
    assert Frozen.of(built(read, [part.read_bytes()]), 7, bytes(range(8))) == FROZEN


def damaged(content: bytes) -> list[bytes]:
    """Return the content cut short at many places, with many bytes changed, and others."""
    cut = [content[:end] for end in range(0, len(content), 7)]
    changed = [
        content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]
        for place in range(0, len(content), 7)
    ]
    sealed = [content[:4] + body for body in (b"", b"\xc1", b"\x90", b"\x00\x00\x00\x09\x90")]
    sealed = [one + hashlib.blake2b(one, digest_size=8).digest() for one in sealed]
    return [*cut, *changed, *sealed, content + b"\0", b"", b"{}", content[:2] + b"?" + content[3:]]


def test_a_damaged_manifest_is_detected() -> None:
    for content in damaged(encode_manifest(FROZEN.manifest("w", []))):
        with pytest.raises(CorruptError, match=r"^snapshot/7 .*Nothing was overwritten\."):
            decode_manifest(content, "snapshot/7")


def test_a_damaged_part_is_detected_even_if_the_manifest_names_its_digest() -> None:
    [whole] = parts_of(FROZEN)
    for content in damaged(whole):
        with pytest.raises(CorruptError, match=r"^part/1 .*Nothing was overwritten\."):
            built(FROZEN.manifest("w", [Part.of("1", whole)]), [content])
    for content in damaged(whole)[: 2 * len(whole) // 7]:
        with pytest.raises(CorruptError, match=r"^part/1 .*Nothing was overwritten\."):
            built(FROZEN.manifest("w", [Part.of("1", content)]), [content])


def test_a_snapshot_of_a_newer_format_says_what_to_do() -> None:
    content = encode_manifest(FROZEN.manifest("w", []))
    newer = content[:3] + bytes([content[3] + 1]) + content[4:]
    with pytest.raises(CorruptError, match=r"newer casque.*Upgrade casque here"):
        decode_manifest(newer, "snapshot/7")


# -- what a snapshot must hold -------------------------------------------------


async def shorten_to_a_snapshot(objects: Objects) -> None:
    """Make a ledger of 10 entries, and a snapshot of them."""
    process = objects.process("first")
    for queue in "abc":
        for place in range(3):
            await process.add(f"{queue}{place}", queue=queue)
    # The first commit of another writer, which it will repeat.
    [outcome] = await objects.process("second").commit(Dequeue("w", 600 * SECOND_US, 2))
    assert len(outcome.jobs) == 2
    assert objects.entries() == list(range(1, 11))
    assert len(objects.keys("snapshot/")) == 1


async def continued(objects: Objects) -> list[object]:
    """Return what a new process sees, and how the log goes on with it."""
    process = objects.process("second")
    told: list[object] = [await process.store.picture()]
    try:
        told += await process.commit(Dequeue("w", 600 * SECOND_US, 2), number=1)
    except StorageError as error:  # it was stored, and only the process that made it has its jobs
        told.append(str(error))
    await process.commit(PutRecord("kind", "name", b"", None, None))
    told += [await process.claim() for _ in range(5)]
    replica = process.store._reader.replica
    assert replica is not None
    assert replica.state is not None
    told += [contents(replica.state), replica.view]
    return told + [objects.body(key) for key in objects.keys("log/")[-6:]]


async def from_the_log(objects: Objects) -> list[object]:
    await shorten_to_a_snapshot(objects)
    for key in objects.keys("snapshot/"):
        objects.remove(key)
    return await continued(objects)


async def from_the_snapshot(objects: Objects) -> list[object]:
    await shorten_to_a_snapshot(objects)
    for key in objects.keys("log/")[:9]:
        objects.remove(key)
    return await continued(objects)


@both_kinds
def test_the_log_goes_on_from_a_snapshot_as_from_its_entries(blocking: bool) -> None:
    assert run(blocking, from_the_snapshot) == run(blocking, from_the_log)


def counters(**changes: int) -> Callable[[Frozen], Frozen]:
    return lambda one: one._replace(counters=msgspec.structs.replace(one.counters, **changes))


LOSSES: dict[str, Callable[[Frozen], Frozen]] = {
    "token": counters(token=0),
    "enqueue order": counters(seq=0),
    "turn": counters(turn=0),
    "commits": counters(version=0),
    "writers": lambda one: one._replace(writers=[]),
    "rotation": lambda one: one._replace(lines=one.lines[::-1]),
    "time": lambda one: one._replace(time_us=one.time_us - 10),
    "number": lambda one: one._replace(number=one.number - 1),
    "digest": lambda one: one._replace(entry_digest=bytes(8)),
    "a job": lambda one: one._replace(jobs=one.jobs[:-1]),
    "the order of the jobs": lambda one: one._replace(jobs=one.jobs[::-1]),
}


@pytest.mark.parametrize("lost", LOSSES)
def test_the_log_does_not_go_on_from_a_snapshot_that_loses_something(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, real = run(True, from_the_log), Frozen.of
    monkeypatch.setattr(Frozen, "of", lambda *args: LOSSES[lost](real(*args)))
    try:
        assert run(True, from_the_snapshot) != expected
    except (AssertionError, CasqueError):
        return


# -- how it is written -----------------------------------------------------------


def numbers(objects: Objects) -> list[int]:
    return [decode_manifest(objects.body(key), key).number for key in objects.keys("snapshot/")]


@both_kinds
def test_the_process_whose_entry_makes_it_due_takes_a_snapshot(blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        one, other = objects.process("one"), objects.process("other")
        await one.grow(9)
        await other.jobs()
        assert numbers(objects) == []
        await other.grow(1)
        assert numbers(objects) == [10]
        await one.grow(8)
        await other.grow(3)
        assert numbers(objects) == [10, 20]

    run(blocking, main)


@both_kinds
def test_if_that_process_ends_before_another_takes_it_when_half_as_much_is_due(
    blocking: bool,
) -> None:
    async def main(objects: Objects) -> None:
        bucket = Stopping(objects.bucket)
        ends = objects.process("ends", bucket)
        bucket.fails = "put snapshot/"
        await ends.grow(10)
        assert len(objects.keys("part/")) == 1
        other = objects.process("other")
        await other.grow(4)
        assert numbers(objects) == []
        await other.grow(1)
        assert numbers(objects) == [15]
        assert len(await objects.process("reader").jobs()) == 15

    run(blocking, main)


@both_kinds
def test_a_snapshot_that_cannot_be_stored_is_not_tried_at_every_commit(blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        bucket = Stopping(objects.bucket)
        process = objects.process("one", bucket)
        bucket.refuses = "put part/"
        await process.grow(60)
        assert 5 <= bucket.asked.count("put part/") <= 12
        bucket.refuses = "nothing"
        await process.grow(10)
        assert numbers(objects)
        assert len(await objects.process("reader").jobs()) == 70

    run(blocking, main)


@both_kinds
def test_a_quiet_snapshot_that_cannot_be_stored_is_not_tried_at_every_call(blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        bucket = Stopping(objects.bucket)
        process = objects.process("one", bucket, UPKEEP._replace(snapshot_entries=1_000))
        bucket.refuses = "put part/"
        await process.grow(40)
        objects.clock.advance(2 * LONG)
        for _ in range(20):
            objects.clock.advance(timedelta(seconds=1))
            await process.commit(Dequeue("w", SECOND_US, 1, queue="empty"))
        assert 1 <= bucket.asked.count("put part/") <= 4

    run(blocking, main)


@both_kinds
def test_commits_go_on_while_a_snapshot_is_written_and_are_not_in_it(blocking: bool) -> None:
    async def main(objects: Objects) -> None:
        async def go_on() -> None:
            other = objects.process("other")
            await other.ack(await other.claim())
            await other.grow(2)

        bucket = Stopping(objects.bucket)
        process = objects.process("one", bucket)
        bucket.stop_at("put part/", go_on, carried_out=False)
        await process.grow(10)
        assert bucket.has_stopped
        assert numbers(objects) == [10]
        seen = await process.jobs()
        assert len(seen) == 11
        for key in objects.keys("log/")[:9]:
            objects.remove(key)
        assert await objects.process("reader").jobs() == seen

    run(blocking, main)


@both_kinds
def test_of_two_processes_that_take_one_snapshot_the_second_overwrites_nothing(
    blocking: bool,
) -> None:
    async def main(objects: Objects) -> None:
        before: list[bytes] = []

        async def another_takes_it() -> None:
            other = objects.process("other")
            await other.jobs()
            replica = other.store._reader.replica
            assert replica is not None
            assert replica.state is not None
            assert replica.digest is not None
            frozen = Frozen.of(replica.state, replica.number, replica.digest)
            requests, pause = other.store._requests, other.store.housekeeping.background.pause
            assert await write_snapshot(requests, frozen, "other", pause)
            before.append(objects.body(objects.keys("snapshot/")[0]))

        bucket = Stopping(objects.bucket)
        process = objects.process("one", bucket)
        bucket.stop_at("put snapshot/", another_takes_it, carried_out=False)
        await process.grow(10)
        assert bucket.has_stopped
        assert [objects.body(key) for key in objects.keys("snapshot/")] == before
        assert numbers(objects) == [10]
        await process.grow(10)
        assert len(await objects.process("reader").jobs()) == 20

    run(blocking, main)


# -- damaged ones ----------------------------------------------------------------

DAMAGES: dict[str, Callable[[Objects, str], None]] = {
    "missing": lambda objects, key: objects.remove(key),
    "cut short": lambda objects, key: objects.replace(key, objects.body(key)[:-3]),
    "changed": lambda objects, key: objects.replace(key, objects.body(key)[:-1] + b"?"),
    "foreign": lambda objects, key: objects.replace(key, b'{"jobs": []}'),
    "of another snapshot": lambda objects, key: objects.replace(
        key, objects.body(objects.keys(key.partition("/")[2][:5])[0])
    ),
}


async def two_snapshots(objects: Objects) -> list[str]:
    """Make a ledger whose log begins with the first of two snapshots; return its jobs."""
    one, other = objects.process("one"), objects.process("other")
    await one.grow(10)
    objects.clock.advance(LONG)
    await other.grow(10)
    assert (numbers(objects), objects.entries()[0]) == ([10, 20], 10)
    return await other.jobs()


@both_kinds
@pytest.mark.parametrize("folder", ["snapshot/", "part/"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_if_the_newest_snapshot_is_damaged_the_one_before_it_is_loaded(
    damage: str, folder: str, blocking: bool
) -> None:
    async def main(objects: Objects) -> None:
        expected = await two_snapshots(objects)
        DAMAGES[damage](objects, objects.keys(folder)[-1])
        before = dict(objects.bucket._objects)
        process = objects.process("late")
        assert await process.jobs() == expected
        await process.grow(1)
        objects.clock.advance(2 * LONG)
        await objects.process("first").grow(2)
        await process.grow(2)
        assert objects.entries()[0] == 10, "entries were deleted that it does not replace"
        assert before.items() <= objects.bucket._objects.items()
        assert len(await objects.process("reader").jobs()) == len(expected) + 5

    run(blocking, main)


@both_kinds
@pytest.mark.parametrize("damage", DAMAGES)
def test_if_all_snapshots_are_damaged_the_error_names_the_newest(
    damage: str, blocking: bool
) -> None:
    async def main(objects: Objects) -> None:
        await two_snapshots(objects)
        for key in objects.keys("part/")[::-1]:
            objects.replace(key, b"?") if damage == "of another snapshot" else DAMAGES[damage](
                objects, key
            )
        before = dict(objects.bucket._objects)
        with pytest.raises(CorruptError, match="part/00000000000000000020"):
            await objects.process("reader").jobs()
        with pytest.raises(CorruptError, match="part/00000000000000000020"):
            await objects.process("writer").add("new")
        assert before.items() <= objects.bucket._objects.items()

    run(blocking, main)


@both_kinds
@pytest.mark.parametrize("folder", ["snapshot/", "part/"])
def test_a_damaged_snapshot_of_a_whole_log_may_be_removed_by_hand(
    folder: str, blocking: bool
) -> None:
    async def main(objects: Objects) -> None:
        await objects.process("one").grow(12)
        [key] = objects.keys(folder)
        objects.replace(key, objects.body(key)[:-1] + b"?")
        with pytest.raises(CorruptError, match=key):
            await objects.process("late").jobs()
        for one in objects.keys("snapshot/"):
            objects.remove(one)
        process = objects.process("later")
        assert len(await process.jobs()) == 12
        await process.grow(8)
        assert len(await objects.process("reader").jobs()) == 20

    run(blocking, main)
