"""The bucket in a folder on a disk whose power is cut: every answer still holds after it.

At every disk call a process can be killed or the power can be cut. The tests try
each one.
"""

from __future__ import annotations

import random  # noqa: TID251 - seeded, and passed to the disk
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import pytest

from casque.buckets.disk import Stamp
from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT, Version
from casque.buckets.synced_names import SyncedNames
from casque.errors import CASConflictError
from casque.system.clock import drive
from casque.testing import FakeClock
from casque.testing.disk import GoneError, SimDisk, SimFiles


class Worst(random.Random):
    """The worst disk: it keeps nothing that was not synced."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return a


class Step(NamedTuple):
    who: str
    verb: str
    key: str


# Each step depends on what the other process has done before it.
SCRIPT = [
    Step("b", "create", "log/1"),
    Step("a", "get", "log/1"),
    Step("a", "create", "log/2"),
    Step("b", "get", "log/2"),
    Step("b", "update", "log/1"),
    Step("a", "get", "log/1"),
    Step("a", "create", "s/1/x"),
    Step("a", "delete", "s/1/x"),
    Step("b", "create", "s/1/y"),
    Step("a", "create", "s/1/z"),
    Step("a", "list", ""),
    Step("b", "delete", "log/2"),
    Step("a", "delete", "log/2"),
    Step("b", "create", "log/2"),
    Step("a", "list", "log/"),
    Step("b", "update", "log/2"),
    Step("a", "create", "log/3"),
]


class Run:
    """Two processes on one disk, and the answers they got."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.clock = FakeClock()
        self.files = {who: self.disk.process() for who in "ab"}
        self.buckets = {who: self.open(files) for who, files in self.files.items()}
        self.sure: dict[str, bytes | None] = {}
        """For each key, the content of the last answer."""
        self.perhaps: dict[str, list[bytes | None]] = {}
        """For each key, the contents that unanswered calls may have written."""
        self._bodies = count()

    def open(self, files: SimFiles) -> FolderBucket:
        return FolderBucket("/home/bucket", self.clock, files=files)

    def take(self, step: Step) -> None:
        if not self.files[step.who].is_alive:
            return
        with suppress(GoneError):
            getattr(self, step.verb)(self.buckets[step.who], step.key)

    def create(self, bucket: FolderBucket, key: str) -> None:
        self.put(bucket, key, None)

    def update(self, bucket: FolderBucket, key: str) -> None:
        found = drive(bucket.get(key))
        if found is not None:
            self.told(key, found.body)
            self.put(bucket, key, found.version)

    def put(self, bucket: FolderBucket, key: str, version: Version | None) -> None:
        body = b"body %d" % next(self._bodies)
        self.perhaps.setdefault(key, []).append(body)
        try:
            drive(bucket.put(key, body, expect=ABSENT if version is None else version))
        except CASConflictError:
            self.perhaps[key].remove(body)
        else:
            self.told(key, body)

    def delete(self, bucket: FolderBucket, key: str) -> None:
        self.perhaps.setdefault(key, []).append(None)
        drive(bucket.delete(key))
        self.told(key, None)

    def get(self, bucket: FolderBucket, key: str) -> None:
        found = drive(bucket.get(key))
        if found is not None:
            self.told(key, found.body)

    def list(self, bucket: FolderBucket, key: str) -> None:
        # A listed name is durable. The content is read directly from the disk.
        for listed in drive(bucket.list(key)):
            self.told(listed.key, self.disk.process().read(f"/home/bucket/{listed.key}")[0])

    def told(self, key: str, body: bytes | None) -> None:
        self.sure[key], self.perhaps[key] = body, []

    def check(self) -> None:
        bucket = self.open(self.disk.process())
        for key in {*self.sure, *self.perhaps}:
            found = drive(bucket.get(key))
            body = None if found is None else found.body
            allowed = [self.sure.get(key), *self.perhaps.get(key, [])]
            assert body in allowed, f"{key} is {body!r}, and the answers said {allowed}"
        for listed in drive(bucket.list()):
            assert drive(bucket.get(listed.key))
            assert listed.key in self.perhaps


def power_cut_at(nth: int, chance: random.Random) -> bool:
    """Cut the power before the nth call of the run. False if there were fewer calls."""
    run = Run()

    def before(_: SimFiles, __: str) -> None:
        if run.disk.calls == nth:
            run.disk.power_cut(chance)

    run.disk.before = before
    for step in SCRIPT:
        run.take(step)
    fired = run.disk.calls >= nth
    run.disk.before = None
    run.disk.power_cut(chance)
    run.check()
    return fired


def killed_at(nth: int, chance: random.Random, steps_left: int) -> bool:
    """Kill the process that makes the nth call; cut the power after some steps of the other."""
    run = Run()

    def before(files: SimFiles, _: str) -> None:
        if run.disk.calls == nth:
            files.kill()

    run.disk.before = before
    for step in SCRIPT:
        if run.disk.calls >= nth and run.files[step.who].is_alive:
            steps_left -= 1
        if steps_left < 0:
            break
        run.take(step)
    fired = run.disk.calls >= nth
    run.disk.before = None
    run.disk.power_cut(chance)
    run.check()
    return fired


def sweep() -> None:
    for nth in count(1):
        fired = [killed_at(nth, Worst(), steps) for steps in (1, 2, 3, len(SCRIPT))]
        fired.append(power_cut_at(nth, Worst()))
        for seed in range(2):
            fired.append(killed_at(nth, random.Random(seed), steps_left=1))
            fired.append(power_cut_at(nth, random.Random(seed)))
        if not any(fired):
            assert nth > 100
            return


def test_every_answer_holds_after_a_power_cut_at_any_call() -> None:
    sweep()


def test_every_answer_holds_in_random_runs() -> None:
    for seed in range(600):
        chance = random.Random(seed)
        run = Run()
        ends = {chance.randrange(200): chance.choice("ab") for _ in range(2)}

        def before(_: SimFiles, __: str, run: Run = run, ends: dict[int, str] = ends) -> None:
            if run.disk.calls in ends:
                run.files[ends[run.disk.calls]].kill()

        run.disk.before = before
        keys = ["log/1", "log/2", "s/1/x", "s/2/x", "format"]
        verbs = ["create", "create", "update", "delete", "get", "get", "list"]
        for _ in range(chance.randrange(40)):
            verb = chance.choice(verbs)
            run.take(Step(chance.choice("ab"), verb, "" if verb == "list" else chance.choice(keys)))
        run.disk.before = None
        run.disk.power_cut(chance)
        run.check()


# -- what each sync is for -----------------------------------------------------


def believes_what_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderBucket, "_believe", lambda *_: None)


def knows_a_key_whatever_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def knows(self: SyncedNames, path: str, _: Stamp) -> bool:
        return path in self._stamps

    monkeypatch.setattr(SyncedNames, "knows", knows)


def syncs_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFiles, "sync_folder", lambda *_: None)


def syncs_no_name_of_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(self: SyncedNames, folders: Sequence[str]) -> None:
        for folder in folders:
            self._files.sync_folder(folder)

    monkeypatch.setattr(SyncedNames, "sync", sync)


def syncs_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    write = SimFiles.write_synced

    def write_only(self: SimFiles, path: str, body: bytes, mtime_ns: int) -> Stamp:
        stamp = write(self, path, body, mtime_ns)
        self._file(path).is_synced = False
        return stamp

    monkeypatch.setattr(SimFiles, "write_synced", write_only)


def takes_a_missing_object_for_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    delete = FolderBucket.delete

    async def careless(self: FolderBucket, key: str) -> None:
        if await self.get(key) is not None:
            await delete(self, key)

    monkeypatch.setattr(FolderBucket, "delete", careless)


PLANTS = [
    believes_what_it_sees,
    knows_a_key_whatever_its_version,
    syncs_no_folder,
    syncs_no_name_of_a_folder,
    syncs_no_data,
    takes_a_missing_object_for_deleted,
]


@pytest.mark.parametrize("plant", PLANTS)
def test_without_any_one_of_its_syncs_something_is_lost(
    plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="and the answers said"):
        sweep()
