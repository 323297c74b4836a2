"""`queuectl worker …` on entries that a test has written, and on values that cannot be."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casque.cli.access import Access
from casque.cli.fleet import ago
from casque.cli.main import run
from casque.cli.plan import Plan
from casque.clock import MICROSECOND, SystemClock, to_datetime
from casque.operations import PutRecord
from casque.record import ABSENT, CONFIG, MANAGER, WORKER
from casque.settings import Settings, encoded
from casque.worker import presence
from casque.worker.registry import WorkerEntry, live_workers, worker_entries

KEYS = {
    "name",
    "host",
    "pid",
    "manager",
    "queues",
    "entrypoints",
    "concurrency",
    "running",
    "started_at",
    "beat_at",
    "lease_seconds",
    "state",
}
MINUTE_US = 60_000_000
STORES = ("jobs.db", "queue.json", "ledger/")

Write = Callable[..., WorkerEntry]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    address = f"{tmp_path}/{request.param}"
    monkeypatch.setenv("CASQUE_STORE", address)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return address


@pytest.fixture
def write(store: str) -> Write:
    """Writes the entry of a worker: of this very process, unless it is told another."""

    def written(age_us: int = 0, **changes: Any) -> WorkerEntry:
        vitals = presence.vitals(os.getpid())
        assert vitals is not None
        now = to_datetime(SystemClock().now())
        given: dict[str, Any] = {
            "name": f"{socket.gethostname()}:{changes.get('pid', os.getpid())}",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": now - timedelta(hours=2),
            "beat_at": now - age_us * MICROSECOND,
            "concurrency": 4,
            "queues": None,
            "entrypoints": ("shell",),
            "running": ("job1",),
            "manager": None,
            "machine": presence.machine(),
            "birth": vitals.birth,
            "obeys_signals": True,
        }
        entry = WorkerEntry(**(given | changes))
        with Access(store) as access:
            value = msgspec.json.encode(entry)
            access.submit(PutRecord(WORKER, entry.name, value, ABSENT, 2 * MINUTE_US))
        return entry

    return written


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is nobody's worker."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def birth_of(pid: int) -> int:
    vitals = presence.vitals(pid)
    assert vitals is not None
    return vitals.birth


def entries(store: str) -> list[WorkerEntry]:
    with Access(store) as access:
        return worker_entries(access.records(WORKER))


# -- list --------------------------------------------------------------------------


def test_no_workers_are_told_of_in_words_and_as_json(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["worker", "list"]) == 0
    assert run(["worker", "list", "--json"]) == 0
    assert capsys.readouterr().out == "No workers are running.\n[]\n"


def test_the_table_fits_into_80_columns(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write(manager=4_000_001, queues=("mail", "reports"))
    write(name="far", host="build-machine-17.example.org", pid=4_000_002, age_us=MINUTE_US)
    assert run(["worker", "list"]) == 0
    out = capsys.readouterr().out
    assert "Workers" in out.splitlines()[0]
    assert max(map(len, out.splitlines())) <= 80
    for word in (str(os.getpid()), "4000001", "mail", "1 of 4", "2h ago", "1m ago"):
        assert word in out


def test_the_keys_of_its_json_stay(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write()
    assert run(["--json", "worker", "list"]) == 0
    [told] = json.loads(capsys.readouterr().out)
    assert set(told) == KEYS
    assert (told["pid"], told["running"], told["lease_seconds"]) == (os.getpid(), ["job1"], 60)
    assert told["beat_at"].endswith("Z")
    assert told["state"] == "working"


def test_a_host_name_does_not_speak_to_the_terminal(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(name="odd", host="\x1b[2Jodd")
    assert run(["worker", "list"]) == 0
    assert run(["worker", "stop"]) == 0
    assert "\x1b" not in capsys.readouterr().out


# -- who is there ------------------------------------------------------------------


def test_one_that_died_here_is_gone_and_one_elsewhere_is_not_judged(
    store: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    write(name="dead", pid=ended.pid, birth=1)
    write(name="far", host="far-away", pid=ended.pid, birth=1)
    write(name="boxed", pid=ended.pid, birth=1, machine="another container")
    assert sorted(entry.name for entry in live_workers(entries(store))) == ["boxed", "far"]
    assert run(["worker", "list", "--json"]) == 0
    states = {one["name"]: one["state"] for one in json.loads(capsys.readouterr().out)}
    assert states == {"dead": "gone", "far": "working", "boxed": "working"}


def test_a_process_that_was_not_reaped_has_ended() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert presence.vitals(process.pid) is None
    assert presence.has_ended(process.pid, None)
    process.wait()
    assert presence.has_ended(process.pid, None)


def test_a_signal_goes_to_the_process_that_is_meant_or_to_none(
    sleeper: subprocess.Popen[bytes],
) -> None:
    birth = birth_of(sleeper.pid)
    for wrong in (birth - 1, birth + 1, None):
        assert not presence.send(sleeper.pid, wrong, signal.SIGTERM)
    assert sleeper.poll() is None
    assert presence.send(sleeper.pid, birth, signal.SIGTERM)
    assert sleeper.wait(60) == -signal.SIGTERM
    assert not presence.send(sleeper.pid, birth, signal.SIGTERM)


def test_one_that_is_stopped_by_its_terminal_goes_on_to_heed_a_signal(
    sleeper: subprocess.Popen[bytes],
) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    assert presence.send(sleeper.pid, birth_of(sleeper.pid), signal.SIGTERM)
    assert sleeper.wait(60) == -signal.SIGTERM


def test_a_name_with_a_parenthesis_does_not_confuse(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 2 3 (b"
    odd.symlink_to("/bin/sleep")
    process = subprocess.Popen([odd, "1000"])
    try:
        while Path(f"/proc/{process.pid}/comm").read_text()[0] != "a":
            pass  # it is still the fork
        vitals = presence.vitals(process.pid)
        assert vitals is not None
        assert vitals.parent == os.getpid()
    finally:
        process.kill()
        process.wait()


# -- stop --------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["PID"], ["--all"]])
def test_another_process_that_got_the_number_is_not_shot(
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


def test_a_manager_is_not_shot_that_is_not_the_workers_own(
    write: Write, sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    worker = subprocess.Popen(["sleep", "1000"])
    try:
        write(pid=worker.pid, birth=birth_of(worker.pid), manager=sleeper.pid)
        assert run(["worker", "stop", "--no-wait"]) == 0
        assert worker.wait(60) == -15, "it has nobody else to tell it"
    finally:
        worker.kill()
        worker.wait()
    assert sleeper.poll() is None
    capsys.readouterr()


def test_one_here_that_cannot_be_told_apart_is_dismissed_and_not_shot(
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
    assert capsys.readouterr().out == f"Told 1 worker(s) to stop: {sleeper.pid}.\n"
    assert run(["worker", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "stopping"


def test_one_on_a_thread_of_another_program_is_dismissed_and_not_shot(
    store: str, write: Write, sleeper: subprocess.Popen[bytes]
) -> None:
    write(pid=sleeper.pid, birth=birth_of(sleeper.pid), obeys_signals=False)
    assert run(["worker", "stop", "--no-wait"]) == 0
    assert entries(store)[0].is_dismissed
    assert sleeper.poll() is None


@pytest.mark.parametrize("off", [0, 1])
def test_the_manager_of_one_that_died_is_stopped_and_nobody_else(
    store: str, write: Write, sleeper: subprocess.Popen[bytes], off: int
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    manager = {"manager": sleeper.pid, "manager_birth": birth_of(sleeper.pid) + off}
    write(pid=ended.pid, birth=1, **manager)
    assert run(["worker", "stop", "--no-wait"]) == 0
    if off:
        assert sleeper.poll() is None
    else:
        assert sleeper.wait(60) == -signal.SIGTERM
    assert entries(store) == []


def test_a_storage_that_takes_nothing_does_not_hold_up_a_signal(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
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
                machine=presence.machine(),
                birth=birth,
                obeys_signals=True,
            )
            value = msgspec.json.encode(entry)
            access.submit(PutRecord(WORKER, entry.name, value, ABSENT, 2 * MINUTE_US))
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert run(["worker", "stop", "--store", store]) == 0
        connection.execute("ROLLBACK")
    assert sleeper.wait(60) == -signal.SIGTERM
    captured = capsys.readouterr()
    assert f"Stopped 1 worker(s): {sleeper.pid}.\n" in captured.out
    assert "still registered" in captured.err


def test_an_entry_that_cannot_be_read_breaks_nothing(
    store: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    with Access(store) as access:
        for kind in (WORKER, MANAGER):
            access.submit(PutRecord(kind, "odd\x1b", b'{"name": "odd", "v2": true}', ABSENT))
    for command in (["status"], ["worker", "list"], ["worker", "check"]):
        assert run(command) == 0, command
    assert run(["worker", "stop", "1"]) == 3
    captured = capsys.readouterr()
    assert "\x1b" not in captured.err
    assert str(os.getpid()) in captured.out


def test_one_elsewhere_that_is_not_heard_of_any_more_is_not_said_to_have_stopped(
    store: str, write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casque.worker.registry._LATE_US", 0)
    write(name="far", host="far-away", pid=17, lease_us=1_000_000)
    assert run(["worker", "stop", "--all"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "1 worker(s) were not heard of any more: 17 on far-away." in captured.err


def test_those_elsewhere_are_left_alone_unless_all_are_meant(
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


# -- check -------------------------------------------------------------------------


def test_a_probe_is_told_by_the_exit_code_and_one_line(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    def checked(*arguments: str) -> tuple[int, str]:
        code = run(["worker", "check", *arguments])
        captured = capsys.readouterr()
        assert (captured.out + captured.err).count("\n") == 1
        return code, captured.out + captured.err

    assert checked()[0] == 1
    write(name="far", host="far-away")
    assert checked() == (
        1,
        "queuectl: no worker of this host is registered in this store; 1 elsewhere.\n",
    )
    write(age_us=90_000_000)
    code, told = checked()
    assert (code, "no worker is beating" in told) == (1, True)
    code, told = checked("--max-age", "5m")
    assert (code, "1 worker(s) are well" in told) == (0, True)


def test_a_probe_gets_json(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write()
    assert run(["worker", "check", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["is_healthy"], told["workers"]) == (True, [os.getpid()])
    assert set(told) == {"is_healthy", "workers", "message"}


def test_a_store_that_cannot_be_read_is_1_for_a_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.db").write_bytes(b"this is no queue, and no SQLite file either" * 100)
    assert run(["worker", "check", "--store", f"{tmp_path}/jobs.db"]) == 1
    assert "the store does not answer" in capsys.readouterr().err
    assert run(["worker", "check", "--store", "nothing://known"]) == 2


# -- start -------------------------------------------------------------------------


@pytest.mark.parametrize("foreground", [[], ["--foreground"]])
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--count", "0"], "--count"),
        (["--count", "-1"], "--count"),
        (["--count", "1001"], "--count"),
        (["--count", "many"], "--count"),
        (["--concurrency", "0"], "--concurrency"),
        (["--grace", "x"], "--grace: 'x' is not a duration"),
        (["--lease", "1ms"], "--lease: '1ms' is too short"),
        (["--queue", ""], "queue"),
        (["--queue", "x" * 10_000], "queue"),
        (["--max-jobs", "0"], "--max-jobs"),
        (["--log-format", "xml"], "--log-format"),
        (["--app", ""], "names no module"),
        (["--store", "memory://"], "store in memory"),
        (["--log-file", "/proc/nowhere/log"], "/proc/nowhere/log"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_2(
    arguments: list[str],
    told: str,
    foreground: list[str],
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("CASQUE_STORE", f"{tmp_path}/jobs.db")
    if arguments[0] == "--app":
        monkeypatch.delenv("CASQUE_STORE")
    assert run(["worker", "start", *foreground, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.glob("**/worker-*.log")) == []


def test_the_background_is_told_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = Plan(
        count=3,
        target="tasks:app",
        concurrency=None,
        queues=("mail", "--all"),
        grace="1.5s",
        lease="2s",
        until_idle=True,
        max_jobs=7,
        max_mib=None,
        log_format="json",
    )
    again: list[Plan] = []

    def noted(plan: Plan, *_: object) -> int:
        again.append(plan)
        return 0

    monkeypatch.setattr("casque.cli.worker._start_here", noted)
    monkeypatch.setenv("CASQUE_STORE", f"{tmp_path}/jobs.db")
    assert run(plan.arguments()) == 0
    assert again == [plan]


def test_lease_and_pace_are_those_of_the_store_unless_told(store: str) -> None:
    with Access(store) as access:
        for key, value in (("lease", "5m"), ("poll_interval", "250ms")):
            access.submit(PutRecord(CONFIG, key, encoded(key, value), ABSENT))
        settings = access.settings()
    plan = Plan(
        count=1,
        target=None,
        concurrency=None,
        queues=None,
        grace="30s",
        lease=None,
        until_idle=False,
        max_jobs=None,
        max_mib=None,
        log_format="console",
    )
    options = plan.options(settings)
    assert (options.lease_us, options.poll_us) == (5 * MINUTE_US, 250_000)
    assert options.concurrency == 1, "of commands: one at a time"
    told = msgspec.structs.replace(plan, lease="2s", target="tasks:app").options(settings)
    assert told.lease_us == 2_000_000
    assert told.concurrency > 1
    assert plan.options(Settings()).poll_us is None


@pytest.mark.parametrize("command", ["start", "list", "stop", "check"])
def test_help_has_examples(command: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "casque.cli", "worker", command, "--help"],
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"$ queuectl worker {command}" in told.stdout


@pytest.mark.parametrize(
    ("us", "told"),
    [(0, "0s ago"), (59_999_999, "59s ago"), (MINUTE_US, "1m ago"), (2**50, "13031d ago")],
)
def test_how_long_ago(us: int, told: str) -> None:
    assert ago(us) == told
