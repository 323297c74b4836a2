"""A recorded ledger is read again as it was, and a wrong one is found."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from casque.errors import CorruptError
from casque.rules.operations import Enqueue, Request
from casque.stores.ledger.log import key_of
from casque.stores.ledger.replica import MisplacedEntryError
from casque.stores.ledger.snapshot import decode_manifest, encode_manifest
from casque.stores.ledger.snapshot_listing import manifest_key
from tests.ledger.shortened import UPKEEP, Objects, run
from tests.torture.payloads import payload_of
from tests.torture.recorded_ledger import RecordedLedger

Record = dict[str, bytes]
"""The objects of a ledger, by key."""

JOBS = 25
NAMES = [f"job-{number}" for number in range(JOBS)]
SNAPSHOTS = range(UPKEEP.snapshot_entries, JOBS + 1, UPKEEP.snapshot_entries)


def record_of(names: list[str]) -> Record:
    """Return the objects of a ledger to which a process has added these jobs, one by one."""

    async def main(objects: Objects) -> Record:
        process = objects.process("one")
        for name in names:
            request = Request(name, "q", "e", payload_of(name), 0, 3)
            await process.commit(Enqueue((request,), 16))
        return {key: objects.body(key) for key in objects.keys("")}

    return run(False, main)


def read(record: Record, folder: Path, *more: tuple[str, str, bytes]) -> RecordedLedger:
    """Read the record of a proxy: the objects are written, then come `more` requests."""
    written = [("PUT", key, body) for key, body in record.items()]
    with (folder / "record").open("w") as file:
        for verb, key, body in [*written, *more]:
            text = base64.b64encode(body).decode()
            print(json.dumps({"verb": verb, "path": f"/b/p/{key}", "body": text}), file=file)
    return RecordedLedger(folder / "record")


def full_key(record: Record, key: str) -> str:
    """Return the key with the folder of the ledger."""
    return next(one for one in record if one.endswith(key))


def test_the_whole_log_is_read_also_what_was_deleted_or_written_again(tmp_path: Path) -> None:
    record = record_of(NAMES)
    key = full_key(record, key_of(3))
    ledger = read(record, tmp_path, ("DELETE", key, b""), ("PUT", key, b"a late entry"))
    assert ledger.added == NAMES
    counts = ledger.counts()
    large = sum(len(payload_of(name)) > 8 * 1024 for name in NAMES)
    assert (counts["entries"], counts["snapshots"]) == (JOBS, len(SNAPSHOTS))
    assert (counts["entries deleted"], counts["entries written late"]) == (1, 1)
    assert (counts["payloads"], counts["orphans"]) == (large, 0)
    number, _ = ledger.end()
    assert number == JOBS


def test_a_missing_entry_is_found(tmp_path: Path) -> None:
    record = record_of(NAMES)
    del record[full_key(record, key_of(3))]
    with pytest.raises(AssertionError, match="was never written"):
        read(record, tmp_path)


def test_a_forked_log_is_found(tmp_path: Path) -> None:
    record, other = record_of(NAMES), record_of([*NAMES[:2], "another", *NAMES[3:]])
    key = key_of(4)
    record[full_key(record, key)] = other[full_key(other, key)]
    with pytest.raises(MisplacedEntryError):
        read(record, tmp_path)


def test_a_snapshot_of_another_log_is_found(tmp_path: Path) -> None:
    record, other = record_of(NAMES), record_of(["another", *NAMES[1:]])
    key = manifest_key(SNAPSHOTS[0])
    record[full_key(record, key)] = other[full_key(other, key)]
    with pytest.raises(AssertionError, match="is a snapshot of another log"):
        read(record, tmp_path)


def test_a_snapshot_of_another_state_is_found(tmp_path: Path) -> None:
    record = record_of(NAMES)
    key = full_key(record, manifest_key(SNAPSHOTS[0]))
    manifest = decode_manifest(record[key], key)
    counters = replace(manifest.counters, seq=manifest.counters.seq - 1)
    record[key] = encode_manifest(replace(manifest, counters=counters))
    with pytest.raises(AssertionError, match="differs in counters"):
        read(record, tmp_path)


def test_a_snapshot_that_lacks_something_is_found(tmp_path: Path) -> None:
    record = record_of(NAMES)
    for key in [key for key in record if "/part/" in key]:
        record[key] = record[key][:-1]
    with pytest.raises(CorruptError):
        read(record, tmp_path)


def test_a_payload_that_was_never_written_is_found(tmp_path: Path) -> None:
    record = record_of(NAMES)
    del record[next(key for key in record if "/payload/" in key)]
    with pytest.raises(IndexError):
        read(record, tmp_path)
