"""Workers fire schedules, and store those that their app declares."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from casque import App, current_job
from casque.record import ABSENT, SCHEDULE, Record
from casque.rules.operations import DeleteRecord, PutRecord
from casque.schedule import Schedule, encode
from casque.stores.memory import MemoryStore
from casque.system.clock import SECOND_US, drive, to_datetime
from casque.tasks.schedules import readable
from casque.testing import FakeClock
from casque.testing.batches import commit_batch
from tests.worker.apps import STORES, beside, on_disk, run_until_idle, wait_for

on_each_store = pytest.fixture(params=STORES)(on_disk)
HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app(clock: FakeClock) -> App:
    return App(MemoryStore(clock))


def schedules(app: App) -> dict[str, Schedule]:
    records = drive(app.store.records(SCHEDULE))
    return {name: schedule for name, (_, schedule) in readable(records).items()}


def put(app: App, name: str, schedule: Schedule) -> None:
    """As an operator does."""
    operation = PutRecord(SCHEDULE, name, encode(schedule), ABSENT)
    drive(commit_batch(app.store, app.store.clock.new_id(), 1, [operation]))


def noting(app: App) -> tuple[list[str], Callable[[], None]]:
    ran: list[str] = []

    def note() -> None:
        ran.append(current_job().headers["casque-tick"])

    return ran, app.task(note)


def at(app: App) -> str:
    return to_datetime(app.store.clock.now()).isoformat()


def test_a_waiting_worker_wakes_for_each_tick(app: App, clock: FakeClock) -> None:
    ran, note = noting(app)
    app.cron("@hourly")(note)
    expected: list[str] = []
    with beside(app):
        wait_for("it is stored", lambda: schedules(app))
        for _ in range(3):
            clock.advance(HOUR)
            expected.append(at(app))
            wait_for("it has run", lambda: ran == expected)
    assert schedules(app)["note"].last_tick_us == clock.now()


def test_a_worker_fires_on_every_kind_of_store(on_each_store: App) -> None:
    app, done = on_each_store, threading.Event()

    @app.every(timedelta(seconds=1))
    def beat() -> None:
        done.set()

    with beside(app), beside(app):
        assert done.wait(100)


def test_a_schedule_that_is_added_later_wakes_the_workers(app: App, clock: FakeClock) -> None:
    ran, _ = noting(app)
    with beside(app) as worker:
        wait_for("it sleeps", lambda: clock.sleepers)
        put(app, "later", Schedule(entrypoint="note", line="@hourly", since_us=clock.now()))
        thread = worker.worker._store_thread
        clock.advance(timedelta(seconds=2))
        wait_for("it knows the tick", lambda: thread._schedules._next)
        clock.advance(HOUR - timedelta(seconds=2))
        wait_for("it has run", lambda: ran == [at(app)])
        [record] = drive(app.store.records(SCHEDULE))
        delete = DeleteRecord(SCHEDULE, "later", record.version)
        drive(commit_batch(app.store, "operator", 1, [delete]))
        clock.advance(timedelta(seconds=2))
        wait_for("it knows that there is none", lambda: not thread._schedules._next)


class CountingStore(MemoryStore):
    """Counts the reads of schedules."""

    reads = 0

    async def records(self, kind: str) -> list[Record]:
        self.reads += kind == SCHEDULE
        return await super().records(kind)


def test_an_idle_worker_reads_the_schedules_once(clock: FakeClock) -> None:
    store = CountingStore(clock)
    app = App(store)
    ran, note = noting(app)
    app.cron("@daily")(note)
    with beside(app) as worker:
        wait_for("it has begun to read", lambda: store.reads)
        thread = worker.worker._store_thread
        wait_for("it knows the tick", lambda: thread._schedules._next)
        clock.advance(timedelta(seconds=5))
        wait_for("it has read what it stored", lambda: not thread._schedules._is_rung)
        reads = store.reads
        for _ in range(30):
            before = thread._beat_us
            clock.advance(timedelta(seconds=20))
            wait_for("it renews its entry", lambda: thread._beat_us != before)  # noqa: B023
        assert store.reads == reads
    assert ran == []


def test_a_worker_until_idle_runs_the_ticks_that_are_due(app: App, clock: FakeClock) -> None:
    ran, note = noting(app)
    app.cron("@hourly")(note)
    run_until_idle(app)
    assert ran == []
    clock.advance(5 * HOUR)
    run_until_idle(app)
    assert ran == [at(app)]
    run_until_idle(app)
    assert ran == [at(app)]


def test_all_ticks_of_the_window_are_caught_up_in_order(app: App, clock: FakeClock) -> None:
    ran, note = noting(app)
    app.cron("@hourly", catch_up=3 * HOUR)(note)
    run_until_idle(app)
    clock.advance(10 * HOUR)
    run_until_idle(app, concurrency=1)
    hours = [clock.now() - n * 3_600 * SECOND_US for n in (2, 1, 0)]
    assert ran == [to_datetime(one).isoformat() for one in hours]


def test_a_worker_without_a_free_slot_still_fires(app: App, clock: FakeClock) -> None:
    go_on, begun = threading.Event(), threading.Event()
    ran, note = noting(app)
    app.cron("@hourly")(note)

    @app.task
    def long() -> None:
        begun.set()
        go_on.wait(100)

    with beside(app, concurrency=1):
        wait_for("it is stored", lambda: schedules(app))
        long.enqueue()
        assert begun.wait(100)
        clock.advance(timedelta(seconds=30))
        clock.advance(HOUR - timedelta(seconds=30))
        wait_for("the job is added", lambda: app.queue.stats().total == 2)
        assert not ran
        go_on.set()
        wait_for("it has run", lambda: ran)


def test_a_schedule_that_left_the_code_is_stopped_and_returns_without_its_past(
    app: App, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("casque.worker.worker.name_of", lambda _: "tasks:app")
    ran, note = noting(app)
    app.cron("@hourly")(note)
    run_until_idle(app)
    without = App(app.store)
    noting(without)
    with caplog.at_level(logging.INFO):
        run_until_idle(without)
    assert "schedule note is no longer in the code of tasks:app: stopped" in caplog.text
    assert schedules(app)["note"].is_stopped
    clock.advance(HOUR)
    run_until_idle(without)
    run_until_idle(app)
    assert not schedules(app)["note"].is_stopped
    assert ran == []
    clock.advance(HOUR)
    run_until_idle(app)
    assert ran == [at(app)]


def test_another_app_on_the_store_stops_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casque.worker.worker.name_of", lambda _: "one:app")
    app.cron("@hourly")(noting(app)[1])
    run_until_idle(app)
    monkeypatch.setattr("casque.worker.worker.name_of", lambda _: "two:app")
    other = App(app.store)
    noting(other)
    run_until_idle(other)
    assert not schedules(app)["note"].is_stopped


def test_an_operators_schedule_and_one_in_the_code_never_overwrite_each_other(
    app: App, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = Schedule(entrypoint="note", line="@daily", since_us=clock.now())
    put(app, "note", theirs)
    app.cron("@hourly")(noting(app)[1])
    run_until_idle(app)
    assert schedules(app) == {"note": theirs}
    assert "schedule note of this app is not stored: an operator's schedule" in caplog.text


def test_a_pause_survives_a_new_version_of_the_code(app: App, clock: FakeClock) -> None:
    put(app, "note", Schedule(entrypoint="note", line="@daily", app="(no module)", is_paused=True))
    ran, note = noting(app)
    app.cron("@hourly")(note)
    run_until_idle(app)
    clock.advance(HOUR)
    run_until_idle(app)
    stored = schedules(app)["note"]
    assert (stored.line, stored.is_paused, ran) == ("@hourly", True, [])


def test_a_schedule_that_this_machine_cannot_use_stops_no_other(
    app: App, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ran, note = noting(app)
    app.cron("@hourly")(note)
    put(app, "far", Schedule(entrypoint="note", line="@hourly", tz="Mars/Base"))
    broken = PutRecord(SCHEDULE, "broken", b"not JSON", ABSENT)
    drive(commit_batch(app.store, "another program", 1, [broken]))
    run_until_idle(app)
    clock.advance(HOUR)
    run_until_idle(app)
    assert ran == [at(app)]
    assert "schedule far does not fire from this worker: there is no time zone" in caplog.text
    assert "schedule broken does not fire from this worker" in caplog.text


def test_a_tick_is_fired_by_the_clock_of_the_store(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    store._time.saw(clock.now() + 1_800 * SECOND_US)  # another process was half an hour ahead
    app = App(store)
    ran, note = noting(app)
    app.cron("@hourly")(note)
    with beside(app):
        wait_for("it is stored", lambda: schedules(app))
        clock.advance(HOUR / 2)
        wait_for("it has run", lambda: ran)
    assert ran == [to_datetime(clock.now() + 1_800 * SECOND_US).isoformat()]


def test_the_name_of_an_app_does_not_depend_on_how_it_is_loaded(tmp_path: Path) -> None:
    import subprocess
    import sys

    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    code = (
        "from casque import App\napp = App('memory://')\n"
        "if __name__ == '__main__':\n"
        "    from casque.worker.loading import name_of\n    print(name_of(app))\n"
    )
    (package / "tasks.py").write_text(code)
    load = "from casque.worker.loading import *; print(name_of(load_app({!r})))"
    ways = [
        ["-c", load.format("shop.tasks:app")],
        ["-c", load.format("shop/tasks.py")],
        ["shop/tasks.py"],
        ["-m", "shop.tasks"],
    ]
    for way in ways:
        ran = subprocess.run(
            [sys.executable, *way], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert ran.stdout == "shop.tasks:app\n"
