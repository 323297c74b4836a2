"""Commands on a ledger that cannot be written: who only looks is answered, and signals are sent."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from casque import Queue
from tests.cli.control import Control, told_on_a_full_disk
from tests.cli.entries import Write, birth_of
from tests.conformance.untouched import disk

LOOKS = [
    *(("status",), ("list",), ("show", "a"), ("queues",)),
    *(("dlq", "list"), ("dlq", "show", "b"), ("config", "list"), ("config", "get", "max_retries")),
    *(("worker", "list"), ("status", "--json"), ("list", "--json")),
]


@pytest.fixture
def ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Control:
    control = Control(f"{tmp_path}/ledger/", capsys, monkeypatch)
    control.dies("b")
    control.done("enqueue", "--command", "true", "--id", "a")
    control.done("config", "set", "max_retries", "7")
    return control


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_who_only_looks_needs_no_room(ledger: Control, command: tuple[str, ...]) -> None:
    before = disk(Path(ledger.store))
    told = told_on_a_full_disk("--store", ledger.store, *command)
    assert told.code == 0, told.err
    assert told.out == ledger.done(*command)
    assert disk(Path(ledger.store)) == before


@pytest.mark.parametrize("command", [("enqueue", "-c", "true"), ("cancel", "a"), ("pause", "x")])
def test_who_writes_is_told_that_there_is_no_room(
    ledger: Control, command: tuple[str, ...]
) -> None:
    told = told_on_a_full_disk("--store", ledger.store, *command)
    assert (told.code, told.out) == (5, "")
    assert "Make room on its disk" in told.err
    assert [job.id for job in ledger.jobs()] == ["b", "a"]


def test_a_folder_in_which_nothing_is_yet_is_left_so_by_a_look(tmp_path: Path) -> None:
    told = told_on_a_full_disk("--store", str(tmp_path), "status", "--json")
    assert told.code == 0, told.err
    assert told.json["pending"] == 0
    assert disk(tmp_path) == {}


# -- worker stop -------------------------------------------------------------------


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that end by a signal, as workers do."""
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("store", ["ledger/"], indirect=True)
@pytest.mark.parametrize("by_pid", [False, True])
def test_workers_here_are_stopped_though_nothing_can_be_written(
    store: str, write: Write, sleepers: list[subprocess.Popen[bytes]], *, by_pid: bool
) -> None:
    for one in sleepers:
        write(pid=one.pid, birth=birth_of(one.pid))
    pids = [str(one.pid) for one in sleepers] if by_pid else []
    told = told_on_a_full_disk("--store", store, "worker", "stop", "--no-wait", *pids)
    assert told.code == 0, told.err
    assert told.out.startswith("Stopping 2 worker(s): ")
    assert [one.wait(60) for one in sleepers] == [-signal.SIGTERM] * 2


@pytest.mark.parametrize("store", ["ledger/"], indirect=True)
def test_a_worker_that_would_be_replaced_is_not_stopped_alone_if_that_cannot_be_written(
    store: str, write: Write, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    alone, kept = sleepers
    write(pid=kept.pid, birth=birth_of(kept.pid), supervisor=1, supervisor_birth=birth_of(1))
    write(pid=alone.pid, birth=birth_of(alone.pid))
    pids = [str(kept.pid), str(alone.pid)]
    told = told_on_a_full_disk("--store", store, "worker", "stop", "--no-wait", *pids)
    assert (told.code, told.out) == (5, "")
    assert "Make room" in told.err
    assert alone.wait(60) == -signal.SIGTERM
    assert kept.poll() is None


@pytest.mark.parametrize("store", ["ledger/"], indirect=True)
def test_those_that_have_ended_are_not_waited_for_though_their_entries_stay(
    store: str, write: Write, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    for one in sleepers:
        write(pid=one.pid, birth=birth_of(one.pid))
    told = told_on_a_full_disk("--store", store, "worker", "stop")
    assert told.code == 0, told.err
    assert "Stopped 2 worker(s)" in told.out
    assert "still registered" in told.err
    with Queue(store) as queue:
        assert queue.stats().total == 0
