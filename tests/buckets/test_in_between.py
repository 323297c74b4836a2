"""One process is interrupted before each disk call in turn, while another does its work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest

from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT
from casque.errors import CASConflictError, StorageError
from casque.system.clock import drive
from casque.testing import FakeClock
from casque.testing.disk import SimDisk, SimFiles


class Interrupted:
    """A process that is interrupted before its nth call, while another does its work."""

    def __init__(self, nth: int) -> None:
        self.disk, self.clock = SimDisk(), FakeClock()
        self.mine, self.others = self.disk.process(), self.disk.process()
        self.bucket = FolderBucket("/bucket", self.clock, files=self.mine)
        self.other = FolderBucket("/bucket", self.clock, files=self.others)
        self.nth = nth
        self.told: list[str] = []
        self.version = drive(self.bucket.put("s/1/a", b"first", expect=ABSENT))
        self._calls = 0
        self.fired = False

    def interrupt(self, *calls: Any) -> None:
        def before(files: SimFiles, _: str) -> None:
            if files is self.mine:
                self._calls += 1
                if self._calls == self.nth:
                    self.fired = True
                    self.told = [answer(call) for call in calls]

        self.disk.before = before

    def made(self, mine: str) -> list[bytes]:
        """The bodies of the writes that succeeded."""
        return [b"mine"] * (mine == "done") + [b"theirs"] * (self.told == ["done"])

    def body(self) -> bytes | None:
        found = drive(FolderBucket("/bucket", self.clock, files=self.disk.process()).get("s/1/a"))
        return found and found.body


def answer(call: Any) -> str:
    try:
        drive(call())
    except CASConflictError:
        return "conflict"
    except StorageError:
        return "refused"
    return "done"


def interrupted() -> Iterator[Interrupted]:
    """Yield a process interrupted before its first call, then its second, and so on."""
    for nth in count(1):
        yield (process := Interrupted(nth))
        if not process.fired:
            assert nth > 3
            return


def test_an_update_replaces_nothing_but_what_it_was_compared_with() -> None:
    seen = set()
    for process in interrupted():
        other = process.other
        process.interrupt(
            lambda other=other: other.delete("s/1/a"),
            lambda other=other: other.put("s/1/a", b"theirs", expect=ABSENT),
        )
        mine = answer(lambda p=process: p.bucket.put("s/1/a", b"mine", expect=p.version))
        if process.told[1:] == ["done"]:
            assert process.body() == b"theirs"
        elif process.told[:1] == ["done"]:
            assert process.body() is None
        else:
            assert (mine, process.body()) == ("done", b"mine")
        seen.add((mine, *process.told))
    assert ("conflict", "done", "done") in seen
    assert ("done", "refused", "conflict") in seen


def test_of_two_updates_of_one_version_one_is_made() -> None:
    seen = set()
    for process in interrupted():
        process.interrupt(
            lambda p=process: p.other.put("s/1/a", b"theirs", expect=p.version),
        )
        mine = answer(lambda p=process: p.bucket.put("s/1/a", b"mine", expect=p.version))
        assert process.made(mine) == [process.body()]
        seen.add(mine)
    assert seen == {"done", "conflict"}


def test_of_two_creates_of_one_key_one_is_made() -> None:
    seen = set()
    for process in interrupted():
        drive(process.bucket.delete("s/1/a"))
        process.interrupt(lambda p=process: p.other.put("s/1/a", b"theirs", expect=ABSENT))
        mine = answer(lambda p=process: p.bucket.put("s/1/a", b"mine", expect=ABSENT))
        assert process.made(mine) == [process.body()]
        seen.add(mine)
    assert seen == {"done", "conflict"}


def test_a_put_into_a_folder_whose_last_object_is_deleted_is_made() -> None:
    for process in interrupted():
        process.interrupt(lambda p=process: p.other.delete("s/1/a"))
        assert answer(lambda p=process: p.bucket.put("s/1/b", b"mine", expect=ABSENT)) == "done"
        assert process.told in (["done"], [])
        last = FolderBucket("/bucket", process.clock, files=process.disk.process())
        assert [one.key for one in drive(last.list("", after="s/1/a"))] == ["s/1/b"]


def test_without_the_lock_an_update_replaces_what_it_was_not_compared_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SimFiles, "locked", lambda *_: nullcontext())
    with pytest.raises(AssertionError):
        test_an_update_replaces_nothing_but_what_it_was_compared_with()
    with pytest.raises(AssertionError):
        test_of_two_updates_of_one_version_one_is_made()
