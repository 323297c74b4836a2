"""`queuectl schedule …`: what operators see and change of schedules."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from casque import Queue
from casque.cli.store import Access
from casque.record import ABSENT, SCHEDULE
from casque.rules.operations import PutRecord
from casque.schedule import Schedule, decode, encode
from tests.cli.control import Control

NIGHTLY = ("schedule", "add", "nightly", "30 2 * * *", "--tz", "Europe/Berlin", "-c", "backup.sh")


def stored(control: Control) -> dict[str, Schedule]:
    with Access(control.store) as access:
        return {record.name: decode(record) for record in access.records(SCHEDULE)}


def put(control: Control, name: str, schedule: Schedule) -> None:
    with Access(control.store) as access:
        access.submit(PutRecord(SCHEDULE, name, encode(schedule), ABSENT))


def test_a_command_is_scheduled_and_told_in_words(anywhere: Control) -> None:
    said = "Schedule nightly added: At 02:30 every day (Europe/Berlin).\n"
    assert anywhere.done(*NIGHTLY) == said
    [row] = anywhere("schedule", "list", "--json").json
    assert anywhere("schedule", "show", "nightly", "--json").json == row
    assert len(row["next"]) == 3
    assert (row["state"], row["command"], row["app"]) == ("active", "backup.sh", None)
    assert (row["max_attempts"], row["retain_seconds"]) == (3, 604_800)
    table = anywhere.done("schedule", "list")
    assert "At 02:30 every day (Europe/Berlin)" in table
    assert "backup.sh" in table
    assert "has not run" in table
    assert "Missed ticks" in anywhere.done("schedule", "show", "nightly")
    assert stored(anywhere)["nightly"].since_us > 0


def test_all_options_are_stored(control: Control) -> None:
    timing = ("--every", "90s", "--catch-up", "6h", "--overlap", "skip")
    job = ("--queue", "q", "--priority", "-2", "--max-attempts", "7", "--timeout", "5m")
    rest = ("--retain", "0", "--env", "A=b", "--cwd", "/srv")
    control.done("schedule", "add", "s", *timing, "--command", "x", *job, *rest)
    assert replace(stored(control)["s"], since_us=0) == Schedule(
        every_us=90_000_000,
        catch_up="all",
        window_us=6 * 3_600_000_000,
        overlap="skip",
        entrypoint="shell",
        payload=b'{"command":"x","env":{"A":"b"},"cwd":"/srv"}',
        queue="q",
        priority=-2,
        max_attempts=7,
        timeout_us=300_000_000,
    )


def test_a_task_is_scheduled_by_its_name(control: Control) -> None:
    arguments = ("--task", "report", "--arguments", '{"region": "north"}')
    control.done("schedule", "add", "r", "@Daily", *arguments)
    made = stored(control)["r"]
    assert (made.entrypoint, made.payload) == ("report", b'{"region":"north"}')
    assert (made.line, made.max_attempts) == ("@daily", 10)
    assert 'report {"region":"north"}' in control.done("schedule", "list")


def test_run_enqueues_the_job_now_and_list_shows_its_outcome(anywhere: Control) -> None:
    anywhere.done(*NIGHTLY)
    anywhere.done("schedule", "pause", "nightly")
    before = stored(anywhere)["nightly"]
    ran = anywhere("schedule", "run", "nightly", "--json").json
    assert (ran["command"], ran["state"]) == ("backup.sh", "pending")
    assert ran["headers"] == {"casque-schedule": "nightly"}
    assert stored(anywhere)["nightly"] == replace(before, last_job=ran["id"])
    assert "pending" in anywhere.done("schedule", "list")
    anywhere.worked(lambda queue, job: queue.fail(job, error="exit code 1"))
    assert "dead" in anywhere.done("schedule", "list")
    assert "exit code 1" in anywhere.done("schedule", "show", "nightly")
    with Queue(anywhere.store) as queue:
        queue.purge(older_than=timedelta(0))
    assert "no longer stored" in anywhere.done("schedule", "list")


def test_pause_resume_and_remove(anywhere: Control) -> None:
    anywhere.done(*NIGHTLY)
    first = stored(anywhere)["nightly"]
    assert anywhere.done("schedule", "pause", "nightly") == "Schedule nightly paused.\n"
    assert stored(anywhere)["nightly"] == replace(first, is_paused=True)
    [row] = anywhere("schedule", "list", "--json").json
    assert (row["state"], row["next"]) == ("paused", [])
    assert anywhere.done("schedule", "resume", "nightly") == "Schedule nightly resumed.\n"
    again = stored(anywhere)["nightly"]
    assert not again.is_paused
    assert again.since_us > first.since_us
    anywhere.done("schedule", "resume", "nightly")
    assert stored(anywhere)["nightly"] == again
    assert anywhere.done("schedule", "remove", "nightly") == "Schedule nightly removed.\n"
    assert anywhere.done("schedule", "list") == "No schedules.\n"


def test_replace_changes_an_operators_schedule_and_keeps_its_past(control: Control) -> None:
    put(control, "s", Schedule(entrypoint="shell", line="@daily", last_tick_us=5, since_us=5))
    assert "exists already. Pass --replace" in control.refused(
        "schedule", "add", "s", "@hourly", "-c", "x"
    )
    control.done("schedule", "add", "s", "@hourly", "-c", "x", "--replace")
    made = stored(control)["s"]
    assert (made.line, made.last_tick_us) == ("@hourly", 5)
    assert made.since_us > 5


def test_a_schedule_in_the_code_is_paused_but_not_changed(control: Control) -> None:
    theirs = Schedule(entrypoint="report", line="@daily", app="tasks:app", since_us=1)
    put(control, "s", theirs)
    for more in ((), ("--replace",)):
        error = control.refused("schedule", "add", "s", "@hourly", "-c", "x", *more)
        assert "declared by the code of tasks:app" in error
    assert "--force removes it now" in control.refused("schedule", "remove", "s")
    assert stored(control) == {"s": theirs}
    control.done("schedule", "pause", "s")
    assert stored(control) == {"s": replace(theirs, is_paused=True)}
    control.done("schedule", "remove", "s", "--force")
    put(control, "s", replace(theirs, is_stopped=True))
    assert "stopped, code" in control.done("schedule", "list")
    assert "no longer in the code of tasks:app" in control.done("schedule", "show", "s")
    assert "It is stopped" in control.done("schedule", "resume", "s")
    control.done("schedule", "remove", "s")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("s", "-c", "x"), "say when"),
        (("s", "@daily", "--every", "5m", "-c", "x"), "one of the two"),
        (("s", "* * * *", "-c", "x"), "five fields"),
        (("s", "99 * * * *", "-c", "x"), "Bad minute"),
        (("s", "@sometimes", "-c", "x"), "@hourly"),
        (("s", "@daily", "--tz", "Mars/Base", "-c", "x"), "no time zone"),
        (("s", "--every", "5m", "--tz", "UTC", "-c", "x"), "--tz is for cron lines"),
        (("s", "--every", "soon", "-c", "x"), "not a duration"),
        (("s", "--every", "500ms", "-c", "x"), "too short"),
        (("s", "@daily"), "--command"),
        (("s", "@daily", "-c", " "), "empty"),
        (("s", "@daily", "-c", "x", "--task", "t"), "not both"),
        (("s", "@daily", "-c", "x", "--arguments", "{}"), "--arguments is for --task"),
        (("s", "@daily", "--task", "t", "--arguments", "{"), "not JSON"),
        (("s", "@daily", "--task", "t", "--arguments", "[]"), "JSON object"),
        (("s", "@daily", "--task", "t", "--cwd", "/"), "--cwd is for --command"),
        (("s", "@daily", "--task", "t", "--env", "A=b"), "--env is for --command"),
        (("s", "@daily", "--task", "shell"), "--command instead"),
        (("s", "@daily", "--task", ""), "task"),
        (("s", "@daily", "-c", "x", "--catch-up", "all"), "skip, one, or a duration"),
        (("s", "@daily", "-c", "x", "--catch-up", "0"), "skip, one, or a duration"),
        (("s", "@daily", "-c", "x", "--overlap", "never"), "'allow' or 'skip'"),
        (("s", "@daily", "-c", "x", "--max-attempts", "0"), "max_attempts"),
        (("s", "@daily", "-c", "x", "--timeout", "0"), "timeout"),
        (("s", "@daily", "-c", "x", "--env", "A"), "NAME=VALUE"),
        (("", "@daily", "-c", "x"), "schedule"),
        (("x" * 513, "@daily", "-c", "x"), "schedule"),
        (("s", "@daily", "more", "-c", "x"), "--help"),
        ((), "NAME"),
    ],
)
def test_a_wrong_add_is_refused_and_stores_nothing(
    control: Control, arguments: tuple[str, ...], message: str
) -> None:
    assert message in control.refused("schedule", "add", *arguments)
    assert not Path(control.store).exists()
    control.begins()
    assert message in control.refused("schedule", "add", *arguments)
    assert stored(control) == {}


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "run", "remove"])
def test_an_unknown_schedule_is_refused(control: Control, verb: str) -> None:
    control.done(*NIGHTLY)
    before = stored(control)
    assert "no schedule 'nope'" in control.refused("schedule", verb, "nope", code=3)
    assert "schedule" in control.refused("schedule", verb, "")
    assert "NAME" in control.refused("schedule", verb)
    assert stored(control) == before
    assert control.jobs() == []


def test_a_record_that_is_no_schedule_is_shown_and_can_be_removed(control: Control) -> None:
    with Access(control.store) as access:
        access.submit(PutRecord(SCHEDULE, "odd", b"{}", ABSENT))
    put(control, "far", Schedule(entrypoint="e", line="@daily", tz="Mars/Base"))
    rows: list[Any] = control("schedule", "list", "--json").json
    assert {row["name"]: row["state"] for row in rows} == {"far": "unusable", "odd": "unusable"}
    assert "unusable" in control.done("schedule", "list")
    assert "cannot be read" in control.done("schedule", "show", "odd")
    for verb in ("pause", "run"):
        assert "Remove the schedule and add it again" in control.refused("schedule", verb, "odd")
    control.done("schedule", "remove", "odd")
    control.done("schedule", "remove", "far")


def test_reset_removes_the_schedules_too(control: Control) -> None:
    control.done(*NIGHTLY)
    control.done("reset", "--yes")
    assert stored(control) == {}


def test_names_cannot_play_tricks_on_the_terminal(control: Control) -> None:
    name = "[red]\x1b[2Jx\n"
    control.done("schedule", "add", name, "@daily", "-c", "\x1b]0;x\x07")
    for verb in (("list",), ("show", name), ("pause", name)):
        assert "\x1b" not in control.done("schedule", *verb)


def test_run_inside_a_job_obeys_the_loop_guard(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.done("config", "set", "max_depth", "2")
    control.done(*NIGHTLY)
    monkeypatch.setenv("CASQUE_DEPTH", "1")
    control.done("schedule", "run", "nightly")
    monkeypatch.setenv("CASQUE_DEPTH", "2")
    assert "max_depth is 2" in control.refused("schedule", "run", "nightly")
    with Queue(control.store) as queue:
        assert [job.depth for job in queue.jobs()] == [2]


def test_the_next_times_stand_one_below_the_other_at_80_columns(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = "curl -sf http://localhost/health/check"
    control.done("schedule", "add", "nightly", "30 2 * * *", "--tz", "Asia/Kolkata", "-c", command)
    lines = control.done("schedule", "list").split("\n")
    assert max(map(len, lines)) <= 80
    times = [re.search(r"│ \d{4}-\d\d-\d\d \d\d:\d\d:\d\d │", line) for line in lines]
    assert len([one for one in times if one]) == 3
