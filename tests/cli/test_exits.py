"""How commands fail: one line, the right exit code, and never a traceback."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from casque.cli import app
from casque.cli.main import run
from casque.stores.ledger import bucket_requests
from tests.cli.control import (
    ANSWERED_WITHIN,
    QUEUECTL,
    Control,
    process,
    run_new_process,
    run_process,
    run_process_in,
    run_process_into,
)
from tests.notes import without_notes

FULL = Path("/dev/full")

COMMANDS = [
    (),
    *((name,) for name in ("enqueue", "status", "list", "show", "cancel", "retry", "purge")),
    *((name,) for name in ("pause", "resume", "queues", "backup", "reset", "watch", "completion")),
    *((name,) for name in ("import", "export", "copy")),
    *(("dlq", name) for name in ("list", "errors", "show", "retry", "purge")),
    *(("config", name) for name in ("set", "get", "list", "unset", "path")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run((*command, "--help")) == 0
    result = capsys.readouterr().out
    assert "Examples:" in result
    assert f"$ queuectl {' '.join(command)}" in result


def test_the_list_of_commands_is_complete() -> None:
    commands = {
        one.name or one.callback.__name__ for one in app.app.registered_commands if one.callback
    }
    assert commands - {"demo"} == {one[0] for one in COMMANDS if len(one) == 1}


@pytest.mark.parametrize(
    ("store", "code", "why"),
    [
        ("redis://localhost", 2, "no store for scheme 'redis'"),
        ("postgres://me:secret@localhost/db", 2, "me:…@localhost"),
        ("queue", 2, "does not say what kind of store it is"),
        ("memory://", 2, "ends with this command"),
        ("{tmp}/no/such/jobs.db", 2, "mkdir -p {tmp}/no/such"),
        ("{tmp}/no/such/jobs.json", 2, "there is no folder"),
        ("{tmp}/no/such/ledger/", 2, "there is no folder"),
        ("file://{tmp}/no/such", 2, "there is no folder"),
        ("{tmp}/text.db", 6, "not a database"),
        ("{tmp}/text.json", 6, "does not contain a casque queue"),
        ("{tmp}/full/", 6, "holds files of another program"),
        ("/proc/jobs.db", 5, "cannot open"),
    ],
)
@pytest.mark.parametrize(
    "command", [("config", "set", "timeout", "5m"), ("enqueue", '{"command": "a"}')], ids=str
)
def test_an_invalid_store_is_a_one_line_error(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    command: tuple[str, ...],
    store: str,
    code: int,
    why: str,
) -> None:
    (tmp_path / "text.db").write_text("hello" * 1_000)
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    assert run(["--store", store.format(tmp=tmp_path), *command]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert why.format(tmp=tmp_path) in err
    assert err.startswith("queuectl: ")
    assert err.count("\n") == 1
    assert "secret" not in err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("store", ["text.db", "text.json", "full"])
def test_reading_a_foreign_store_exits_with_6(store: str, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("hello" * 1_000)
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    for command in ("status", "list", "queues"):
        assert run(["--store", f"{tmp_path}/{store}", command]) == 6
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter"]


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "obstore.py").write_text("raise ImportError('not here')")
    result = run_new_process("--store", "s3://bucket/jobs", "status", PYTHONPATH=str(tmp_path))
    assert result.code == 2
    assert "pip install 'casque[s3]'" in result.err
    assert result.err.count("\n") == 1


def test_a_storage_that_does_not_answer_exits_with_5(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With keys set, no provider is asked for credentials. No server listens on port 1.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ALLOW_HTTP"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setattr(bucket_requests, "COMMIT_DEADLINE_US", 300_000)
    control.store = "s3://bucket/jobs?endpoint=http://127.0.0.1:1&region=us-east-1"
    control.refused("status", code=5)


def test_the_store_comes_from_the_environment_or_is_a_file_in_the_data_directory(
    tmp_path: Path,
) -> None:
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": f"{tmp_path}/data"}
    result = run_process("config", "path", **home)
    assert Path(result.out.strip()).is_relative_to(tmp_path)
    assert run_process("enqueue", '{"id": "a", "command": "a"}', **home).code == 0
    assert Path(result.out.strip()).exists()
    named = run_process("config", "path", CASQUE_STORE="mine.db", **home)
    assert named.out == f"{Path.cwd()}/mine.db\n"
    given = run_process("config", "path", "--store", "postgres://me:secret@host/db", **home)
    assert given.out == "postgres://me:…@host/db\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("paint",),
        ("list", "--colour"),
        ("list", "--limit", "many"),
        ("list", "--limit", "0"),
        ("show",),
        ("show", "a", "b"),
        ("config", "set", "max_retries"),
        ("dlq", "bury"),
        ("completion", "tcsh"),
    ],
)
def test_wrong_usage_is_a_one_line_error(control: Control, arguments: tuple[str, ...]) -> None:
    assert "queuectl" in control.refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        (("worker", "strat"), "Did you mean 'start'? See `queuectl worker --help`.\n"),
        (("show",), "Missing argument 'ID'. See `queuectl show --help`.\n"),
        (("show", "a", "b"), "(b). See `queuectl show --help`.\n"),
    ],
)
def test_wrong_usage_is_explained_in_sentences(
    control: Control, arguments: tuple[str, ...], end: str
) -> None:
    assert control.refused(*arguments).endswith(end)


def test_without_arguments_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    out, err = capsys.readouterr()
    assert "Usage: queuectl" in out + err
    assert "queuectl: " not in err


def test_an_unexpected_error_asks_for_a_report(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from casque.cli import status

    def fail(*_: object) -> None:
        raise LookupError("a bug\x1b[1m")

    monkeypatch.setattr(status, "_look", fail)
    result = control.refused("status", code=1)
    assert r"LookupError: a bug\x1b[1m" in result
    assert "report" in result
    monkeypatch.setenv("CASQUE_DEBUG", "1")
    with pytest.raises(LookupError):
        control("status")


def test_ctrl_c_prints_one_line(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from casque.cli.store import Access

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Access, "records", interrupted)
    for command in (("status",), ("enqueue", "-c", "a"), ("config", "list")):
        result = control(*command)
        assert (result.code, result.out) == (130, "")
        assert without_notes(result.err) == "queuectl: interrupted.\n"


def test_ctrl_c_while_waiting_for_a_lock_ends_at_once(control: Control) -> None:
    import sqlite3

    store = control.store
    control.done("enqueue", "-c", "a")
    connection = sqlite3.connect(store, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    command = process("--store", store, "enqueue", "-c", "b", PYTHONFAULTHANDLER="")
    with command:
        for _ in range(1_000):  # it may still be importing, before it handles signals
            try:
                command.wait(0.2)
            except subprocess.TimeoutExpired:
                if _is_at_work(command.pid, store):
                    command.send_signal(signal.SIGINT)
            else:
                break
        out, err = command.communicate(timeout=ANSWERED_WITHIN)
    connection.close()
    assert (command.returncode, out) == (130, b"")
    assert re.fullmatch(rb"queuectl: interrupted[^\n]*\n", err)
    assert control("status", "--json").json["pending"] == 1


def _is_at_work(pid: int, store: str) -> bool:
    try:
        open_files = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return store in open_files


def test_a_closed_output_pipe_is_no_error(control: Control) -> None:
    # More than a pipe holds: otherwise all is written before the reader closes it.
    lines = b'{"command": "echo something long enough"}\n' * 1_200
    control.done("enqueue", "-", stdin=lines)
    for options in (("--limit", "1200"), ("--limit", "1200", "--json")):
        command = process("--store", control.store, "list", *options)
        assert command.stdout is not None
        assert command.stderr is not None
        with command:
            command.stdout.readline()
            command.stdout.close()
            err = command.stderr.read()
            command.wait(ANSWERED_WITHIN)
        assert (command.returncode, err) == (141, b"")


def test_all_jobs_are_changed_even_if_the_output_pipe_is_closed(
    control: Control,
) -> None:
    control.done("enqueue", "-", stdin=b'{"command": "exit 1"}\n' * 900)
    control.worked(lambda queue, job: queue.fail(job))
    command = process("--store", control.store, "dlq", "retry", "--all", PYTHONUNBUFFERED="1")
    assert command.stdout is not None
    assert command.stderr is not None
    with command:
        command.stdout.readline()
        command.stdout.close()
        assert command.stderr.read() == b""
    assert control("status", "--json").json["pending"] == 900


@pytest.mark.parametrize(
    ("command", "streams"),
    [
        ("status", ("<&- >&- 2>&-",)),
        ('enqueue \'{"command": "a"}\'', (">&-", ">&- 2>&-", "<&- >&- 2>&-", "2>&-")),
    ],
)
def test_closed_streams_are_no_error(
    control: Control, command: str, streams: tuple[str, ...]
) -> None:
    control.done("config", "set", "max_retries", "3")  # creates the store
    for closed in streams:
        shell = f"{' '.join(QUEUECTL)} --store {control.store} {command} {closed}"
        ended = subprocess.run(
            ["sh", "-c", shell], capture_output=True, text=True, check=False, timeout=100
        )
        assert (ended.returncode, without_notes(ended.stderr)) == (0, "")
    assert control("status", "--json").code == 0


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has it")
@pytest.mark.parametrize("command", ["status", "status --json", "enqueue -c a"])
def test_a_full_disk_under_the_output_is_reported(control: Control, command: str) -> None:
    control.done("config", "set", "max_retries", "3")  # creates the store
    result = run_process_into(FULL, "--store", control.store, *command.split())
    assert result.code == 1
    assert "No space left on device" in result.err
    assert without_notes(result.err).count("\n") == 1


def test_characters_that_stdout_cannot_encode_are_escaped(control: Control) -> None:
    result = run_process(
        "--store", control.store, "enqueue", "-c", "echo ü ✓", "--id", "a", PYTHONIOENCODING="ascii"
    )
    assert (result.code, result.out) == (0, "Job a enqueued: echo \\xfc \\u2713\n")
    result = run_process("--store", control.store, "list", PYTHONIOENCODING="ascii")
    assert result.code == 0
    assert "echo \\xfc" in result.out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_valid_in_every_output_encoding(control: Control, encoding: str) -> None:
    control.done("enqueue", "-c", "echo ü ✓ 😀", "--id", "a")
    result = run_process("--store", control.store, "list", "--json", PYTHONIOENCODING=encoding)
    assert [one["command"] for one in result.json] == ["echo ü ✓ 😀"]


def test_a_truncated_list_prints_a_note_with_json_too(control: Control) -> None:
    control.done("enqueue", "-", stdin=b'{"command": "a"}\n' * 3)
    result = control("list", "--json", "--limit", "2")
    assert len(result.json) == 2
    assert "the list ends at 2; raise --limit" in result.err
    assert control("list", "--json").err == ""


def test_a_store_path_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "d\udcff"
    folder.mkdir()
    for arguments in (("enqueue", "-c", "a"), ("worker", "start"), ("config", "list")):
        result = run_process_in(folder, "--store", "jobs.db", *arguments)
        assert result.code == 2
        assert "is not UTF-8 text" in result.err
    assert [*folder.iterdir()] == []


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert re.fullmatch(r"queuectl \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_the_command(
    control: Control, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    result = control.done("completion", shell)
    assert result == control.done("completion")
    assert "_QUEUECTL_COMPLETE" in result
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=result.encode(), check=True)


def test_completion_offers_commands_and_options() -> None:
    def completed(*words: str) -> list[str]:
        result = run_process(
            _QUEUECTL_COMPLETE="complete_bash",
            COMP_WORDS=" ".join(("queuectl", *words)),
            COMP_CWORD=str(len(words)),
        )
        return result.out.split()

    assert "enqueue" in completed("en")
    assert completed("dlq", "re") == ["retry"]
    assert "--state" in completed("list", "--st")


@pytest.mark.parametrize("store", ["jobs.db", "queue.json", "ledger/"])
@pytest.mark.parametrize(
    "words",
    ["status", "list", "queues", "dlq list", "worker list", "config list", "config get lease"],
)
def test_reading_a_missing_store_creates_nothing(
    store: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--store", f"{tmp_path}/{store}", *words.split()]) == (
        3 if words == "status" else 0
    )
    assert "there is no queue at" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
