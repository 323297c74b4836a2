"""`queuectl worker list`, `check` and `start`: their output and their errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from casque.cli.main import run
from casque.cli.store import Access
from casque.cli.worker import supervise
from casque.cli.worker.fleet import ago
from casque.cli.worker.plan import StartPlan
from casque.record import ABSENT, CONFIG, SUPERVISOR, WORKER
from casque.rules.operations import PutRecord
from casque.system.clock import SECOND_US
from casque.worker.shell.settings import encoded
from tests.cli.control import run_process
from tests.cli.entries import MINUTE_US, Write, claim
from tests.notes import without_notes

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


# -- list --------------------------------------------------------------------------


def test_an_empty_list_of_workers_is_printed_as_text_and_json(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["worker", "list"]) == 0
    assert run(["worker", "list", "--json"]) == 0
    assert capsys.readouterr().out == "No workers are running.\n[]\n"


def test_the_table_fits_into_80_columns(
    store: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    claim(store, write(supervisor=4_000_001, queues=("mail", "reports")).name)
    write(name="far", host="build-machine-17.example.org", pid=4_000_002, age_us=MINUTE_US)
    assert run(["worker", "list"]) == 0
    out = capsys.readouterr().out
    assert "Workers" in out.splitlines()[0]
    assert max(map(len, out.splitlines())) <= 80
    for word in (str(os.getpid()), "4000001", "mail", "1 of 4", "2h ago", "1m ago"):
        assert word in out


def test_the_json_keys_of_worker_list_do_not_change(
    store: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = write(running=("a job of some time ago",))
    assert claim(store, entry.name) == "job1"
    assert run(["--json", "status"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert run(["--json", "worker", "list"]) == 0
    [result] = json.loads(capsys.readouterr().out)
    assert set(result) == KEYS
    assert (result["pid"], result["running"], result["lease_seconds"]) == (
        os.getpid(),
        ["job1"],
        60,
    )
    assert [one["running"] for one in status["workers"]] == [["job1"]]
    assert result["beat_at"].endswith("Z")
    assert result["state"] == "working"


@pytest.mark.parametrize(
    ("us", "result"),
    [(0, "0s ago"), (59_999_999, "59s ago"), (MINUTE_US, "1m ago"), (2**50, "13031d ago")],
)
def test_durations_are_shown_in_one_unit(us: int, result: str) -> None:
    assert ago(us) == result


def test_control_characters_in_a_host_name_are_escaped(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(name="odd", host="\x1b[2Jodd")
    assert run(["worker", "list"]) == 0
    assert run(["worker", "stop"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_an_entry_that_cannot_be_read_breaks_nothing(
    store: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    with Access(store) as access:
        for kind in (WORKER, SUPERVISOR):
            access.submit(PutRecord(kind, "odd\x1b", b'{"name": "odd", "v2": true}', ABSENT))
    for command in (["status"], ["worker", "list"], ["worker", "check"]):
        assert run(command) == 0, command
    assert run(["worker", "stop", "1"]) == 3
    captured = capsys.readouterr()
    assert "\x1b" not in captured.err
    assert str(os.getpid()) in captured.out


# -- check -------------------------------------------------------------------------


def test_check_answers_with_an_exit_code_and_one_line(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    def checked(*arguments: str) -> tuple[int, str]:
        code = run(["worker", "check", *arguments])
        captured = capsys.readouterr()
        printed = captured.out + without_notes(captured.err)
        assert printed.count("\n") == 1
        return code, printed

    code, result = checked()
    assert (code, "there is no queue at" in result) == (1, True)
    write(name="far", host="far-away")
    assert checked() == (
        1,
        "queuectl: no worker of this host is registered in this store; 1 elsewhere.\n",
    )
    write(age_us=90_000_000)
    code, result = checked()
    assert (code, "no worker is beating" in result) == (1, True)
    code, result = checked("--max-age", "5m")
    assert (code, "1 worker(s) are healthy" in result) == (0, True)


@pytest.mark.parametrize(("age_us", "code"), [(170 * SECOND_US, 0), (190 * SECOND_US, 1)])
def test_check_expects_an_entry_as_often_as_the_worker_renews_it(
    write: Write, age_us: int, code: int
) -> None:
    write(age_us=age_us, presence_us=120 * SECOND_US)
    assert run(["worker", "check"]) == code


def test_check_prints_json(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write()
    assert run(["worker", "check", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["is_healthy"], result["workers"]) == (True, [os.getpid()])
    assert set(result) == {"is_healthy", "workers", "message"}


def test_check_exits_with_1_if_the_store_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.db").write_bytes(b"this is no queue, and no SQLite file either" * 100)
    assert run(["worker", "check", "--store", f"{tmp_path}/jobs.db"]) == 1
    assert "the store does not answer" in capsys.readouterr().err
    assert run(["worker", "check", "--store", "nothing://known"]) == 2


# -- start -------------------------------------------------------------------------


@pytest.mark.parametrize("foreground", [[], ["--foreground"]])
@pytest.mark.parametrize(
    ("arguments", "result"),
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
        (["--app", ""], "--app is empty"),
        (["--store", "memory://"], "store in memory"),
        (["--log-file", "/proc/nowhere/log"], "/proc/nowhere/log"),
    ],
)
def test_wrong_start_options_are_one_line_and_exit_2(
    arguments: list[str],
    result: str,
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
    assert result in captured.err
    assert without_notes(captured.err).count("\n") == 1
    assert list(tmp_path.glob("**/worker-*.log")) == []


@pytest.fixture
def planned(store: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StartPlan]:
    """Runs `worker start --foreground` with more arguments, up to its supervisor."""
    plans: list[StartPlan] = []

    def supervised(plan: StartPlan) -> int:
        plans.append(plan)
        return 0

    monkeypatch.setattr(supervise, "supervise", supervised)

    def planned(*arguments: str) -> StartPlan:
        start = ("--store", store, "worker", "start", "--foreground")
        assert run([*start, *arguments]) == 0
        return plans.pop()

    return planned


def test_the_supervisor_process_gets_the_plan_unchanged(
    planned: Callable[..., StartPlan],
) -> None:
    plan = planned("--count", "3", "--queue", "mail", "--queue=--all", "--lease", "2s")
    assert (plan.count, plan.options.queues, plan.options.lease_us) == (
        3,
        ("mail", "--all"),
        2_000_000,
    )
    assert msgspec.json.decode(msgspec.json.encode(plan), type=StartPlan) == plan


def test_lease_and_poll_interval_default_to_the_settings(
    store: str, planned: Callable[..., StartPlan]
) -> None:
    assert planned().options.poll_us is None
    with Access(store) as access:
        for key, value in (("lease", "5m"), ("poll_interval", "250ms")):
            access.submit(PutRecord(CONFIG, key, encoded(key, value), ABSENT))
    options = planned().options
    assert (options.lease_us, options.poll_us) == (5 * MINUTE_US, 250_000)
    assert options.concurrency == 1, "one command at a time"
    result = planned("--lease", "2s", "--app", "tasks:app").options
    assert result.lease_us == 2_000_000
    assert result.concurrency > 1


@pytest.mark.parametrize("command", ["start", "list", "stop", "check"])
def test_help_has_examples(command: str) -> None:
    result = run_process("worker", command, "--help", COLUMNS="80")
    assert f"$ queuectl worker {command}" in result.out
