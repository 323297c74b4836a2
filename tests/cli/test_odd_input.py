"""Input that nobody means: each is told in one line, and nothing is stored or wiped for it."""

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
def test_it_is_refused_as_wrong_input(control: Control, words: tuple[str, ...]) -> None:
    told = control.refused(*words)
    assert "should not happen" not in told
    assert control.jobs() == []


def test_a_depth_that_is_none_is_named(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASQUE_DEPTH", NINES)
    assert "CASQUE_DEPTH" in control.refused("enqueue", "-c", "ls")


@pytest.mark.parametrize("key", ["max_retries", "timeout", "backoff_max", "poll_interval"])
@pytest.mark.parametrize("value", ["1234567", "0.25", "86400"])
def test_a_setting_is_shown_as_it_can_be_set(control: Control, key: str, value: str) -> None:
    if control("config", "set", key, value).code:
        return  # no fraction of an attempt
    shown = control.done("config", "get", key).strip()
    control.done("config", "set", key, shown)
    assert control.done("config", "get", key).strip() == shown


@pytest.mark.parametrize("value", [b"null", b"-5", b'"x"', b"1e300", b"[]", b"{", b"\xff", b"true"])
def test_a_setting_that_makes_no_sense_is_not_minded(value: bytes, tmp_path: Path) -> None:
    with Access(f"{tmp_path}/jobs.db") as access:
        for key in SETTINGS:
            access.submit(PutRecord(CONFIG, key, value, ABSENT))
        records = access.records(CONFIG)
    for record in records:
        is_fit = value == b"null" and record.name in ("timeout", "poll_interval")
        assert unfit([record]) == ([] if is_fit else [record.name])
        assert settings_of([record]) == Settings()
    assert settings_of(records) == Settings()
    assert run(["--store", f"{tmp_path}/jobs.db", "enqueue", "-c", "true"]) == 0


def test_a_time_that_no_zone_can_show_is_shown(
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


def test_an_hour_that_the_clocks_leave_out_counts_from_before(
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


def test_in_40_columns_a_list_shows_whole_ids(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = control("enqueue", "-c", "echo something longer", "--json").json["id"]
    monkeypatch.setenv("COLUMNS", "40")
    lines = control.done("list").splitlines()
    assert max(map(len, lines)) <= 40
    cells = [line.split("│")[1:] for line in lines if line.startswith("│")]
    assert "".join(row[0].strip() for row in cells) == made
    assert "".join(row[1].strip() for row in cells).startswith("echo")


def test_options_may_stand_between_a_group_and_its_command(control: Control) -> None:
    assert control("dlq", "--json", "list").json == []
    assert run(["config", "--store", control.store, "set", "max_retries", "7"]) == 0
    assert control.done("config", "get", "max_retries") == "7\n"


def test_two_that_bring_back_all_the_dead_are_both_done(anywhere: Control) -> None:
    with Queue(anywhere.store) as queue:
        queue.enqueue_many([NewJob("e", id=f"j{n}", max_attempts=1) for n in range(5)])
        for job in queue.dequeue(batch_size=5):
            queue.fail(job, error="no")
        access = Access(anywhere.store)
        listed = access.jobs

        def meanwhile(*arguments: object, **options: object) -> object:
            page = listed(*arguments, **options)  # type: ignore[arg-type]
            for job in page[:2]:
                queue.retry(job.id)  # by somebody else
            return page

        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr(Access, "jobs", lambda _, *a, **o: meanwhile(*a, **o))
        told = anywhere("dlq", "retry", "--all")
        monkeypatch.undo()
        assert (told.code, told.err) == (0, "")
        assert queue.stats().dead == 0
        access.__exit__(None, None, None)


def test_a_pipe_that_does_not_block_is_read_to_its_end(tmp_path: Path) -> None:
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


def test_ctrl_c_says_what_may_be_stored_too(
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
    told = control("enqueue", "-", stdin=b'{"command": "a"}\n{"command": "b"}\n{"command": "c"}\n')
    assert told.code == 130
    assert "0 jobs had been enqueued, and lines 1 to 2 may have been" in told.err
    told = control("enqueue", "-c", "ls")
    assert (told.code, told.out) == (130, "")
    assert "the job may be stored or not" in told.err


async def _number() -> int:
    return 7


def test_a_call_that_comes_as_the_loop_ends_is_refused() -> None:
    for _ in range(50):
        runner = LoopRunner()
        assert runner.run(_number()) == 7
        runner.close()
        runner.close()
        with pytest.raises(InvalidError, match="closed"):
            runner.run(_number())
