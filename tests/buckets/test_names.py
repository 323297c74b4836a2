"""Other files in a bucket's folder, the versions of objects, and the cost of a list."""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from casque.buckets import synced_names
from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT, PAGE, Version
from casque.system.clock import drive
from casque.testing import FakeClock
from casque.testing.disk import SimDisk, SimFiles


def test_an_object_is_a_file_of_its_key_and_holds_its_bytes(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path / "bucket")
    version = drive(bucket.put("log/0001", b"\0body\r\n", expect=ABSENT))
    assert (tmp_path / "bucket/log/0001").read_bytes() == b"\0body\r\n"
    drive(bucket.put("log/0001", b"", expect=version))
    assert (tmp_path / "bucket/log/0001").read_bytes() == b""
    assert [path.name for path in (tmp_path / "bucket/log").iterdir()] == ["0001"]


def test_a_partly_written_file_is_neither_listed_nor_read(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path)
    drive(bucket.put("log/1", b"whole", expect=ABSENT))
    for folder in (tmp_path, tmp_path / "log"):
        (folder / ".casque-0198c0de").write_bytes(b"ha")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"")
    for prefix in ("", "log/", ".", "log/."):
        assert [one.key for one in drive(bucket.list(prefix))] == ["log/1"][: "." not in prefix]


def test_files_of_a_killed_process_are_removed_after_a_day(tmp_path: Path) -> None:
    clock = FakeClock()
    bucket = FolderBucket(tmp_path, clock)
    drive(bucket.put("log/1", b"whole", expect=ABSENT))
    left, foreign = tmp_path / "log/.casque-left", tmp_path / "log/.notes-casque-"
    for path in (left, foreign):
        path.write_bytes(b"ha")
        os.utime(path, ns=(clock.now() * 1000, clock.now() * 1000))
    clock.advance(timedelta(hours=23))
    drive(bucket.list())
    assert left.exists()
    clock.advance(timedelta(hours=2))
    drive(bucket.list("log/", after="log/1"))
    assert not left.exists()
    assert foreign.exists()


def test_a_put_that_takes_longer_than_a_day_is_written_again(tmp_path: Path) -> None:
    clock, disk = FakeClock(), SimDisk()
    bucket, other = (FolderBucket("/b", clock, files=disk.process()) for _ in range(2))
    drive(bucket.put("log/0", b"", expect=ABSENT))
    swept: list[str] = []

    def before(_: SimFiles, what: str) -> None:
        if what == "link" and not swept:
            swept.append(what)
            clock.advance(timedelta(days=2))
            drive(other.list())

    disk.before = before
    drive(bucket.put("log/1", b"slow", expect=ABSENT))
    found = drive(other.get("log/1"))
    assert found
    assert found.body == b"slow"


def test_files_of_others_are_listed_if_their_names_are_valid_keys(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    for name in ("notes.txt", "log/ä", "log/a b", "log/\udcff", "log/x", "log/~"):
        (tmp_path / name).write_bytes(b"mine")
    bucket = FolderBucket(tmp_path)
    assert [one.key for one in drive(bucket.list())] == ["log/x", "notes.txt"]
    assert drive(bucket.get("notes.txt"))


def test_a_folder_outlives_its_last_object(tmp_path: Path) -> None:
    """Other processes remember that its name is on disk, and do not sync it again."""
    bucket = FolderBucket(tmp_path)
    for key in ("s/1/x", "log/1"):
        drive(bucket.put(key, b"", expect=ABSENT))
        drive(bucket.delete(key))
        assert list((tmp_path / key).parent.iterdir()) == []
    assert drive(bucket.list()) == []


# -- versions ------------------------------------------------------------------


def test_no_update_repeats_a_version_whatever_the_clock_does(tmp_path: Path) -> None:
    clock = FakeClock()
    bucket = FolderBucket(tmp_path, clock)
    versions: list[Version] = [drive(bucket.put("a", b"same", expect=ABSENT))]
    for number in range(60):
        # The clock stands still, and at times it is set back to where it was.
        clock.jump(timedelta(seconds=1 if number % 3 else -2))
        versions.append(drive(bucket.put("a", b"same", expect=versions[-1])))
    assert len(set(versions)) == len(versions)


def test_no_object_that_is_created_again_repeats_a_version(tmp_path: Path) -> None:
    # On a real disk the new file gets the inode number of the one just deleted.
    bucket = FolderBucket(tmp_path)
    versions: list[Version] = []
    for _ in range(20):
        versions.append(drive(bucket.put("a", b"same", expect=ABSENT)))
        drive(bucket.delete("a"))
    assert len(set(versions)) == len(versions)


def test_a_version_outlives_a_second_link_of_its_file(tmp_path: Path) -> None:
    # A process that is killed between its link and its unlink leaves one, and so do some backups.
    bucket = FolderBucket(tmp_path)
    version = drive(bucket.put("a", b"1", expect=ABSENT))
    (tmp_path / ".copy").hardlink_to(tmp_path / "a")
    (tmp_path / ".copy").unlink()
    drive(bucket.put("a", b"2", expect=version))


def test_the_time_of_an_object_comes_from_the_clock(tmp_path: Path) -> None:
    clock = FakeClock()
    bucket = FolderBucket(tmp_path, clock)
    for number in range(3):
        drive(bucket.put(f"log/{number}", b"", expect=ABSENT))
        found = drive(bucket.get(f"log/{number}"))
        assert found
        assert found.modified_us == clock.now()
        assert drive(bucket.list())[-1].modified_us == clock.now()
        clock.advance(timedelta(microseconds=1))


# -- what it costs -------------------------------------------------------------


class Counted:
    """A bucket on a disk that counts its calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.disk, self.clock = SimDisk(), FakeClock()
        self.bucket = self.open()
        self.disk.before = lambda _, what: self.calls.update([what])

    def open(self) -> FolderBucket:
        return FolderBucket("/b", self.clock, files=self.disk.process())


@pytest.fixture(scope="module")
def filled() -> Counted:
    one = Counted()
    for number in range(PAGE + 500):
        drive(one.bucket.put(f"log/{number:05}", b"", expect=ABSENT))
    for number in range(50):
        drive(one.bucket.put(f"s/{number:02}/x", b"", expect=ABSENT))
    return one


def test_a_list_reads_only_what_it_returns_and_folders_that_can_match(filled: Counted) -> None:
    def cost(prefix: str, after: str, named: int) -> tuple[int, int]:
        filled.calls.clear()
        assert len(drive(filled.bucket.list(prefix, after=after))) == named
        return filled.calls["scan"], filled.calls["stat"]

    assert cost("log/", "", PAGE) == (1, PAGE)
    assert cost("log/", f"log/{PAGE + 490:05}", 9) == (1, 9)
    assert cost("log/012", "", 100) == (1, 100)
    assert cost("s/", "s/47/x", 2) == (4, 2)
    assert cost("s/48/", "", 1) == (1, 1)
    assert cost("s", "s/48/x", 1) == (4, 1)
    assert cost("", "log/99999", 50) == (53, 50)
    assert cost("log/", "s", 0) == (0, 0)
    assert cost("", "", PAGE) == (2, PAGE)


def test_an_object_listed_or_read_once_is_not_synced_again(filled: Counted) -> None:
    bucket = filled.open()
    filled.calls.clear()
    first = drive(bucket.list("log/"))
    synced = filled.calls["sync folder"]
    assert synced == 3  # the folder, and once its own name and the bucket's
    for listed in first:
        drive(bucket.get(listed.key))
    drive(bucket.list("log/"))
    drive(bucket.get("log/missing"))
    assert filled.calls["sync folder"] == synced
    drive(bucket.list("log/", after=first[-1].key))
    assert filled.calls["sync folder"] == synced + 1


def test_the_memory_of_synced_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synced_names, "OBJECTS_KEPT", 10)
    monkeypatch.setattr(synced_names, "_FOLDERS_KEPT", 3)
    bucket = Counted().bucket
    for number in range(20):
        drive(bucket.put(f"{number}/x", b"", expect=ABSENT))
    assert len(bucket._synced_names._stamps) == 10
    assert len(bucket._synced_names._folders) <= 5
    assert len(drive(bucket.list())) == 20
    for number in range(20):
        assert drive(bucket.get(f"{number}/x"))
