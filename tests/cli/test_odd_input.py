"""Odd input: each is a one-line error, and nothing is stored or deleted."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from casque import InvalidError, NewJob, Queue
from casque.cli.enqueue import stdin
from casque.cli.main import run
from casque.cli.store import Access
from casque.queues.runner_asyncio import LoopRunner
from casque.record import ABSENT, CONFIG
from casque.rules.operations import PutRecord
from casque.worker.shell.settings import SETTINGS, Settings, settings_of, unfit
from tests.acceptance.fleet import until
from tests.cli.control import ANSWERED_WITHIN, QUEUECTL, Control

HUGE = "9" * 400
NINES = "9" * 5_000


@pytest.mark.parametrize(
    "words",
    [
        ("enqueue", "-c", "ls", "--delay", HUGE),
        ("enqueue", f'{{"command": "ls", "delay": {HUGE}}}'),
        ("enqueue", f'{{"command": "ls", "delay": -{HUGE}}}'),
        ("enqueue", '{"command": "ls", "delay": 1e308}'),
        ("enqueue", "[" * 5_000 + "]" * 5_000),
        ("enqueue", f'{{"command": "ls", "max_attempts": {HUGE}}}'),
        ("config", "set", "max_retries", NINES),
        ("config", "set", "max_retries", "-1"),
        ("config", "set", "backoff_base", HUGE),
        ("list", "--queue", "a\udcff"),
        ("dlq", "list", "--queue", "a\udcff"),
        ("dlq", "purge", "--yes", "--queue", "a\udcff"),
        ("dlq", "retry", "--all", "--queue", "a\udcff"),
        ("reset", "--yes", "--store", ""),
        ("status", "--store", " "),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_odd_input_is_refused(control: Control, words: tuple[str, ...]) -> None:
    control.begins()
    result = control.refused(*words)
    assert "should not happen" not in result
    assert control.jobs() == []


def test_an_invalid_depth_variable_is_named(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASQUE_DEPTH", NINES)
    assert "CASQUE_DEPTH" in control.refused("enqueue", "-c", "ls")


@pytest.mark.parametrize("key", ["max_retries", "timeout", "backoff_max", "poll_interval"])
@pytest.mark.parametrize("value", ["1234567", "0.25", "86400"])
def test_a_setting_is_shown_as_it_can_be_set(control: Control, key: str, value: str) -> None:
    if control("config", "set", key, value).code:
        return  # max_retries must be a whole number
    shown = control.done("config", "get", key).strip()
    control.done("config", "set", key, shown)
    assert control.done("config", "get", key).strip() == shown


@pytest.mark.parametrize("value", [b"null", b"-5", b'"x"', b"1e300", b"[]", b"{", b"\xff", b"true"])
def test_an_invalid_stored_setting_is_ignored(value: bytes, tmp_path: Path) -> None:
    with Access(f"{tmp_path}/jobs.db") as access:
        for key in SETTINGS:
            access.submit(PutRecord(CONFIG, key, value, ABSENT))
        records = access.records(CONFIG)
    for record in records:
        is_fit = value == b"null" and record.name in ("timeout", "dead_retention", "poll_interval")
        assert unfit([record]) == ([] if is_fit else [record.name])
        if record.name != "dead_retention" or not is_fit:
            assert settings_of([record]) == Settings()
    # Of all defaults, only this one is not "none" where "none" is valid.
    kept_us = None if value == b"null" else Settings().dead_retention_us
    assert settings_of(records) == Settings(dead_retention_us=kept_us)
    assert run(["--store", f"{tmp_path}/jobs.db", "enqueue", "-c", "true"]) == 0


def test_a_time_beyond_the_local_calendar_is_shown_in_utc(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.done("enqueue", "-c", "ls", "--id", "late", "--run-at", "9999-12-31T23:59:59Z")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert "9999-12-31 23:59:59Z" in control.done("show", "late")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_local_time_that_a_clock_change_skips_uses_the_offset_before(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        control.done("enqueue", "-c", "ls", "--id", "a", "--run-at", "2027-03-14T02:30:00")
        assert control("show", "a", "--json").json["run_at"] == "2027-03-14T07:30:00.000000Z"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_shows_the_ends_of_ids_and_fewer_columns(
    control: Control, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    made = control("enqueue", "-c", "echo something longer", "--json").json["id"]
    monkeypatch.setenv("COLUMNS", str(width))
    for command in (("list",), ("dlq", "list"), ("dlq", "errors")):
        if command == ("dlq", "list"):
            control.worked(lambda queue, job: queue.fail(job, error="no luck at all"))
        lines = control.done(*command).splitlines()
        assert all(line[-1] in "┓┃┩│┘" for line in lines[1:]), "no column is cut"
        assert max(map(len, lines)) <= width
        assert f"…{made[-8:]} " in "\n".join(lines)


def test_options_may_stand_between_a_group_and_its_command(control: Control) -> None:
    assert control("dlq", "--json", "list").json == []
    assert run(["config", "--store", control.store, "set", "max_retries", "7"]) == 0
    assert control.done("config", "get", "max_retries") == "7\n"


def test_two_concurrent_dlq_retries_of_all_both_succeed(anywhere: Control) -> None:
    with Queue(anywhere.store) as queue:
        queue.enqueue_many([NewJob("e", id=f"j{n}", max_attempts=1) for n in range(5)])
        for job in queue.dequeue(batch_size=5):
            queue.fail(job, error="no")
        access = Access(anywhere.store)
        listed = access.jobs

        def meanwhile(*arguments: object, **options: object) -> object:
            page = listed(*arguments, **options)  # type: ignore[arg-type]
            for job in page[:2]:
                queue.retry(job.id)  # by another process
            return page

        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr(Access, "jobs", lambda _, *a, **o: meanwhile(*a, **o))
        result = anywhere("dlq", "retry", "--all")
        monkeypatch.undo()
        assert result.code == 0
        assert "2 dead jobs skipped: they have changed meanwhile" in result.err
        assert queue.stats().dead == 0
        access.__exit__(None, None, None)


def test_a_non_blocking_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    source, sink = os.pipe()
    os.set_blocking(source, False)
    store = f"{tmp_path}/jobs.db"
    with subprocess.Popen(
        [*QUEUECTL, "--store", store, "enqueue", "-"], stdin=source, stdout=subprocess.PIPE
    ) as command:
        os.close(source)
        os.write(sink, b'{"command": "a"}\n{"comm')
        with Queue(store) as queue:
            until("what came is stored", lambda: queue.stats().pending == 1)
        os.write(sink, b'and": "b"}\n')
        os.close(sink)
        out, _ = command.communicate(timeout=ANSWERED_WITHIN)
    assert (command.returncode, out) == (0, b"2 jobs enqueued.\n")


def test_ctrl_c_names_the_lines_that_may_be_stored(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_it = Access.run

    def interrupted(access: Access, call: Any) -> Any:
        answer: Any = run_it(access, call)
        if isinstance(answer, list) and answer and hasattr(answer[0], "duplicate"):
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(stdin, "ENQUEUE_MANY_JOBS", 2)
    monkeypatch.setattr(Access, "run", interrupted)
    result = control(
        "enqueue", "-", stdin=b'{"command": "a"}\n{"command": "b"}\n{"command": "c"}\n'
    )
    assert result.code == 130
    assert "0 jobs had been enqueued, and lines 1 to 2 may have been" in result.err
    result = control("enqueue", "-c", "ls")
    assert (result.code, result.out) == (130, "")
    assert "the job may be stored or not" in result.err


async def _number() -> int:
    return 7


def test_a_call_after_the_runner_is_closed_is_refused() -> None:
    for _ in range(50):
        runner = LoopRunner()
        assert runner.run(_number()) == 7
        runner.close()
        runner.close()
        with pytest.raises(InvalidError, match="closed"):
            runner.run(_number())
