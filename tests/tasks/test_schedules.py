"""Schedules in code: what `@app.cron` and `@app.every` declare and refuse."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from casque import App, InvalidError
from casque.record import SCHEDULE, Record
from casque.schedule import Schedule, encode
from casque.tasks.schedules import synchronised
from casque.worker.schedule_ticks import NO_APP

HOUR_US = 3_600_000_000
MINUTES = timedelta(minutes=5)


@pytest.fixture
def app() -> App:
    return App("memory://")


def test_a_function_becomes_a_task_with_a_schedule_of_its_name(app: App) -> None:
    @app.cron("*/5 * * * *", tz="Europe/Berlin")
    def report() -> int:
        return 7

    assert report() == 7
    assert app.tasks == {"report": report}
    declared = app.schedules["report"]
    assert (declared.line, declared.tz, declared.entrypoint) == (
        "*/5 * * * *",
        "Europe/Berlin",
        "report",
    )
    assert (declared.catch_up, declared.overlap, declared.every_us) == ("one", "allow", 0)


async def _noted(when: str, times: int = 1) -> None: ...


def test_a_task_keeps_its_options_and_may_have_several_schedules(app: App) -> None:
    task = app.task(
        queue="reports", priority=3, max_attempts=2, retain=None, timeout=timedelta(minutes=1)
    )(_noted)
    every = app.every(MINUTES, arguments={"when": "often"}, overlap="skip", catch_up="skip")
    window = timedelta(hours=2)
    cron = app.cron("@Daily", name="daily", arguments={"when": "x", "times": 2}, catch_up=window)
    assert cron(every(task)) is task
    shared: dict[str, Any] = {
        "entrypoint": "_noted",
        "queue": "reports",
        "priority": 3,
        "max_attempts": 2,
        "timeout_us": 60_000_000,
    }
    assert dict(app.schedules) == {
        "_noted": Schedule(
            every_us=300_000_000,
            payload=b'{"when":"often"}',
            overlap="skip",
            catch_up="skip",
            **shared,
        ),
        "daily": Schedule(
            line="@daily",
            payload=b'{"when":"x","times":2}',
            catch_up="all",
            window_us=2 * HOUR_US,
            **shared,
        ),
    }


@pytest.mark.parametrize(
    ("kind", "timing", "options", "message"),
    [
        ("cron", "* * * *", {}, "five fields"),
        ("cron", "61 * * * *", {}, "Bad minute"),
        ("cron", timedelta(hours=1), {}, "expected a cron line"),
        ("cron", "@daily", {"tz": "Mars/Base"}, "no time zone"),
        ("cron", "@daily", {"tz": None}, "Europe/Berlin"),
        ("cron", "@daily", {"catch_up": "all"}, "catch_up"),
        ("cron", "@daily", {"catch_up": timedelta(0)}, "catch_up"),
        ("cron", "@daily", {"catch_up": 60}, "catch_up"),
        ("cron", "@daily", {"overlap": "forbid"}, "overlap"),
        ("cron", "@daily", {"name": ""}, "schedule"),
        ("cron", "@daily", {"name": "x" * 513}, "schedule"),
        ("cron", "@daily", {"arguments": {"other": 1}}, "other"),
        ("cron", "@daily", {"arguments": ["when"]}, "dict"),
        ("cron", "@daily", {}, "when"),
        ("every", 5, {}, "timedelta"),
        ("every", timedelta(0), {}, "interval"),
        ("every", timedelta(seconds=-1), {}, "interval"),
        ("every", timedelta(milliseconds=500), {}, "at least 1s"),
    ],
)
def test_a_wrong_schedule_is_refused_where_it_is_declared(
    app: App, kind: str, timing: Any, options: dict[str, Any], message: str
) -> None:
    given = {"arguments": {"when": "x"}, **options} if options else {}
    task = app.task(_noted)
    with pytest.raises(InvalidError, match=message):
        getattr(app, kind)(timing, **given)(task)
    assert not app.schedules


def test_two_schedules_cannot_have_one_name(app: App) -> None:
    @app.every(MINUTES)
    def report() -> None: ...

    with pytest.raises(InvalidError, match=r"two schedules have the name 'report'.*name='…'"):
        app.cron("@daily")(report)


def test_the_task_of_another_app_is_refused(app: App) -> None:
    @App("memory://").task
    def report() -> None: ...

    with pytest.raises(InvalidError, match="belongs to another App"):
        app.cron("@daily")(report)


def test_two_schedules_of_one_name_leave_the_first(app: App) -> None:
    @app.every(MINUTES)
    def report() -> None: ...

    with pytest.raises(InvalidError):
        app.every(2 * MINUTES)(report)
    assert app.schedules["report"].every_us == 300_000_000


@pytest.mark.parametrize("thing", [lambda: None, int, 5])
def test_only_a_function_or_a_task_can_have_a_schedule(app: App, thing: Any) -> None:
    with pytest.raises(InvalidError):
        app.every(MINUTES)(thing)


CLEANUP = Schedule(entrypoint="clean", every_us=1_000_000)


def stored(app: str) -> Record:
    return Record(SCHEDULE, "cleanup", encode(replace(CLEANUP, app=app)), version=1)


def test_a_name_that_another_app_had_is_reported() -> None:
    sync = synchronised({"cleanup": CLEANUP}, [stored("other:app")], "this:app", now=5)
    assert sync.taken == [("cleanup", "other:app")]
    assert synchronised({"cleanup": CLEANUP}, [stored("this:app")], "this:app", now=5).taken == []


def test_a_schedule_that_left_the_code_is_stopped_unless_its_app_has_no_name() -> None:
    assert synchronised({}, [stored("this:app")], "this:app", now=5).stopped == ["cleanup"]
    assert synchronised({}, [stored(NO_APP)], NO_APP, now=5, stops=False).puts == []
