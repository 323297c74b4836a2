"""Commands on a ledger that cannot be written: reads work, and signals are sent."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from casque import Queue
from tests.cli.control import Control, run_process_on_a_full_disk
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
def test_reading_commands_need_no_disk_space(ledger: Control, command: tuple[str, ...]) -> None:
    before = disk(Path(ledger.store))
    result = run_process_on_a_full_disk("--store", ledger.store, *command)
    assert result.code == 0, result.err
    assert result.out == ledger.done(*command)
    assert disk(Path(ledger.store)) == before


@pytest.mark.parametrize("command", [("enqueue", "-c", "true"), ("cancel", "a"), ("pause", "x")])
def test_writing_commands_report_the_full_disk(ledger: Control, command: tuple[str, ...]) -> None:
    result = run_process_on_a_full_disk("--store", ledger.store, *command)
    assert (result.code, result.out) == (5, "")
    assert "Make room on its disk" in result.err
    assert [job.id for job in ledger.jobs()] == ["b", "a"]


def test_reading_an_empty_folder_leaves_it_empty(tmp_path: Path) -> None:
    result = run_process_on_a_full_disk("--store", str(tmp_path), "status", "--json")
    assert result.code == 3, result.err
    assert result.json["pending"] == 0
    assert disk(tmp_path) == {}


# -- worker stop -------------------------------------------------------------------


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that a signal ends, like workers."""
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("store", ["ledger/"], indirect=True)
@pytest.mark.parametrize("by_pid", [False, True])
def test_workers_on_this_host_are_stopped_on_a_full_disk(
    store: str, write: Write, sleepers: list[subprocess.Popen[bytes]], *, by_pid: bool
) -> None:
    for one in sleepers:
        write(pid=one.pid, birth=birth_of(one.pid))
    pids = [str(one.pid) for one in sleepers] if by_pid else []
    result = run_process_on_a_full_disk("--store", store, "worker", "stop", "--no-wait", *pids)
    assert result.code == 0, result.err
    assert result.out.startswith("Stopping 2 worker(s): ")
    assert [one.wait(60) for one in sleepers] == [-signal.SIGTERM] * 2


@pytest.mark.parametrize("store", ["ledger/"], indirect=True)
def test_one_worker_of_a_supervisor_is_not_stopped_if_its_dismissal_cannot_be_written(
    store: str, write: Write, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    alone, kept = sleepers
    write(pid=kept.pid, birth=birth_of(kept.pid), supervisor=1, supervisor_birth=birth_of(1))
    write(pid=alone.pid, birth=birth_of(alone.pid))
    pids = [str(kept.pid), str(alone.pid)]
    result = run_process_on_a_full_disk("--store", store, "worker", "stop", "--no-wait", *pids)
    assert (result.code, result.out) == (5, "")
    assert "Make room" in result.err
    assert alone.wait(60) == -signal.SIGTERM
    assert kept.poll() is None


@pytest.mark.parametrize("store", ["ledger/"], indirect=True)
def test_stop_does_not_wait_for_ended_workers_whose_entries_stay(
    store: str, write: Write, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    for one in sleepers:
        write(pid=one.pid, birth=birth_of(one.pid))
    result = run_process_on_a_full_disk("--store", store, "worker", "stop")
    assert result.code == 0, result.err
    assert "Stopped 2 worker(s)" in result.out
    assert "still registered" in result.err
    with Queue(store) as queue:
        assert queue.stats().total == 0
