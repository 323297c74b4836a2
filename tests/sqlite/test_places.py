"""Where a queue can be, and where it cannot: addresses, permissions, network drives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casque import InvalidError, NewJob, Queue, StorageError, open_store
from casque.stores.sqlite.store import SqliteStore
from casque.system import local_disk as disks
from casque.testing.rig import FLAVOURS, Flavour
from tests.conformance.untouched import KINDS, ask_as_nobody, disk
from tests.sqlite.refusals import by_turns, make_queue, refuses
from tests.sqlite.waiting import closed_behind

THREE_SLASHES = r"sqlite:///relative\.db.*sqlite:////absolute/path\.db"


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    flavour: Flavour = request.param
    return flavour


# -- addresses -----------------------------------------------------------------

BAD_ADDRESSES: dict[str, tuple[Any, str]] = {
    "no path": ("sqlite://", THREE_SLASHES),
    "no name": ("sqlite:///", THREE_SLASHES),
    "two slashes": ("sqlite://jobs.db", THREE_SLASHES),
    "a host": ("sqlite://host/jobs.db", THREE_SLASHES),
    "an unknown durability": (
        "sqlite:///jobs.db?durability=maybe",
        "durability must be full .* or normal .*, not 'maybe'",
    ),
    "no durability": (
        "sqlite:///jobs.db?durability=",
        "durability must be full .* or normal .*, not",
    ),
    "an unknown option": ("sqlite:///jobs.db?foo=1", "no option foo.*`durability`"),
    "one option too many": ("sqlite:///jobs.db?durability=full&foo=1", "no option foo"),
    "a fragment": ("sqlite:///jobs.db#here", "%23"),
    "memory": ("sqlite:///:memory:", "memory://"),
    "a NUL": ("sqlite:///jobs%00.db", "NUL|null"),
    "a lone surrogate": ("jobs\ud800.db", "surrogate"),
    "nobody's home": ("~nobody-of-that-name/jobs.db", "home"),
}


@pytest.mark.parametrize("kind", [*KINDS, open_store])
@pytest.mark.parametrize("name", BAD_ADDRESSES)
def test_a_bad_address_is_refused(
    kind: Callable[[Any], object], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address, says = BAD_ADDRESSES[name]
    with pytest.raises(InvalidError, match=says) as refused:
        kind(address)
    str(refused.value).encode("utf-8", "backslashreplace")
    assert disk(tmp_path) == {}


GOOD_ADDRESSES: dict[str, tuple[str, str]] = {
    "relative": ("sqlite:///jobs.db", "jobs.db"),
    "absolute": ("sqlite:///{folder}/jobs.db", "jobs.db"),
    "an encoded blank": ("sqlite:///my%20jobs.db", "my jobs.db"),
    "any ending": ("sqlite:///jobs", "jobs"),
    "an option": ("sqlite:///jobs.db?durability=normal", "jobs.db"),
    "a path": ("{folder}/jobs.sqlite3", "jobs.sqlite3"),
    "a relative path": ("jobs.sqlite", "jobs.sqlite"),
    "characters that mean something in a URL": ("what?#now%20.db", "what?#now%20.db"),
    "folders that are not there yet": ("sqlite:///a/b/jobs.db", "a/b/jobs.db"),
}


@pytest.mark.parametrize("name", GOOD_ADDRESSES)
def test_an_address_names_the_file_that_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address, place = GOOD_ADDRESSES[name]
    with Queue(address.format(folder=tmp_path)) as q:
        assert disk(tmp_path) == {}  # nothing is opened before it is used
        monkeypatch.chdir("/")
        q.enqueue("e", id="here")
        assert q.store.name == str(tmp_path / place)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / place]


def test_a_link_opens_the_same_queue(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to("jobs.db")
    with Queue(tmp_path / "link.db") as one, Queue(tmp_path / "jobs.db") as other:
        one.enqueue("e", id="here")
        assert other.get("here") is not None
        assert not (tmp_path / "link.db-wal").exists()


BY_MOUNT = """
import sys
from casque import InvalidError, Queue
try:
    with Queue(sys.argv[1]) as q:
        q.enqueue("e")
except InvalidError as error:
    print(error)
"""


def _fails(command: list[str]) -> bool:
    return subprocess.run(command, check=False).returncode != 0


def test_a_file_with_another_name_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "jobs.db", tmp_path / "other" / "jobs.db"
    other.parent.mkdir()
    with Queue(path) as q:
        q.enqueue("e", id="there")
    other.hardlink_to(path)
    for name in (path, other):
        with Queue(name) as q, pytest.raises(InvalidError, match="another name"):
            q.enqueue("e")
    other.unlink()
    with Queue(path) as q:
        assert q.get("there") is not None
    other.touch()
    mounted = 'mount --bind "$1" "$2" && exec "$3" -c "$4" "$2"'
    places = [str(path), str(other), sys.executable]
    command = ["unshare", "-rm", "sh", "-c", mounted, "sh", *places, BY_MOUNT]
    if shutil.which("unshare") is None or _fails([*command[:2], "true"]):
        pytest.skip("nothing can be mounted here")
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "mounted by itself" in ran.stdout


def test_a_link_to_itself_is_refused_at_the_latest_on_use(tmp_path: Path) -> None:
    (tmp_path / "loop.db").symlink_to("loop.db")
    with (
        pytest.raises((InvalidError, StorageError), match=r"loop\.db"),
        Queue(tmp_path / "loop.db") as q,
    ):
        q.enqueue("e")


def test_durability_is_as_the_address_says(tmp_path: Path) -> None:
    for query, synchronous in (("", 2), ("?durability=full", 2), ("?durability=normal", 1)):
        store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}{query}")
        assert isinstance(store, SqliteStore)
        with closed_behind(store), Queue(store) as q:
            q.enqueue("e")
            connection = store._writer.opened
            assert connection is not None
            assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_deleted_content_is_overwritten_in_its_page_however_sqlite_was_built(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    with Queue(path) as q:
        q.enqueue_many([NewJob("e", b"somebody's secret"), NewJob("e", b"another's")])
        [job] = q.dequeue()
        q.ack(job)
    content = path.read_bytes()  # the last close has moved the log into the file
    assert b"another's" in content
    assert b"somebody's secret" not in content


# -- network drives ------------------------------------------------------------


def mounted(folder: Path, kind: str) -> str:
    """A line of /proc/self/mountinfo."""
    return f"36 35 98:0 / {folder} rw,noatime master:1 - {kind} server:/export rw,errors=continue\n"


@by_turns("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs"])
def test_a_network_drive_is_refused(
    flavour: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = tmp_path / "remote"
    folder.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(mounted(Path("/"), "ext4") + mounted(folder, kind))
    monkeypatch.setattr(disks, "_MOUNTS", mounts)
    refuses(flavour, folder, rf"network drive \({kind}\).*local disk.*use a bucket", InvalidError)


def test_a_local_disk_beside_a_network_drive_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(mounted(tmp_path, "nfs") + mounted(tmp_path / "local", "ext4"))
    monkeypatch.setattr(disks, "_MOUNTS", mounts)
    with Queue(tmp_path / "local" / "jobs.db") as q:
        q.enqueue("e")


# -- permissions ---------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter; only its owner may enter tmp_path."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
        Path(name).chmod(0o755)


def check_refused(answer: list[Any], path: Path) -> None:
    kind, message, outcome_unknown = answer
    assert (kind, outcome_unknown) == ("StorageError", False)
    assert str(path) in message
    assert "nothing was written" in message


# One flavour each: all three use the same store, and each needs a new process.
@pytest.mark.parametrize("flavour", ["queue"])
def test_a_folder_that_may_not_be_written_to_is_left_alone(
    flavour: Flavour, tmp_path: Path, folder: Path
) -> None:
    make_queue(folder)
    folder.chmod(0o555)
    paths = [folder / "jobs.db", folder / "new.db", folder / "sub" / "new.db"]
    before = disk(folder)
    for path, answers in zip(
        paths, ask_as_nobody(flavour, tmp_path / "warm.db", *paths), strict=True
    ):
        for answer in answers.values():
            check_refused(answer, path)
            assert "writ" in answer[1].partition("nothing was written")[2]  # the remedy
    assert disk(folder) == before


@pytest.mark.parametrize("flavour", ["direct"])
def test_a_file_that_may_not_be_written_is_left_alone(
    flavour: Flavour, tmp_path: Path, folder: Path
) -> None:
    content = make_queue(folder)
    path = folder / "jobs.db"
    path.chmod(0o444)
    folder.chmod(0o777)
    [answers] = ask_as_nobody(flavour, tmp_path / "warm.db", path)
    for name in ("enqueue", "dequeue"):
        check_refused(answers[name], path)
        assert "permissions" in answers[name][1]
    assert path.read_bytes() == content


@pytest.mark.parametrize("flavour", ["broker"])
def test_a_file_that_may_not_be_read_is_left_alone(
    flavour: Flavour, tmp_path: Path, folder: Path
) -> None:
    content = make_queue(folder)
    path = folder / "jobs.db"
    path.chmod(0o200 if os.geteuid() else 0)
    folder.chmod(0o777)
    [answers] = ask_as_nobody(flavour, tmp_path / "warm.db", path)
    path.chmod(0o644)
    for answer in answers.values():
        check_refused(answer, path)
        assert "file" in answer[1].partition("nothing was written")[2]  # it is not the folder
    assert path.read_bytes() == content
