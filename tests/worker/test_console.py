"""The lines for a person who watches workers in a terminal."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from pathlib import Path

import pytest

from casque import App, Discard, Snooze
from casque.worker.logging import setup
from casque.worker.logging.console import SUPERVISOR_LOGGER, ConsoleLines, shown
from casque.worker.logging.setup import LogOptions
from casque.worker.shell import task as shell
from casque.worker.shell.task import add_shell
from tests.worker.apps import beside, run_until_idle, wait_for
from tests.worker.shells import command, configure, job_of

PID = os.getpid()


@contextmanager
def watching(level: int = logging.INFO) -> Iterator[io.StringIO]:
    """Set up as `set_up` does, but with our own stream and without pytest's handlers."""
    root, worker, stream = (
        logging.getLogger(),
        logging.getLogger(setup.WORKER_LOGGER),
        io.StringIO(),
    )
    before, was, was_worker = root.handlers[:], root.level, worker.level
    root.handlers[:] = []
    try:
        with redirect_stdout(stream):
            setup.set_up(LogOptions(level=level, format="console"))
        yield stream
    finally:
        root.handlers[:] = before
        root.setLevel(was)
        worker.setLevel(was_worker)
        setup._current.pop()


def lines_of(stream: io.StringIO) -> list[str]:
    lines = stream.getvalue().splitlines()
    assert all(line.startswith(f"[Worker {PID}] ") for line in lines), lines
    return [line.removeprefix(f"[Worker {PID}] ") for line in lines]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(tmp_path / "jobs.db") as app:
        add_shell(app)
        yield app


def test_the_console_shows_a_worker_and_its_jobs(app: App) -> None:
    configure(app.queue, backoff_base="0")
    app.queue.enqueue_many([command("echo hi  &&\n\n true", "good"), command("exit 1", "bad")])
    with watching() as stream:
        run_until_idle(app, concurrency=1)
    assert lines_of(stream) == [
        f"Opening the store {app.store.name}.",
        "Started and registered.",
        "Processing job good: echo hi && true",
        "Job good completed successfully.",
        "Processing job bad: exit 1",
        "Job bad failed (exit code 1).",
        "Stopped and unregistered.",
    ]


def test_the_console_names_the_entrypoint_and_the_error_of_a_task(app: App) -> None:
    @app.task(max_attempts=1)
    async def fails() -> None:
        raise ValueError("no\nsuch thing")

    @app.task
    async def snoozes() -> None:
        raise Snooze(timedelta(hours=1))

    @app.task
    async def discards() -> None:
        raise Discard

    for task in (fails, snoozes, discards):
        task.using(id=f"the-{task.name}").enqueue()
    with watching() as stream:
        run_until_idle(app, concurrency=1)
    said = lines_of(stream)
    assert "Processing job the-fails: fails" in said
    assert "Job the-fails failed (ValueError: no such thing)." in said
    assert "Job the-snoozes snoozed." in said
    assert "Job the-discards discarded." in said
    assert "Traceback" not in stream.getvalue()


def test_the_console_shows_a_stop_and_the_released_jobs(app: App, tmp_path: Path) -> None:
    app.queue.enqueue_many([command("sleep 300", "long")])
    with watching() as stream, beside(app, grace_us=0) as worker:
        wait_for("it runs", lambda: "Processing" in stream.getvalue())
        worker.worker.stop()
        worker.join()
        assert lines_of(stream) == [
            f"Opening the store {app.store.name}.",
            "Started and registered.",
            "Processing job long: sleep 300",
            "Shutdown signal received. Exiting...",
            "Job long released.",
            "Stopped and unregistered.",
        ]


def test_the_console_shows_a_cancelled_job_as_lost(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "_LOOK_SECONDS", 0.1)
    app.queue.enqueue_many([command("sleep 300", "long")])
    with watching() as stream, beside(app):
        wait_for("it runs", lambda: "Processing" in stream.getvalue())
        app.queue.cancel("long")
        wait_for("it says so", lambda: "Job long lost: it was cancelled" in stream.getvalue())


def test_the_console_hides_lines_below_its_level(app: App) -> None:
    app.queue.enqueue_many([command("true", "good"), command("exit 3", "bad")])
    with watching(logging.WARNING) as stream:
        run_until_idle(app)
    assert lines_of(stream) == ["Job bad failed (exit code 3)."]
    assert job_of(app, "good").result is not None


def test_nothing_in_a_command_reaches_the_terminal_raw(app: App) -> None:
    evil = "\x1b]0;title\x07\x9b31m\u202eevil"
    app.queue.enqueue_many([command(f"true {evil}", f"id-{evil}")])
    with watching() as stream:
        run_until_idle(app)
    text = stream.getvalue()
    assert text.replace("\n", "").isprintable(), text
    assert "true \\x1b]0;title\\x07\\x9b31m\\u202eevil" in text


def test_a_long_command_is_cut(app: App) -> None:
    app.queue.enqueue_many([command(f": {'x' * 5_000}", "long")])
    with watching() as stream:
        run_until_idle(app)
    assert max(map(len, stream.getvalue().splitlines())) < 250


def record(name: str, message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.INFO, "f", 1, message, (), None)
    vars(made).update(fields)
    return made


def test_the_console_shows_a_record_without_an_event_as_it_is() -> None:
    made = record("elsewhere", "said\x07 so, é")
    made.exc_info = (ValueError, ValueError("with a\x1bcode"), None)
    assert ConsoleLines().format(made).splitlines() == [
        f"[Worker {PID}] said\\x07 so, é",
        "ValueError: with a\\x1bcode",
    ]


@pytest.mark.parametrize(
    ("event", "fields", "line"),
    [
        ("supervising", {"count": 2}, "Starting 2 worker(s) in foreground mode..."),
        ("started", {"child": 20}, "Started worker PID: 20"),
        ("terminating", {"count": 2}, "Shutdown signal received. Terminating 2 workers..."),
        ("died", {"child": 20, "how": "was killed by SIGKILL"}, None),
        ("all_ended", {}, "All workers shut down. Exiting."),
    ],
)
def test_the_supervisor_is_named_manager_on_the_console(
    event: str, fields: dict[str, object], line: str | None
) -> None:
    made = record(SUPERVISOR_LOGGER, "in other words", event=event, **fields)
    line = line or "Worker 20 was killed by SIGKILL. Starting another."
    assert ConsoleLines().format(made) == f"[Manager] {line}"
    assert shown(logging.INFO)(made)


def test_the_console_ignores_an_event_field_that_is_not_ours() -> None:
    made = record("elsewhere", "said", event=5)
    assert ConsoleLines().format(made) == f"[Worker {PID}] said"
    assert shown(logging.INFO)(made)
