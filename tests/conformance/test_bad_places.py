"""A wrong address or file raises an error that helps, and nothing is changed.

Each table lists wrong places and what the message must contain: the place and
the remedy. These tests are not in the suite, because a user's port has neither a
path nor a format that could be wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from casque import (
    App,
    CasqueError,
    CorruptError,
    InvalidError,
    NewJob,
    Queue,
    StorageError,
    open_store,
)
from casque.testing import Rig
from casque.testing.rig import FLAVOURS, Flavour
from tests.conformance.harnesses import DocumentHarness
from tests.conformance.untouched import KINDS, SECOND, ask_as_nobody, disk

ADDRESSES: dict[str, tuple[Any, str]] = {
    "an unknown scheme": ("redis://host/0", "no store for scheme 'redis'.*memory://"),
    "a password": ("redis://user:hunter2@host/0", "no store for scheme 'redis'"),
    "a path in memory": ("memory://jobs", "memory:// takes no path"),
    "a host": ("json://host/queue.json", r"json:///relative\.json"),
    "two slashes": ("json://queue.json", r"json:///relative\.json"),
    "no path": ("json:///", r"json:///relative\.json"),
    "options": ("json:///queue.json?durability=normal", "takes no options"),
    "half a bracket": ("json://[::1/queue.json", r"json:///relative\.json|\.json"),
    "an unknown ending": ("notes.txt", "does not say what kind.*json"),
    "an empty address": ("", "does not say what kind.*json"),
    "a number": (3, "not a store.*URL"),
    "nothing": (None, "not a store.*URL"),
    "a queue": (Queue("memory://"), "not a store.*URL"),
    "a NUL": ("queue\0.json", "NUL|null"),
    "a lone surrogate": ("queue\ud800.json", "surrogate"),
    "nobody's home": ("~nobody-of-that-name/queue.json", "home"),
}


@pytest.mark.parametrize("kind", [*KINDS, open_store, App])
@pytest.mark.parametrize("name", ADDRESSES)
def test_a_bad_address_is_refused(
    kind: Callable[..., object], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address, says = ADDRESSES[name]
    with pytest.raises(InvalidError, match=says) as refused:
        kind(address)
    assert "hunter2" not in str(refused.value)
    assert disk(tmp_path) == {}


def test_circular_links_are_refused(flavour: Flavour, tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to(tmp_path / "b.json")
    (tmp_path / "b.json").symlink_to(tmp_path / "a.json")
    kind = KINDS[FLAVOURS.index(flavour)]
    with pytest.raises((InvalidError, StorageError), match=r"a\.json"):
        kind(tmp_path / "a.json")


def _a_queue_file(folder: Path) -> bytes:
    """Write a queue file with a few jobs. Returns its bytes."""
    with Queue(folder / "queue.json") as q:
        q.enqueue_many([NewJob("e", b"data", queue=name) for name in ("a", "b", "c")])
        q.nack(q.dequeue()[0], error="no luck")
    return (folder / "queue.json").read_bytes()


OPERATIONS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "enqueue": lambda q: q.enqueue("e"),
    "enqueue_many": lambda q: q.enqueue_many([NewJob("e")]),
    "dequeue": lambda q: q.dequeue(),
    "ack": lambda q: q.ack("x"),
    "cancel": lambda q: q.cancel("x"),
    "purge": lambda q: q.purge(older_than=SECOND),
    "pause": lambda q: q.pause("a"),
    "get": lambda q: q.get("x"),
    "peek": lambda q: q.peek(),
    "stats": lambda q: q.stats(),
    "queues": lambda q: q.queues(),
    "read_state": lambda q: q.read_state(),
}


@asynccontextmanager
async def _opened(flavour: Flavour, folder: Path) -> AsyncIterator[Any]:
    rig = Rig(DocumentHarness(folder), flavour)
    try:
        yield await rig.worker()
    finally:
        await rig.close()


def _breaks(
    flavour: Flavour, folder: Path, says: str, error: type[CasqueError] = CorruptError
) -> None:
    """Check that every operation on the file raises the error and changes nothing in the folder."""

    async def run() -> None:
        before = disk(folder)
        async with _opened(flavour, folder) as q:
            for call in OPERATIONS.values():
                with pytest.raises(error, match=f"(?s){says}") as broken:
                    await call(q)
                assert str(folder / "queue.json") in str(broken.value)
                assert not getattr(broken.value, "outcome_unknown", False)
                assert disk(folder) == before

    asyncio.run(run())


def _holding(*jobs: dict[str, str]) -> bytes:
    """A document with these jobs: each is a good job with the given fields replaced."""
    good = {"id": "x", "entrypoint": "e", "payload": "", "status": "queued", "priority": 0}
    times = {"created_at": "2020-01-01T00:00:00+00:00", "heartbeat_at": None}
    return json.dumps({"version": 1, "jobs": [{**good, **times, **job} for job in jobs]}).encode()


NOT_OURS: dict[str, bytes] = {
    "text": b"hello",
    "bytes": bytes(range(256)),
    "another program's JSON": b'{"name": "left-pad", "version": "1.3.0"}',
    "a list": b"[]",
    "a number": b"1",
    "no jobs": b'{"version": 1}',
    "spaces": b"  \n",
    "nested too deep": b'{"version": 1, "jobs": [], "casque": {"a": ' + b"[" * 100_000,
    "a job without an entrypoint": b'{"version": 1, "jobs": [{"id": "x"}]}',
    "an id twice": _holding({}, {}),
    "an unknown status": _holding({"status": "sleeping"}),
    "a time without a zone": _holding({"created_at": "2020-01-01T00:00:00"}),
    "a payload that is not base64": _holding({"payload": "?"}),
}
LEAVE_IT = "Nothing was overwritten"


@pytest.mark.parametrize("name", NOT_OURS)
def test_a_file_that_is_not_ours_is_left_alone(flavour: Flavour, tmp_path: Path, name: str) -> None:
    (tmp_path / "queue.json").write_bytes(NOT_OURS[name])
    _breaks(flavour, tmp_path, f"{LEAVE_IT}.*choose another path.*from a backup")


@pytest.mark.parametrize("part", range(8))
def test_a_truncated_file_is_left_alone(flavour: Flavour, tmp_path: Path, part: int) -> None:
    content = _a_queue_file(tmp_path)
    cut = max(part * len(content) // 8, 1) if part < 7 else len(content) - 1
    (tmp_path / "queue.json").write_bytes(content[:cut])
    _breaks(flavour, tmp_path, f"{LEAVE_IT}.*restore it from a backup")


def test_an_empty_file_is_left_alone(flavour: Flavour, tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_bytes(b"")
    _breaks(flavour, tmp_path, f"empty.*{LEAVE_IT}.*Restore it from a backup.*delete it")


@pytest.mark.parametrize("other", [{}, {"jobs": {"x": {}}}, {"version": "2.0"}])
def test_a_file_of_a_newer_casque_is_left_alone(
    flavour: Flavour, tmp_path: Path, other: dict[str, Any]
) -> None:
    document = json.loads(_a_queue_file(tmp_path))
    document["casque"]["format"] += 1
    (tmp_path / "queue.json").write_text(json.dumps({**document, **other}))
    _breaks(flavour, tmp_path, f"newer casque.*{LEAVE_IT}.*Upgrade casque")


def test_a_queue_goes_on_once_its_file_is_restored(flavour: Flavour, tmp_path: Path) -> None:
    content = _a_queue_file(tmp_path)

    async def run() -> None:
        async with _opened(flavour, tmp_path) as q:
            (tmp_path / "queue.json").write_bytes(content[:100])
            with pytest.raises(CorruptError):
                await q.enqueue("e")
            (tmp_path / "queue.json").write_bytes(content)
            await q.enqueue("e")
            assert (await q.stats()).total == 4

    asyncio.run(run())


def test_a_folder_in_the_place_of_the_file_is_left_alone(flavour: Flavour, tmp_path: Path) -> None:
    (tmp_path / "queue.json").mkdir()
    (tmp_path / "queue.json" / "kept").write_text("kept")
    _breaks(flavour, tmp_path, "[Ii]s a directory", StorageError)


def test_a_file_in_the_place_of_the_folder_is_left_alone(flavour: Flavour, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    _breaks(flavour, tmp_path / "file", "Check that its folder is a directory", StorageError)
    assert disk(tmp_path) == {"file": b"kept"}


@pytest.mark.parametrize("place", [".queue.json.lock", ".queue.json.tmp"])
def test_a_folder_in_the_place_of_a_file_beside_it_is_left_alone(
    flavour: Flavour, tmp_path: Path, place: str
) -> None:
    _a_queue_file(tmp_path)
    (tmp_path / place).unlink(missing_ok=True)
    (tmp_path / place).mkdir()

    async def run() -> None:
        before = disk(tmp_path)
        async with _opened(flavour, tmp_path) as q:
            assert (await q.stats()).total == 3
            for name in ("enqueue", "dequeue", "pause"):
                with pytest.raises(StorageError, match="Check that its folder") as refused:
                    await OPERATIONS[name](q)
                assert not refused.value.outcome_unknown
                assert disk(tmp_path) == before

    asyncio.run(run())


SECRET = 0o200 if os.geteuid() else 0


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that may be read but not written. Not tmp_path, which only its owner may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _a_queue_file(folder)
        (folder / "secret.json").write_bytes((folder / "queue.json").read_bytes())
        (folder / "secret.json").chmod(SECRET)
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


def _all_of(read_only: Path) -> dict[str, bytes | None]:
    """Everything in the folder, also the secret file, which its owner may not read either."""
    secret = read_only / "secret.json"
    secret.chmod(0o600)
    try:
        return disk(read_only)
    finally:
        secret.chmod(SECRET)


def test_a_folder_that_cannot_be_written_to_is_left_alone(
    flavour: Flavour, tmp_path: Path, read_only: Path
) -> None:
    paths = [read_only / name for name in ("queue.json", "new.json", "secret.json", "sub/new.json")]
    before = _all_of(read_only)
    there, new, secret, below = ask_as_nobody(flavour, tmp_path / "warm.json", *paths)
    assert there["stats"][0] == new["stats"][0] == below["stats"][0] == "Stats"
    assert new["dequeue"][0] == below["dequeue"][0] == "list"  # there is nothing to write
    refused = [there["enqueue"], there["dequeue"], new["enqueue"], below["enqueue"]]
    for kind, message, outcome_unknown in [*refused, *secret.values()]:
        assert (kind, outcome_unknown) == ("StorageError", False)
        assert str(read_only) in message
        assert "Permission denied" in message
        assert "is writable" in message
    assert _all_of(read_only) == before
