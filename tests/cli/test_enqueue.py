"""`queuectl enqueue`: the jobs that it makes of its arguments."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casque.worker.shell.job import ShellCall, decode
from tests.cli.control import Control

FULL: dict[str, Any] = {
    "id": "job1",
    "command": "echo hi",
    "queue": "mail",
    "priority": -3,
    "max_attempts": 7,
    "run_at": "2100-01-31T08:00:00+01:00",
    "timeout": "90s",
    "env": {"A": "1", "B": ""},
    "cwd": "/tmp",
    "retain": "2h",
    "headers": {"trace": "00=1", "ü": ""},
}
PAIRS = ("--env", "A=1", "-e", "B=", "--header", "trace=00=1", "-H", "ü=")


def as_json(**fields: Any) -> str:
    return msgspec.json.encode(fields).decode()


def test_a_job_is_enqueued_once_by_its_id(anywhere: Control) -> None:
    result = anywhere.done("enqueue", '{"id": "job1", "command": "sleep 2"}')
    assert result == "Job job1 enqueued: sleep 2\n"
    result = anywhere.done("enqueue", '{"id": "job1", "command": "sleep 3"}')
    assert result == "Job job1 already exists (pending): nothing changed.\n"
    [job] = anywhere.jobs()
    assert decode(job.payload) == ShellCall("sleep 2")


def test_an_id_that_another_queue_has_is_refused(anywhere: Control) -> None:
    anywhere.done("enqueue", '{"id": "job1", "command": "a"}')
    assert "job1" in anywhere.refused("enqueue", '{"id": "job1", "cmd": "a", "queue": "other"}')
    assert len(anywhere.jobs()) == 1


def check_full(control: Control) -> None:
    job = control.job("job1")
    assert job is not None
    assert decode(job.payload) == ShellCall("echo hi", {"A": "1", "B": ""}, "/tmp")
    assert (job.queue, job.priority, job.max_attempts) == ("mail", -3, 7)
    assert job.run_at == datetime(2100, 1, 31, 7, tzinfo=UTC)
    assert (job.timeout, job.retain) == (timedelta(seconds=90), timedelta(hours=2))
    assert job.headers == FULL["headers"]


def test_every_field_reaches_the_job(control: Control) -> None:
    control.done("enqueue", as_json(**FULL))
    check_full(control)


def test_every_option_reaches_the_job(control: Control) -> None:
    single = {name: value for name, value in FULL.items() if not isinstance(value, dict)}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in single.items()]
    control.done("enqueue", *options, *PAIRS)
    check_full(control)


@pytest.mark.parametrize("delay", [300, 300.0, "300", "5m"])
def test_a_delay_is_seconds_or_a_duration(control: Control, delay: object) -> None:
    control.done("enqueue", as_json(command="a", delay=delay))
    [job] = control.jobs()
    assert job.run_at - job.created_at == timedelta(minutes=5)


def test_a_time_without_a_zone_is_local(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC-5")  # five hours east of Greenwich, as POSIX has it
    time.tzset()
    try:
        control.done("enqueue", '{"command": "a", "run_at": "2100-01-31T08:00:00"}')
    finally:
        monkeypatch.undo()
        time.tzset()
    [job] = control.jobs()
    assert job.run_at == datetime(2100, 1, 31, 3, tzinfo=UTC)


def test_missing_fields_come_from_the_settings(anywhere: Control) -> None:
    for key, value in {"max_retries": "2", "timeout": "5s", "retention": "1h"}.items():
        anywhere.done("config", "set", key, value)
    anywhere.done("enqueue", '{"command": "a"}')
    [job] = anywhere.jobs()
    assert (job.max_attempts, job.timeout_us, job.retain_us) == (2, 5_000_000, 3_600_000_000)


def test_without_retention_an_ack_deletes_the_job(control: Control) -> None:
    control.done("config", "set", "retention", "0")
    control.done("enqueue", "-c", "a")
    control.worked(lambda queue, job: queue.ack(job))
    assert control.jobs() == []


def test_a_relative_cwd_is_made_absolute(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    control.done("enqueue", "-c", "a", "--cwd", "sub")
    [job] = control.jobs()
    assert decode(job.payload).cwd == os.path.join(os.getcwd(), "sub")  # noqa: PTH109, PTH118


def test_an_id_from_the_content_is_the_same_for_equal_jobs_only(control: Control) -> None:
    same = ("enqueue", "-c", "a", "-e", "A=1", "-e", "B=2", "--id-from-content")
    control.done(*same, "--priority", "1")
    assert "already exists" in control.done(
        "enqueue", "-c", "a", "-e", "B=2", "-e", "A=1", "--id-from-content"
    )
    control.done(*same, "-q", "mail")
    control.done(*same, "--cwd", "/")
    control.done("enqueue", "-c", "a", "-e", "A=1", "--id-from-content")
    control.done("enqueue", '{"command": "b"}', "--id-from-content")
    ids = {job.id for job in control.jobs()}
    assert len(ids) == 5
    assert all(len(id) == 32 for id in ids)


def test_inside_a_job_the_depth_is_counted_and_limited(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASQUE_DEPTH", "2")
    monkeypatch.setenv("CASQUE_JOB_ID", "parent")
    control.done("enqueue", "-c", "a")
    [job] = control.jobs()
    assert job.depth == 3
    control.done("config", "set", "max_depth", "2")
    assert "max_depth" in control.refused("enqueue", "-c", "b")
    assert "Inside a job" in control.done("enqueue", "-c", "b", "--skip-inside-job")
    assert "Inside a job" in control.done("enqueue", "-", "--skip-inside-job", stdin=b"{}")
    assert control("enqueue", "-c", "b", "--skip-inside-job", "--json").json is None
    several = control("enqueue", "-", "--skip-inside-job", "--json", stdin=b"{}")
    assert several.json == {"enqueued": 0, "already_there": 0}
    assert len(control.jobs()) == 1


def test_outside_a_job_nothing_is_skipped(control: Control) -> None:
    control.done("enqueue", "-c", "b", "--skip-inside-job")
    assert len(control.jobs()) == 1


def test_json_output_is_the_job(control: Control) -> None:
    for is_there in (False, True):
        result = control("enqueue", "--id", "job1", "-c", "sleep 2", "--json").json
        assert (result["id"], result["command"], result["state"]) == ("job1", "sleep 2", "pending")
        assert result["duplicate"] is is_there


WRONG = {
    "nope": "not JSON",
    '{"command": "a"': "not JSON",
    "[]": "JSON object",
    "{}": "no command",
    '{"id": "job1"}': "no command",
    '{"command": null}': "no command",
    '{"command": ""}': "empty",
    '{"command": "  \\n"}': "empty",
    '{"command": 5}': "must be text",
    '{"command": "a\\u0000b"}': "NUL",
    '{"command": "a", "cmd": "a"}': "another name",
    '{"command": "a", "max_retries": 1, "max_attempts": 1}': "another name",
    '{"command": "a", "colour": "red"}': "the fields are id, command, queue",
    '{"command": "a", "delay": -1}': "between 0 and 100 years",
    '{"command": "a", "delay": "-1s"}': "not a duration",
    '{"command": "a", "delay": true}': "not a duration",
    '{"command": "a", "delay": 1e300}': "100 years",
    '{"command": "a", "delay": 1, "run_at": "2100-01-01"}': "not both",
    '{"command": "a", "run_at": "tomorrow"}': "not a time",
    '{"command": "a", "run_at": 5}': "not a time",
    '{"command": "a", "run_at": "0001-01-01T00:00:00+14:00"}': "run_at",
    '{"command": "a", "timeout": 0}': "timeout",
    '{"command": "a", "priority": "high"}': "priority",
    '{"command": "a", "priority": 3000000000}': "priority",
    '{"command": "a", "max_attempts": 0}': "max_attempts",
    '{"command": "a", "queue": ""}': "queue",
    '{"command": "a", "id": 5}': "id",
    '{"command": "a", "env": {"A": 1}}': "env.A",
    '{"command": "a", "env": {"A=B": "1"}}': "valid variable name",
    '{"command": "a", "env": ["A"]}': "object with text values",
    '{"command": "a", "cwd": ""}': "cwd",
    '{"command": "a", "headers": ["trace"]}': 'write {"name": "value"}',
    '{"command": "a", "headers": {"trace": 1}}': "`headers['trace']` must be text",
    '{"command": "a", "headers": {"": "1"}}': "a key of `headers` is empty",
    '{"command": "a", "headers": {"trace": "%s"}}' % ("x" * 1024): "1,024 bytes",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_json_is_refused_with_the_remedy(control: Control, text: str) -> None:
    assert WRONG[text] in control.refused("enqueue", text)
    assert not Path(control.store).exists()
    assert "line 1: " in control.refused("enqueue", "-", stdin=text.encode())
    assert control.jobs() == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "no job to enqueue"),
        (('{"command": "a"}', "--queue", "mail"), "not both"),
        (('{"command": "a"}', "extra"), "extra"),
        (("-c", "a", "--id", "b", "--id-from-content"), "not both"),
        (("-c", "a", "--env", "A"), "NAME=VALUE"),
        (("-c", "a", "--header", "trace"), "--header 'trace' must be KEY=VALUE"),
        (("-c", "a", "--header", "=1"), "a key of `headers` is empty"),
        (("-c", "a", "-H", "trace=" + "x" * 1024), "1,024 bytes"),
        (("-c", "a", "--priority", "high"), "--priority"),
        (("-c", "a", "--delay", "-5"), "not a duration"),
        (("-c", "a", "--colour", "red"), "--colour"),
        (("-c",), "-c"),
        (("-c", "x" * 131_072), "131,071"),
        (("--id", "b"), "no command"),
        (("-c", "a", "--if-exists", "fail"), "--if-exists needs an id"),
        (("-", "--queue", "mail"), "each line"),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(
    control: Control, arguments: tuple[str, ...], why: str
) -> None:
    assert why in control.refused("enqueue", *arguments)
    assert not Path(control.store).exists()
    assert control.jobs() == []
