"""Disks that fail at any call: the error says whether the change was made, and nothing is left."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT
from casque.errors import StorageError
from casque.system.clock import drive
from casque.testing import FakeClock
from casque.testing.disk import SimDisk, SimFiles


def refusal(call: Callable[[], Any]) -> StorageError | None:
    try:
        drive(call())
    except StorageError as error:
        return error
    return None


class Failing:
    """A bucket on a disk whose nth call fails, counted from the start of a change."""

    def __init__(self, number: int, nth: int) -> None:
        self.clock, self.disk = FakeClock(), SimDisk()
        self.bucket = FolderBucket("/bucket", self.clock, files=self.disk.process())
        self.version = drive(self.bucket.put("log/old", b"old", expect=ABSENT))
        self.fired = ""
        self._number, self._fatal = number, self.disk.calls + nth
        self.disk.before = self._before

    def _before(self, _: SimFiles, what: str) -> None:
        if self.disk.calls == self._fatal:
            self.fired = what
            raise OSError(self._number, os.strerror(self._number), "/bucket/log")

    def now(self) -> dict[str, bytes]:
        self.disk.before = None
        bucket = FolderBucket("/bucket", self.clock, files=self.disk.process())
        found = {one.key: drive(bucket.get(one.key)) for one in drive(bucket.list())}
        return {key: one.body for key, one in found.items() if one is not None}


CHANGES: dict[str, tuple[Callable[[Failing], Any], dict[str, bytes]]] = {
    "create": (
        lambda one: one.bucket.put("log/new", b"new", expect=ABSENT),
        {"log/old": b"old", "log/new": b"new"},
    ),
    "update": (
        lambda one: one.bucket.put("log/old", b"new", expect=one.version),
        {"log/old": b"new"},
    ),
    "delete": (lambda one: one.bucket.delete("log/old"), {}),
}


def failing(number: int) -> Iterator[Failing]:
    for nth in count(1):
        yield (one := Failing(number, nth))
        if not one.fired:
            assert nth > 3
            return


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ENOSPC", "Make room"),
        ("EDQUOT", "Make room"),
        ("EFBIG", "Make room"),
        ("EROFS", "Give this user"),
        ("EACCES", "Give this user"),
        ("EIO", "Check the folder"),
    ],
)
def test_a_change_that_fails_is_made_or_not_as_its_error_says(
    change: str, name: str, remedy: str
) -> None:
    call, after = CHANGES[change]
    before = {"log/old": b"old"}
    unknown = set()
    for one in failing(getattr(errno, name)):
        error = refusal(partial(call, one))
        if error is None or error.outcome_unknown:
            assert one.now() == after
        else:
            assert one.now() == before
        if error is not None:
            assert "/bucket/log/" in str(error)
            assert remedy in str(error)
            assert isinstance(error.cause, OSError)
            if error.outcome_unknown:
                unknown.add(one.fired)
        left, _ = one.disk.process().scan("/bucket/log")
        assert one.fired == "unlink" or not [name for name in left if name.startswith(".")]
    assert unknown == {"sync folder"}


def read_all(one: Failing) -> StorageError | None:
    bucket = FolderBucket("/bucket", one.clock, files=one.disk.process())

    async def read() -> None:
        assert await bucket.get("log/old")
        assert await bucket.list()
        assert await bucket.list("log/")

    return refusal(read)


def test_a_failing_read_raises_an_error() -> None:
    for one in failing(errno.EIO):
        error = read_all(one)
        assert bool(error) == bool(one.fired)
        if error is not None:
            assert not error.outcome_unknown
            assert "/bucket" in str(error)


def test_a_read_only_disk_can_be_read() -> None:
    for one in failing(errno.EROFS):
        error = read_all(one)
        assert error is None or one.fired != "sync folder"


# -- the same for real, where this user may ------------------------------------

FULL = """
import json, resource, signal, sys
from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT
from casque.system.clock import drive
from casque.errors import StorageError
if sys.argv[2] != "-":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
bucket = FolderBucket(sys.argv[1])
told, errors = [], []
for number in range(100):
    try:
        drive(bucket.put(f"log/{number}", bytes(100 + number * 1000), expect=ABSENT))
        told.append(f"log/{number}")
    except StorageError as error:
        errors.append([str(error), error.outcome_unknown])
sizes = [one.size for one in drive(bucket.list())]
print(json.dumps([sorted(told), sorted(one.key for one in drive(bucket.list())), sizes, errors]))
"""


def run_child(command: list[str]) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_full(folder: Path, answer: Any) -> None:
    told, listed, sizes, errors = answer
    assert told == listed
    assert len(told) + len(errors) == 100
    assert len(told) > 10
    assert len(errors) > 10
    assert sizes == [100 + int(key.removeprefix("log/")) * 1000 for key in listed]
    for message, outcome_unknown in errors:
        assert str(folder) in message
        assert "Make room on its disk" in message
        assert not outcome_unknown


def test_a_file_that_grows_too_large_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    check_full(tmp_path, run_child([sys.executable, "-c", FULL, str(tmp_path), "50000"]))
    assert not list(tmp_path.rglob(".casque-*"))


def test_a_full_disk_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    small_disk = 'mount -t tmpfs -o size=900k none "$1" && exec "$2" -c "$3" "$1" -'
    command = ["unshare", "-rm", "sh", "-c", small_disk, "sh", str(tmp_path), sys.executable]
    if shutil.which("unshare") is None or subprocess.run([*command, ""], check=False).returncode:
        pytest.skip("no small disk can be made here")
    check_full(tmp_path, run_child([*command, FULL]))


READ_ONLY = """
import json, sys
from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT
from casque.system.clock import drive
from casque.errors import StorageError
bucket = FolderBucket(sys.argv[1])
found = drive(bucket.get("log/1"))
listed = [one.key for one in drive(bucket.list())]
told = []
for call in (
    lambda: bucket.put("log/2", b"", expect=ABSENT),
    lambda: bucket.put("new/2", b"", expect=ABSENT),
    lambda: bucket.put("log/1", b"", expect=found.version),
    lambda: bucket.delete("log/1"),
):
    try:
        drive(call())
    except StorageError as error:
        told.append([str(error), error.outcome_unknown])
print(json.dumps([listed, told]))
"""


def test_a_read_only_folder_can_be_read_and_refuses_writes(tmp_path: Path) -> None:
    drive(FolderBucket(tmp_path).put("log/1", b"body", expect=ABSENT))
    read_only = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", read_only, "sh", str(tmp_path), sys.executable]
    if shutil.which("unshare") is None or subprocess.run([*command, ""], check=False).returncode:
        pytest.skip("no folder can be made read-only here")
    listed, told = run_child([*command, READ_ONLY])
    assert listed == ["log/1"]
    assert len(told) == 4
    for message, outcome_unknown in told:
        assert str(tmp_path) in message
        assert "Give this user read and write permission" in message
        assert not outcome_unknown
