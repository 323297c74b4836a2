"""A process is killed before each of its calls in turn, and in the middle of each write.

Every acknowledged object is there and complete; no partly written object is seen;
and later processes can continue.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT
from casque.system.clock import drive
from tests.buckets.syscalls import Call, killed_at_every_call

STEPS = """
import os
from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT
from casque.system.clock import drive

def say(*words):
    os.write(1, " ".join(words).encode() + b"\\n")

def body(letter):
    return letter.encode() * 5_000

def run(place):
    bucket = FolderBucket(f"{place}/bucket")
    say("create", "log/1", "a")
    version = drive(bucket.put("log/1", body("a"), expect=ABSENT))
    say("done", "log/1", "a")
    say("create", "s/1/x", "b")
    drive(bucket.put("s/1/x", body("b"), expect=ABSENT))
    say("done", "s/1/x", "b")
    say("update", "log/1", "c")
    drive(bucket.put("log/1", body("c"), expect=version))
    say("done", "log/1", "c")
    say("delete", "s/1/x", "-")
    drive(bucket.delete("s/1/x"))
    say("done", "s/1/x", "-")
    say("create", "log/2", "d")
    drive(bucket.put("log/2", body("d"), expect=ABSENT))
    say("done", "log/2", "d")
    say("end")
"""


def check(root: Path, calls: list[Call]) -> None:
    allowed: dict[str, set[str]] = {}
    for words in (call.path.split() for call in calls if call.what == "say"):
        if words[0] == "done":
            allowed[words[1]] = {words[2]}
        elif len(words) > 1:
            allowed.setdefault(words[1], {"-"}).add(words[2])
    # Read directly from the folder, not through the bucket.
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    for key, letters in allowed.items():
        body = files.get(key)
        there = "-" if body is None else chr(body[0])
        assert there in letters, f"{key} is {there} and not one of {letters}"
        assert body in (None, there.encode() * 5_000), f"{key} is not whole"
    assert set(files) <= set(allowed)
    bucket = FolderBucket(root)
    assert {one.key: one.size for one in drive(bucket.list())} == dict.fromkeys(files, 5_000)
    for key in allowed:
        found = drive(bucket.get(key))
        assert (found and found.body) == files.get(key)
        drive(bucket.put(key, b"after", expect=found.version if found else ABSENT))
        drive(bucket.delete(key))
    assert drive(bucket.list()) == []


def kill_at_every_call(code: str, shim: Path, folder: Path) -> None:
    runs = list(killed_at_every_call(shim, folder, code))
    for place, calls in runs:
        check(place / "bucket", calls)
    last = runs[-1][1]
    assert last[-1].path == "end"
    assert len(runs) > 30
    kinds = {"say", "write", "sync", "link", "rename", "unlink", "mkdir"}
    assert {call.what for call in last} == kinds


def test_a_process_killed_at_any_call_leaves_all_that_was_answered_and_no_halves(
    shim: Path, quick_path: Path
) -> None:
    kill_at_every_call(STEPS, shim, quick_path)


IN_PLACE = """
def created(self, path, body):
    return self._files.write_synced(path, body, self._mtime_ns())
FolderBucket._created = created
"""


def test_an_object_that_is_written_in_its_place_would_be_seen_half(
    shim: Path, quick_path: Path
) -> None:
    with pytest.raises(AssertionError, match="is not whole"):
        kill_at_every_call(STEPS + IN_PLACE, shim, quick_path)
