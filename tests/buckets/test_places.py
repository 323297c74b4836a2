"""Places that cannot hold a bucket: a clear error, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from casque.buckets.disk import LocalDisk
from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT
from casque.errors import InvalidError, StorageError
from casque.system import local_disk
from casque.system.clock import drive
from casque.testing import FakeClock


def refused(call: Callable[[], Any], *told: str) -> None:
    """Check that the call is refused without a change, and its message contains these parts."""
    with pytest.raises(StorageError) as error:
        drive(call())
    assert not error.value.outcome_unknown
    for part in told:
        assert part in str(error.value)


def put(bucket: FolderBucket, key: str = "log/1") -> Callable[[], Any]:
    return lambda: bucket.put(key, b"body", expect=ABSENT)


def names(folder: Path) -> set[str]:
    """Return the files in a folder, except those that make no difference."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.name not in (".casque.lock", ".casque.gate")
    }


# -- places --------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/", "a\0b", "~nobody-of-that-name/x"])
def test_a_path_that_cannot_be_a_folder_is_refused(path: str) -> None:
    with pytest.raises(InvalidError):
        FolderBucket(path)


@pytest.mark.parametrize(
    "key",
    [
        *["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/.", ".a", "a/.b"],
        *["ä", "a b", "a\n", "a\0", "a\\b", "x" * 256, ".casque.lock", ".casque-1"],
    ],
)
def test_a_key_that_would_lead_elsewhere_is_refused(tmp_path: Path, key: str) -> None:
    bucket = FolderBucket(tmp_path / "bucket")
    for call in (bucket.get(key), bucket.delete(key), bucket.put(key, b"", expect=ABSENT)):
        with pytest.raises(InvalidError, match="cannot be a key"):
            drive(call)
    assert drive(bucket.list(f"{key}/" if key else "../")) == []
    assert names(tmp_path) == set()


def test_a_network_drive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 1 0:1 / {tmp_path} rw - nfs4 host:/ rw\n")
    monkeypatch.setattr(local_disk, "_MOUNTS", mounts)
    bucket = FolderBucket(tmp_path / "bucket")
    told = (str(tmp_path / "bucket"), "nfs4", "Choose a folder on a local disk")
    for call in (put(bucket), lambda: bucket.get("a"), bucket.list, lambda: bucket.delete("a")):
        refused(call, *told)
    assert names(tmp_path) == {"mountinfo"}


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_refused(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), source)

    monkeypatch.setattr(os, "link", link)
    bucket = FolderBucket(tmp_path / "bucket")
    refused(put(bucket), str(tmp_path / "bucket"), "without hard links", "another disk")
    assert names(tmp_path / "bucket") == {"log"}


def test_a_file_system_that_keeps_whole_seconds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utime = os.utime

    def coarse(path: Any, *, ns: tuple[int, int]) -> None:
        utime(path, ns=(ns[0] // 10**9 * 10**9, ns[1] // 10**9 * 10**9))

    monkeypatch.setattr(os, "utime", coarse)
    bucket = FolderBucket(tmp_path / "bucket", FakeClockWithChance())
    refused(put(bucket), str(tmp_path / "bucket"), "nanoseconds", "another disk")
    assert names(tmp_path / "bucket") == {"log"}


class FakeClockWithChance(FakeClock):
    def random(self) -> float:
        return 0.5


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bucket").write_text("mine")
    for path in (tmp_path / "bucket", tmp_path / "bucket" / "below"):
        bucket = FolderBucket(path)
        told = (str(path), "A file is where a folder should be")
        refused(put(bucket), *told)
        refused(partial(bucket.get, "log/1"), *told)
        refused(partial(bucket.delete, "log/1"), *told)
        refused(bucket.list, *told)
    assert (tmp_path / "bucket").read_text() == "mine"


def test_a_file_in_place_of_a_folder_in_it_is_refused(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path)
    drive(bucket.put("log", b"an object", expect=ABSENT))
    refused(put(bucket), str(tmp_path / "log/1"), "A file is where a folder should be")
    assert drive(bucket.get("log/1")) is None


def test_a_folder_in_place_of_an_object_is_refused(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path)
    version = drive(bucket.put("log/1", b"an object", expect=ABSENT))
    refused(put(bucket, "log"), str(tmp_path / "log"), "a folder where a file should")
    refused(lambda: bucket.put("log", b"", expect=version), str(tmp_path / "log"))
    assert names(tmp_path) == {"log", "log/1"}


def test_a_pipe_in_place_of_an_object_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    bucket = FolderBucket(tmp_path)
    refused(lambda: bucket.get("pipe"), str(tmp_path / "pipe"), "Not a plain file")
    refused(put(bucket, "pipe"), str(tmp_path / "pipe"), "Not a plain file")
    assert drive(bucket.list()) == []


def test_a_folder_that_is_removed_while_in_use_is_made_again(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path / "above" / "bucket")
    for key in ("log/1", "format", "s/1/x"):
        for folder in (tmp_path / "above", tmp_path / "above/bucket", None):
            drive(bucket.put(key, b"body", expect=ABSENT))
            found = drive(bucket.get(key))
            assert found
            shutil.rmtree(folder or (tmp_path / "above/bucket" / key).parent)
            assert drive(bucket.get(key)) is None
            assert drive(bucket.list()) == []
            drive(bucket.delete(key))


def test_a_lock_that_is_never_released_is_waited_for_within_a_limit(tmp_path: Path) -> None:
    clock = FakeClock()
    bucket = FolderBucket(tmp_path, clock)
    version = drive(bucket.put("a", b"1", expect=ABSENT))
    with LocalDisk(clock).locked(str(tmp_path / "casque")):
        refused(lambda: bucket.put("a", b"2", expect=version), ".casque.lock", "30 s")
        refused(lambda: bucket.delete("a"), ".casque.lock", "30 s")
        drive(bucket.put("b", b"1", expect=ABSENT))  # a create needs no lock
    drive(bucket.put("a", b"2", expect=version))
