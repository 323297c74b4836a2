"""LocalFileSystemStorage: what reaches the disk, in which order, and the state after a kill."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from casque import CASConflictError, DirectQueue, LocalFileSystemStorage, StorageError
from tests.buckets.forks import killed_at_each, quick_folder


def write(storage: LocalFileSystemStorage, content: bytes, if_match: str | None) -> str:
    return asyncio.run(storage.write(content, if_match))


class Disk:
    """Records every sync and rename of the adapter."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        fsync, replace = os.fsync, Path.replace

        def noted_fsync(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self.calls.append(f"sync {'folder' if path.is_dir() else path.name}")
            fsync(descriptor)

        def noted_replace(path: Path, target: Path) -> Path:
            self.calls.append(f"rename {path.name} to {target.name}")
            return replace(path, target)

        patch.setattr(os, "fsync", noted_fsync)
        patch.setattr(Path, "replace", noted_replace)


def test_a_write_is_synced_before_it_is_renamed_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalFileSystemStorage(tmp_path / "queue.json")
    disk = Disk(monkeypatch)
    etag = write(storage, b"one", None)
    write(storage, b"two", etag)
    once = ["sync .queue.json.tmp", "rename .queue.json.tmp to queue.json", "sync folder"]
    assert disk.calls == once * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".queue.json.gate",
        ".queue.json.lock",
        "queue.json",
    ]


def test_every_acknowledged_commit_syncs_the_file_and_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def test() -> None:
        q = DirectQueue(tmp_path / "queue.json")
        await q.enqueue("e", id="a")
        [job] = await q.dequeue()
        await q.ack(job)

    asyncio.run(test())
    assert len([call for call in disk.calls if call == "sync .queue.json.tmp"]) == 3
    assert len([call for call in disk.calls if call == "sync folder"]) == 3


def test_a_file_renamed_by_another_process_is_synced_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queue.json"
    path.write_bytes(b"renamed by a process that died before its sync")
    storage = LocalFileSystemStorage(path)
    disk = Disk(monkeypatch)
    asyncio.run(storage.read())
    assert disk.calls == ["sync folder"]
    asyncio.run(storage.read())
    assert disk.calls == ["sync folder"]


def test_folders_made_on_the_way_are_synced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    write(LocalFileSystemStorage(tmp_path / "a" / "b" / "queue.json"), b"one", None)
    assert disk.calls[:2] == ["sync folder", "sync folder"]
    assert (tmp_path / "a" / "b" / "queue.json").read_bytes() == b"one"


def test_a_stale_etag_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    storage = LocalFileSystemStorage(tmp_path / "queue.json")
    etag = write(storage, b"one", None)
    for wrong in (None, "other"):
        with pytest.raises(CASConflictError):
            write(storage, b"two", wrong)
    assert asyncio.run(storage.read()) == (b"one", etag)


def test_a_half_written_temporary_file_is_never_read(tmp_path: Path) -> None:
    storage = LocalFileSystemStorage(tmp_path / "queue.json")
    etag = write(storage, b"whole", None)
    (tmp_path / ".queue.json.tmp").write_bytes(b"ha")
    assert asyncio.run(storage.read()) == (b"whole", etag)
    write(storage, b"next", etag)
    assert (tmp_path / "queue.json").read_bytes() == b"next"


def test_the_mode_of_the_file_and_a_link_to_it_survive_a_write(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    write(LocalFileSystemStorage(real), b"one", None)
    real.chmod(0o600)
    link = tmp_path / "link.json"
    link.symlink_to(real)
    storage = LocalFileSystemStorage(link)
    _, etag = asyncio.run(storage.read())
    write(storage, b"two", etag)
    assert link.is_symlink()
    assert real.read_bytes() == b"two"
    assert real.stat().st_mode & 0o777 == 0o600


def test_a_disk_that_cannot_sync_the_folder_leaves_the_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def no_folder(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_dir():
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", no_folder)
    with pytest.raises(StorageError, match="Input/output error") as failure:
        write(LocalFileSystemStorage(tmp_path / "queue.json"), b"one", None)
    assert failure.value.outcome_unknown


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    # A file size limit simulates the full disk: the write fails in the same way.
    code = """
import asyncio, resource, signal, sys
from casque import DirectQueue, StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    q = DirectQueue(sys.argv[1])
    await q.enqueue("e", b"small", id="small")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        await q.enqueue("e", b"x" * 100_000, id="large")
    except StorageError as error:
        print(error.outcome_unknown, error)
    print([job.id for job in (await q.read_state()).jobs])
asyncio.run(main())
"""
    done = run_child(code, str(tmp_path / "queue.json"))
    first, second = done.stdout.splitlines()
    assert first.startswith("False cannot write")
    assert "has free space" in first
    assert second == "['small']"


KILLED = """
import os, signal
from pathlib import Path
import casque.queues.commit_asyncio, casque.queues.runner_asyncio
import casque.stores.document.store, casque.stores.threaded
from casque import Queue
from casque.adapters.storage import filesystem

calls = 0

def deadly(call):
    def wrapped(*args):
        global calls
        calls += 1
        fatal = calls == int(os.environ["KILL_AT"])
        if fatal and MOMENT == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = call(*args)
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    return wrapped

def run(place):
    # Every call of the adapter that changes the disk or syncs a change.
    os.fsync, os.open, Path.replace = deadly(os.fsync), deadly(os.open), deadly(Path.replace)
    say = lambda *words: print(*words, flush=True)
    with Queue(f"{place}/queue.json") as q:
        for name in "ab":
            say("enqueue", name)
            q.enqueue("e", id=name)
            say("enqueued", name)
        for _ in "ab":
            [job] = q.dequeue()
            say("ack", job.id)
            q.ack(job)
            say("acked", job.id)
    say("end")
"""


def run_child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_at_any_disk_call_loses_nothing_acknowledged(moment: str) -> None:
    with quick_folder() as folder:
        places = list(killed_at_each(folder, f"MOMENT = {moment!r}\n{KILLED}", {}))
        assert len(places) > 20  # the sweep covered the calls of a whole run
        for place in places:
            said = (place / "said").read_text()
            check_after_death(place / "queue.json", said)
            assert ("end" in said) == (place is places[-1])


def check_after_death(path: Path, said: str) -> None:
    told: dict[str, set[str]] = {"enqueue": set(), "enqueued": set(), "ack": set(), "acked": set()}
    for line in said.splitlines():
        verb, *names = line.split()
        if names:
            told[verb].update(names)

    async def stored() -> Any:
        return await DirectQueue(path).read_state()

    there = {job.id for job in asyncio.run(stored()).jobs}
    assert told["enqueued"] - told["ack"] <= there
    assert there <= told["enqueue"] - told["acked"]
