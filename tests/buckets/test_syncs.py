"""The bucket in a folder syncs before it answers: checked by the syscalls it makes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.buckets.syscalls import Call, trace

BEGIN = """
import os, sys
from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT
from casque.system.clock import drive

def say(word):
    os.write(1, word.encode() + b"\\n")
"""

WRITER = """
bucket = FolderBucket(sys.argv[1])
say("begin")
for key in ("log/1", "log/2", "s/1/x", "s/1/y", "format"):
    version = drive(bucket.put(key, b"body", expect=ABSENT))
    say("create " + key)
    version = drive(bucket.put(key, b"other", expect=version))
    say("update " + key)
for key in ("log/1", "s/1/x", "s/1/y", "missing", "log/missing"):
    drive(bucket.delete(key))
    say("delete " + key)
"""

READER = """
other = FolderBucket(sys.argv[1])
for number in range(10):
    drive(other.put(f"log/{number}", b"body", expect=ABSENT))
drive(other.put("s/1/x", b"body", expect=ABSENT))
bucket = FolderBucket(sys.argv[1])
say("begin")
for _ in range(2):
    drive(bucket.get("log/1"))
    say("get log/1")
for _ in range(2):
    drive(bucket.list("log/"))
    say("list log/")
for number in range(10):
    drive(bucket.get(f"log/{number}"))
    say("read")
for _ in range(2):
    drive(bucket.get("s/1/x"))
    say("get s/1/x")
version = drive(other.get("log/1")).version
drive(other.put("log/1", b"new", expect=version))
say("changed")
drive(bucket.get("log/1"))
say("get log/1 again")
drive(bucket.get("missing"))
drive(bucket.list("log/", after="log/9"))
say("nothing")
"""


class Answer:
    """An answer, and the syscalls before it; names are relative to the bucket."""

    def __init__(self, root: Path, word: str, calls: list[Call]) -> None:
        self.word = word
        self.key = word.rsplit(maxsplit=1)[-1]
        self.folder = str(Path(self.key).parent)
        self.calls = [
            Call(call.what, _within(root, call.path), _within(root, call.target)) for call in calls
        ]

    def synced(self) -> list[str]:
        return [call.path for call in self.calls if call.what == "sync"]

    def place(self, what: str, path: str) -> int:
        places = [
            number
            for number, call in enumerate(self.calls)
            if (call.what, call.path) == (what, path)
        ]
        assert places, f"{self.word}: there was no {what} of {path}"
        return places[0]

    def check_put(self) -> None:
        """Check that the data is synced before the link, and the name before the answer."""
        [placed] = [call for call in self.calls if call.what in ("link", "rename")]
        assert placed.target == self.key
        assert self.calls.index(placed) > self.place("sync", placed.path)
        assert self.place("sync", placed.path) > self.place("write", placed.path)
        self.check_folder_synced_after(self.calls.index(placed))

    def check_folder_synced_after(self, place: int) -> None:
        rest = [call.path for call in self.calls[place:] if call.what == "sync"]
        assert self.folder in rest, f"{self.word} was answered before its folder was synced"


def _within(root: Path, path: str) -> str:
    if not path.startswith(str(root)):
        return path
    return str(Path(path).relative_to(root))


def answers(shim: Path, folder: Path, code: str, plant: str = "") -> list[Answer]:
    root = folder / "bucket"
    calls = trace(shim, folder, BEGIN + plant + code, str(root))
    ends = [place for place, call in enumerate(calls) if call.what == "say"]
    told = [
        Answer(root, calls[end].path, calls[last + 1 : end]) for last, end in pairwise([-1, *ends])
    ]
    assert told[0].word == "begin"
    return told[1:]


def check_writer(told: list[Answer]) -> None:
    assert len(told) == 15
    for answer in told:
        verb = answer.word.split()[0]
        if verb in ("create", "update"):
            answer.check_put()
        elif answer.key == "missing" or "/" not in answer.key:
            continue
        else:
            unlinks = [n for n, call in enumerate(answer.calls) if call.what == "unlink"]
            answer.check_folder_synced_after(max(unlinks, default=0))


def check_names_of_folders(told: list[Answer]) -> None:
    """Check that a folder's own name is synced before the first answer about an object in it."""
    by_word = {answer.word: answer for answer in told}
    first = by_word["create log/1"]
    assert "." in first.synced()[first.synced().index("log") :], "the name of log/"
    deep = by_word["create s/1/x"]
    assert {"s/1", "s", "."} <= set(deep.synced()), "the names of s/1 and of s"


def test_a_put_is_synced_in_order_before_it_is_answered(shim: Path, quick_path: Path) -> None:
    told = answers(shim, quick_path, WRITER)
    check_writer(told)
    check_names_of_folders(told)


def test_a_put_in_a_folder_that_is_known_syncs_twice(shim: Path, quick_path: Path) -> None:
    told = {answer.word: answer for answer in answers(shim, quick_path, WRITER)}
    assert len(told["create log/2"].synced()) == 2
    assert len(told["create s/1/y"].synced()) == 2


def check_reader(told: list[Answer]) -> None:
    synced = [(answer.word, answer.synced()) for answer in told]
    assert "log" in synced[0][1], "another process's object was returned before it was synced"
    assert synced[1] == ("get log/1", []), "remembered since the first time"
    assert synced[2] == ("list log/", ["log"])
    assert synced[3:14] == [("list log/", []), *[("read", [])] * 10], "the list synced for all"
    assert {"s/1", "s"} <= set(synced[14][1])
    assert synced[15] == ("get s/1/x", [])
    assert synced[17] == ("get log/1 again", ["log"]), "a new version is another object"
    assert synced[18] == ("nothing", [])


def test_an_object_of_another_process_is_synced_once_before_it_is_returned(
    shim: Path, quick_path: Path
) -> None:
    check_reader(answers(shim, quick_path, READER))


NO_DATA_SYNC = """
import stat
fsync = os.fsync
os.fsync = lambda fd: fsync(fd) if stat.S_ISDIR(os.fstat(fd).st_mode) else None
"""
NO_FOLDER_SYNC = """
import stat
fsync = os.fsync
os.fsync = lambda fd: None if stat.S_ISDIR(os.fstat(fd).st_mode) else fsync(fd)
"""
LINK_FIRST = """
from casque.buckets.disk import LocalDisk
def write_synced(self, path, body, mtime_ns, write=LocalDisk.write_synced):
    fsync, os.fsync = os.fsync, lambda fd: None
    try:
        return write(self, path, body, mtime_ns)
    finally:
        os.fsync = fsync
LocalDisk.write_synced = write_synced
"""
SYNC_FIRST = """
from casque.buckets.synced_names import SyncedNames
placed, sync = FolderBucket._placed, SyncedNames.sync
def sync_and_place(self, path, body, expect):
    if os.path.isdir(os.path.dirname(path)):
        sync(self._synced_names, [os.path.dirname(path)])
    return placed(self, path, body, expect)
FolderBucket._placed = sync_and_place
SyncedNames.sync = lambda *_: None
"""
NO_NAMES_OF_FOLDERS = """
from casque.buckets.synced_names import SyncedNames
SyncedNames.sync = lambda self, folders: [self._files.sync_folder(one) for one in folders]
"""
BELIEVING = "FolderBucket._believe = lambda *_: None\n"


@pytest.mark.parametrize("plant", [NO_DATA_SYNC, NO_FOLDER_SYNC, LINK_FIRST, SYNC_FIRST])
def test_a_sync_left_out_or_in_the_wrong_place_would_be_seen(
    shim: Path, quick_path: Path, plant: str
) -> None:
    told = answers(shim, quick_path, WRITER, plant)
    with pytest.raises(AssertionError):
        check_writer(told)


def test_a_folders_name_that_is_not_synced_would_be_seen(shim: Path, quick_path: Path) -> None:
    told = answers(shim, quick_path, WRITER, NO_NAMES_OF_FOLDERS)
    with pytest.raises(AssertionError):
        check_names_of_folders(told)


def test_returning_an_unsynced_object_would_be_seen(shim: Path, quick_path: Path) -> None:
    told = answers(shim, quick_path, READER, BELIEVING)
    with pytest.raises(AssertionError, match="returned before it was synced"):
        check_reader(told)
