"""`queuectl worker stop`: which workers it stops, leaves alone, or removes as dead."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from casque.cli.main import run
from casque.cli.store import Access
from casque.record import ABSENT, CONFIG, DISMISSAL, WORKER
from casque.rules.operations import DeleteRecord, PutRecord
from casque.stores.sqlite import connection
from casque.system.clock import SystemClock, to_datetime
from casque.worker.registry import process_identity
from casque.worker.registry.entries import (
    SupervisorEntry,
    WorkerEntry,
    place_of,
    supervisor_put,
)
from tests.cli.entries import MINUTE_US, Write, birth_of, entries
from tests.worker.apps import wait_for


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is not a worker."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


# -- which workers are running -----------------------------------------------------


def test_a_dead_worker_is_shown_as_gone_only_on_its_own_host(
    store: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    write(name="dead", pid=ended.pid, birth=1)
    write(name="far", host="far-away", pid=ended.pid, birth=1)
    write(name="boxed", pid=ended.pid, birth=1, machine="another container")
    with Access(store) as access:
        assert sorted(entry.name for entry in access.live_workers()) == ["boxed", "far"]
    assert run(["worker", "list", "--json"]) == 0
    states = {one["name"]: one["state"] for one in json.loads(capsys.readouterr().out)}
    assert states == {"dead": "gone", "far": "working", "boxed": "working"}


def test_a_process_that_was_not_reaped_has_ended() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_identity.vitals(process.pid) is None
    assert process_identity.has_ended(process.pid, None)
    process.wait()
    assert process_identity.has_ended(process.pid, None)


def test_a_signal_is_sent_only_to_the_process_with_the_right_birth(
    sleeper: subprocess.Popen[bytes],
) -> None:
    birth = birth_of(sleeper.pid)
    for wrong in (birth - 1, birth + 1, None):
        assert not process_identity.send(sleeper.pid, wrong, signal.SIGTERM)
    assert sleeper.poll() is None
    assert process_identity.send(sleeper.pid, birth, signal.SIGTERM)
    assert sleeper.wait(60) == -signal.SIGTERM
    assert not process_identity.send(sleeper.pid, birth, signal.SIGTERM)


def test_a_process_stopped_by_sigstop_is_continued_for_the_signal(
    sleeper: subprocess.Popen[bytes],
) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    assert process_identity.send(sleeper.pid, birth_of(sleeper.pid), signal.SIGTERM)
    assert sleeper.wait(60) == -signal.SIGTERM


def test_a_process_name_with_a_parenthesis_is_parsed(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 2 3 (b"
    odd.symlink_to("/bin/sleep")
    process = subprocess.Popen([odd, "1000"])
    try:
        while Path(f"/proc/{process.pid}/comm").read_text()[0] != "a":
            pass  # the new process has not called exec yet
        vitals = process_identity.vitals(process.pid)
        assert vitals is not None
        assert vitals.parent == os.getpid()
    finally:
        process.kill()
        process.wait()


# -- stop --------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["PID"], ["--all"]])
def test_another_process_with_a_reused_pid_is_not_signalled(
    arguments: list[str],
    store: str,
    write: Write,
    sleeper: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(pid=sleeper.pid, birth=birth_of(sleeper.pid) - 1)
    given = [str(sleeper.pid) if one == "PID" else one for one in arguments]
    assert run(["worker", "stop", *given]) == 0
    assert capsys.readouterr().out == f"Removed 1 worker(s) that had died: {sleeper.pid}.\n"
    assert sleeper.poll() is None
    assert entries(store) == []


def test_a_process_that_is_not_the_workers_supervisor_is_not_signalled(
    write: Write, sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    worker = subprocess.Popen(["sleep", "1000"])
    try:
        write(pid=worker.pid, birth=birth_of(worker.pid), supervisor=sleeper.pid)
        assert run(["worker", "stop", "--no-wait"]) == 0
        assert worker.wait(60) == -15, "it has no supervisor to stop it"
    finally:
        worker.kill()
        worker.wait()
    assert sleeper.poll() is None
    capsys.readouterr()


def test_a_worker_of_unknown_birth_is_dismissed_and_not_signalled(
    store: str,
    write: Write,
    sleeper: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(pid=sleeper.pid, birth=None)
    assert run(["worker", "stop", "--no-wait"]) == 0
    assert sleeper.poll() is None
    [entry] = entries(store)
    assert entry.is_dismissed
    assert capsys.readouterr().out == f"Stopping 1 worker(s): {sleeper.pid}.\n"
    assert run(["worker", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "stopping"


def test_a_worker_on_a_thread_is_dismissed_and_not_signalled(
    store: str, write: Write, sleeper: subprocess.Popen[bytes]
) -> None:
    write(pid=sleeper.pid, birth=birth_of(sleeper.pid), obeys_signals=False)
    assert run(["worker", "stop", "--no-wait"]) == 0
    assert entries(store)[0].is_dismissed
    assert sleeper.poll() is None


@pytest.mark.parametrize("off", [0, 1])
def test_only_the_right_supervisor_of_a_dead_worker_is_stopped(
    store: str, write: Write, sleeper: subprocess.Popen[bytes], off: int
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    supervisor = {"supervisor": sleeper.pid, "supervisor_birth": birth_of(sleeper.pid) + off}
    write(pid=ended.pid, birth=1, **supervisor)
    assert run(["worker", "stop", "--no-wait"]) == 0
    if off:
        assert sleeper.poll() is None
    else:
        assert sleeper.wait(60) == -signal.SIGTERM
    assert entries(store) == []


def test_a_storage_that_refuses_writes_does_not_delay_signals(
    tmp_path: Path,
    sleeper: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "COMMIT_DEADLINE_US", 500_000)
    store = f"{tmp_path}/jobs.db"
    ended = subprocess.Popen(["true"])
    ended.wait()
    now = to_datetime(SystemClock().now())
    with Access(store) as access:
        for pid, birth in ((ended.pid, 1), (sleeper.pid, birth_of(sleeper.pid))):
            entry = WorkerEntry(
                name=f"of-{pid}",
                host=socket.gethostname(),
                pid=pid,
                started_at=now,
                beat_at=now,
                concurrency=1,
                queues=None,
                entrypoints=(),
                running=(),
                machine=process_identity.machine(),
                birth=birth,
                obeys_signals=True,
                store=access.store.name,
            )
            value = msgspec.json.encode(entry)
            access.submit(PutRecord(WORKER, entry.name, value, ABSENT, 2 * MINUTE_US))
    with closing(sqlite3.connect(store, isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        assert run(["worker", "stop", "--store", store]) == 0
        another.execute("ROLLBACK")
    assert sleeper.wait(60) == -signal.SIGTERM
    captured = capsys.readouterr()
    assert f"Stopped 1 worker(s): {sleeper.pid}.\n" in captured.out
    assert "still registered" in captured.err


def test_a_silent_worker_on_another_host_is_not_reported_as_stopped(
    store: str, write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casque.worker.registry.entries._LATE_US", 0)
    write(name="far", host="far-away", pid=17, lease_us=1_000_000)
    assert run(["worker", "stop", "--all"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "1 worker(s) may still be running: 17 on far-away." in captured.err


def test_a_worker_that_deletes_its_entry_long_before_it_expires_has_stopped(
    store: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(name="far", host="far-away", pid=17, lease_us=20 * MINUTE_US, presence_us=2 * MINUTE_US)

    def obey() -> None:
        with Access(store) as access:
            wait_for("the order is there", lambda: access.records(DISMISSAL))
            access.submit(DeleteRecord(WORKER, "far", None))

    worker = threading.Thread(target=obey)
    worker.start()
    assert run(["worker", "stop", "--all"]) == 0
    worker.join()
    assert capsys.readouterr().out == "Stopped 1 worker(s): 17 on far-away.\n"


def test_a_worker_with_an_expired_entry_is_named_with_one_that_still_works(
    store: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    far = {"host": "far-away", "supervisor": 16}
    write(name="works", pid=17, **far)
    write(name="silent", pid=18, lease_us=1_000_000, **far)
    supervisor = SupervisorEntry(
        name="supervisor",
        host="far-away",
        pid=16,
        started_at=to_datetime(SystemClock().now()),
        machine=process_identity.machine(),
    )
    with Access(store) as access:
        access.submit(supervisor_put(supervisor, access.store))
    assert run(["worker", "stop", "--all", "--timeout", "4s"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "", "their supervisor still has an entry, so they may still run"
    assert "2 worker(s) may still be running: 17 on far-away, 18 on" in captured.err


def test_workers_on_other_hosts_are_stopped_only_with_all(
    store: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(name="far", host="far-away", pid=17)
    assert run(["worker", "stop"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No workers are running.\n")
    assert "17 on far-away" in out
    assert not entries(store)[0].is_dismissed
    assert run(["worker", "stop", "17"]) == 3
    assert run(["worker", "stop", "--all", "--timeout", "0", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "stopped": [],
        "gone": [],
        "left": [{"name": "far", "host": "far-away", "pid": 17}],
    }
    assert entries(store)[0].is_dismissed
    assert "the PID 17; none is registered" in captured.err


def test_stop_creates_no_queue_and_reports_that_there_is_none(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["worker", "stop"]) == 0
    result = capsys.readouterr()
    assert result.out == "No workers are running.\n"
    assert "there is no queue at" in result.err
    assert "send SIGTERM to their supervisor" in result.err
    assert not Path(store).exists()


def test_a_worker_with_the_store_under_another_path_belongs_to_it(
    store: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For example in a bind mount. A copied store has another identity."""
    with Access(store) as access:
        access.submit(PutRecord(CONFIG, "any", b"1", None))  # creates the store
        name = access.store.name
    elsewhere = {"store": "/another/path", "place": place_of(name)}
    write(name="bound", **elsewhere)
    write(name="copied", **elsewhere | {"place": place_of(str(tmp_path / "copies"))})
    with Access(store) as access:
        assert [one.name for one in access.live_workers()] == ["bound"]
    capsys.readouterr()
