"""The output of status, list, show and queues, for people and for programs."""

from __future__ import annotations

import os
import re
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from casque import Job, NewJob, Queue
from casque.job import Failure
from casque.record import ABSENT, WORKER
from casque.rules.operations import PutRecord, Release
from casque.rules.transitions import MISMATCH
from tests.cli.control import Control, process
from tests.notes import without_notes

KEYS = [
    *("id", "queue", "entrypoint", "command", "state", "attempts", "max_attempts", "priority"),
    *("headers", "created_at", "run_at", "claimed_at", "finished_at", "updated_at", "worker"),
    *("error", "exit_code"),
]
NASTY = "echo \x1b[31m [red]x[/red] :smile: \x07\u202e\nrm"
SHOWN = r"echo \x1b[31m [red]x[/red] :smile: \x07\u202e\nrm"


def one_of_each(control: Control) -> None:
    """Store a job in every state."""
    control.done("enqueue", "-c", "true", "--id", "completed")
    control.worked(lambda queue, job: queue.ack(job, result=b'{"command": "true", "exit_code": 0}'))
    control.dies("dead")
    control.done("enqueue", "-c", "false", "--id", "failed")
    control.worked(lambda queue, job: queue.nack(job, error="exit code 1"))
    with Queue(control.store) as queue:  # so that the next `worked` does not claim it
        queue.pause("default")
    control.done("enqueue", "-c", "sleep 9", "--id", "processing", "-q", "other")
    control.worked(lambda queue, job: None)
    control.done("enqueue", "-c", "a", "--id", "pending")
    control.done("enqueue", "-c", "a", "--id", "scheduled", "--delay", "1h")
    control.done("enqueue", "-c", "a", "--id", "cancelled")
    control.done("cancel", "cancelled", "--reason", "no need")


def first_column(table: str) -> list[str]:
    return re.findall(r"^│ (\w+) +│", table, re.MULTILINE)


def test_status_counts_by_state(anywhere: Control) -> None:
    anywhere.done("config", "set", "max_retries", "3")  # creates the store
    assert anywhere.done("status").split("\n")[:-2] == [
        "   QueueCTL Status    ",
        "┏━━━━━━━━━━━━┳━━━━━━━┓",
        "┃ State      ┃ Count ┃",
        "┡━━━━━━━━━━━━╇━━━━━━━┩",
        "│ Pending    │     0 │",
        "│ Processing │     0 │",
        "│ Completed  │     0 │",
        "│ Failed     │     0 │",
        "│ Dead       │     0 │",
        "└────────────┴───────┘",
        "Active Workers: 0 []",
    ]
    one_of_each(anywhere)
    result = anywhere.done("status")
    states = "Pending Processing Completed Failed Dead Scheduled Cancelled"
    assert re.findall(r"│ (\w+) +│ +1 │", result) == states.split()
    assert "Paused Queues: default\n" in result
    counts = anywhere("status", "--json").json
    assert {counts[state] for state in states.lower().split()} == {1}
    assert (counts["total"], counts["paused"], counts["workers"]) == (7, ["default"], [])
    assert anywhere("status", "--queue", "other", "--json").json["total"] == 1


def test_status_lists_the_workers(control: Control) -> None:
    from casque.cli.store import Access

    pids = (os.getpid(), os.getppid())
    with Access(control.store) as access:
        for pid in pids:
            entry = {
                "name": f"host:{pid}",
                "host": "elsewhere",
                "pid": pid,
                "started_at": "2026-01-01T00:00:00Z",
                "beat_at": "2026-01-01T00:00:00Z",
                "concurrency": 1,
                "queues": None,
                "entrypoints": ["shell"],
                "running": [],
            }
            access.submit(PutRecord(WORKER, f"host:{pid}", msgspec.json.encode(entry), ABSENT))
    assert f"Active Workers: 2 {sorted(pids)}\n" in control.done("status")
    result = control("status", "--json").json["workers"]
    assert sorted(worker["pid"] for worker in result) == sorted(pids)


def test_status_names_due_jobs_that_no_worker_serves(anywhere: Control) -> None:
    from casque.cli.store import Access

    assert anywhere("status", "--json").json["unserved"] == {}
    long_ago = datetime.now(UTC) - timedelta(minutes=1)
    with Queue(anywhere.store) as queue:
        new = [NewJob("send\x1b_emial")] * 2 + [NewJob("charge"), NewJob("shell")]
        new.append(NewJob("shell", queue="mi\x1bal"))
        queue.enqueue_many([replace(one, run_at=long_ago) for one in new])
        queue.enqueue("charge")  # due just now: a worker, or any consumer, may be about to take it
        queue.enqueue("later", delay=timedelta(hours=1))
        queue.enqueue("held", queue="held", run_at=long_ago)
        queue.pause("held")
    everything = {
        "send\x1b_emial": {"default": 2},
        "charge": {"default": 1},
        "shell": {"default": 1, "mi\x1bal": 1},
    }
    assert anywhere("status", "--json").json["unserved"] == everything
    assert "Worker Serves" not in anywhere.done("status"), "there is no worker, as it says"
    with Access(anywhere.store) as access:
        entry = {
            "name": "w",
            "host": "elsewhere",
            "pid": 1,
            "started_at": "2026-01-01T00:00:00Z",
            "beat_at": "2026-01-01T00:00:00Z",
            "concurrency": 1,
            "queues": ["default"],
            "entrypoints": ["shell", "other"],
            "running": [],
        }
        access.submit(PutRecord(WORKER, "w", msgspec.json.encode(entry), ABSENT))
    lines = anywhere.done("status").splitlines()
    assert lines[-1] == (
        r"No Registered Worker Serves: send\x1b_emial (2), charge (1), shell in queue mi\x1bal (1)"
    )
    assert anywhere("status", "--json").json["unserved"] == {
        "send\x1b_emial": {"default": 2},
        "charge": {"default": 1},
        "shell": {"mi\x1bal": 1},
    }
    lines = anywhere.done("status", "--queue", "mi\x1bal").splitlines()
    assert lines[-1] == r"No Registered Worker Serves: shell in queue mi\x1bal (1)"
    of_queue = anywhere("status", "--queue", "mi\x1bal", "--json").json["unserved"]
    assert of_queue == {"shell": {"mi\x1bal": 1}}
    assert "Worker Serves" not in anywhere.done("status", "--queue", "held")
    assert anywhere("status", "--queue", "none", "--json").json["unserved"] == {}


def test_status_of_a_queue_counts_its_unserved_jobs_behind_many_of_other_queues(
    anywhere: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from casque.worker.registry import unserved

    monkeypatch.setattr(unserved, "COUNTED", 3)
    long_ago = datetime.now(UTC) - timedelta(minutes=1)
    with Queue(anywhere.store) as queue:
        for name in ("before", "mail", "then"):
            queue.enqueue_many([NewJob("send", queue=name, run_at=long_ago)] * 5)
    seen = anywhere("status", "--json").json["unserved"]["send"]
    assert sum(seen.values()) == 3
    assert anywhere("status", "-q", "mail", "--json").json["unserved"] == {"send": {"mail": 3}}


def test_status_counts_the_jobs_that_wait_for_a_newer_worker(anywhere: Control) -> None:
    from casque.cli.store import Access

    assert anywhere("status", "--json").json["mismatched"] == 0
    with Queue(anywhere.store) as queue:
        queue.enqueue_many([NewJob("send", queue=name) for name in ("a", "a", "b")])
        jobs = [job for name in ("a", "b") for job in queue.dequeue(queue=name, batch_size=9)]
    with Access(anywhere.store) as access:
        for job in jobs:
            reason = Failure(MISMATCH, "unknown argument `to`")
            access.submit(Release(job.id, job.token, 60_000_000, reason))
    line = "Waiting for a Newer Worker: 3 (queuectl list --error 'mismatch:')"
    assert line in anywhere.done("status").splitlines()
    assert anywhere("status", "--json").json["mismatched"] == 3
    assert anywhere("status", "--queue", "b", "--json").json["mismatched"] == 1


def test_status_watched_ends_with_ctrl_c(control: Control) -> None:
    command = process("--store", control.store, "status", "--watch", "--interval", "50ms")
    assert command.stdout is not None
    with command:
        shown = 0
        while shown < 3:
            shown += b"Active Workers" in command.stdout.readline()
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=60)
    assert (command.returncode, without_notes(err.decode())) == (0, "")


STATES = ("pending", "scheduled", "failed", "processing", "completed", "dead", "cancelled")


def test_list_shows_the_jobs_of_a_state(anywhere: Control) -> None:
    one_of_each(anywhere)
    for state in STATES:
        result = anywhere.done("list", "--state", state)
        assert result.split("\n")[0].strip() == f"{state.capitalize()} Jobs"
        assert first_column(result) == [state]
        [job] = anywhere("list", "--state", state, "--json").json
        assert list(job) == KEYS
        assert (job["id"], job["state"]) == (state, state)
        assert job["command"] is not None
        assert job["headers"] is None
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", job["created_at"])
        assert job["exit_code"] == {"completed": 0, "failed": 1, "dead": 1}.get(state)


def test_list_shows_jobs_in_order_and_how_many_more_there_are(anywhere: Control) -> None:
    ids = [f"job{number}" for number in range(7)]
    for id in ids:
        anywhere.done("enqueue", "-c", "a", "--id", id, "-q", "mail")
    anywhere.done("enqueue", "-c", "a", "--id", "other")
    result = anywhere.done("list", "--limit", "3", "--state", "pending", "--queue", "mail")
    assert first_column(result) == ids[:3]
    assert result.endswith("\n… and 4 more\n")
    assert "more" not in anywhere.done("list", "--limit", "8")
    assert [job["id"] for job in anywhere("list", "--json").json] == [*ids, "other"]
    assert anywhere.done("list", "--state", "dead") == "No dead jobs.\n"
    assert anywhere("list", "--state", "dead", "--json").json == []


def test_an_unknown_state_is_refused_with_the_list(control: Control) -> None:
    result = control.refused("list", "--state", "sleeping")
    assert "pending, scheduled, failed, processing, completed, dead, cancelled" in result


def test_tables_fit_in_80_columns(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    control.done("enqueue", "-c", "echo " + "word " * 50)
    control.done("enqueue", "-c", "x" * 300, "-q", "q" * 100)
    control.done("enqueue", "-c", "a", "--id", "report-2026-11")
    control.done("enqueue", "-c", "a", "--id", "n" * 100)
    monkeypatch.setenv("COLUMNS", "80")
    for command in (("list",), ("queues",), ("config", "list"), ("dlq", "list")):
        assert max(map(len, control.done(*command).split("\n"))) <= 80
    for job in control.jobs():
        assert max(map(len, control.done("show", job.id).split("\n"))) <= 80


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_table_shows_its_last_column_whole(
    control: Control, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    with Queue(control.store) as q:
        q.enqueue_many([NewJob("charge", b'{"order": 1234567}')] * 2)
        q.fail(q.dequeue()[0], error="the bank refused the card of this customer")
    monkeypatch.setenv("COLUMNS", str(width))
    for command in (("list",), ("dlq", "list"), ("dlq", "errors")):
        drawn = control.done(*command).splitlines()[1:]  # below the title
        lines = [line for line in drawn if not line.startswith("…")]
        assert {line[-1] for line in lines} == set("┓┃┩│┘"), drawn


def test_in_a_pipe_a_command_stays_on_one_line(control: Control) -> None:
    command = "echo " + "word " * 20 + "end"
    control.done("enqueue", "-c", command)
    assert f"│ {command} │" in control.done("list")


def test_text_from_jobs_is_escaped_on_the_terminal(control: Control) -> None:
    names = ("--id", "a\x1b[1m", "-q", "q\x1b[2m", "-H", "\x1b[7m=\x1b[8m")
    result = control.done("enqueue", "-c", NASTY, *names)
    assert result == rf"Job a\x1b[1m enqueued: {SHOWN}" + "\n"
    control.worked(
        lambda queue, job: (
            queue.heartbeat(job, note="\x1b[3m", output=b"\x1b[4m\x00[b]o[/b]\nnext\ttab\r\n"),
            queue.fail(job, error="\x1b[5m[red]e[/red]"),
        )
    )
    control.done("pause", "q\x1b[2m")
    for command in (
        ("list",),
        ("show", "a\x1b[1m"),
        ("dlq", "list"),
        ("queues",),
        ("status",),
        ("dlq", "retry", "a\x1b[1m"),
        ("show", "no\x1b[6m"),
    ):
        answer = control(*command)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", answer.out + answer.err), command
    assert SHOWN in control.done("list")
    result = control.done("show", "a\x1b[1m")
    assert r"\x1b[5m[red]e[/red]" in result
    assert r"\x1b[4m\x00[b]o[/b]" in result
    assert "\nnext    tab\n" in result


def test_there_is_no_colour_in_a_pipe(control: Control) -> None:
    one_of_each(control)
    for command in (("status",), ("list",), ("show", "dead"), ("config", "list")):
        assert "\x1b" not in control.done(*command)


def test_show_prints_everything(anywhere: Control) -> None:
    options = ("-e", "A=1", "--cwd", "/", "--timeout", "5m", "--max-attempts", "2")
    headers = ("--header", "traceparent=00-1-2-01", "-H", "tenant=seven")
    anywhere.done("enqueue", "-c", "make it", "--id", "job1", *options, *headers)
    anywhere.worked(lambda queue, job: queue.nack(job, error="the first error"))
    anywhere.worked(
        lambda queue, job: (
            queue.heartbeat(job, progress=0.5, note="half", output=b"one\ntwo\n"),
            queue.nack(job, error="the second error"),
        )
    )
    result = anywhere.done("show", "job1")
    for words in (
        *("dead", "make it", "A=1", "5m", "2 of 2", "50%", "half", "the first error"),
        *("the second error", "one\ntwo", "Created ", "Claimed ", "Finished "),
        "traceparent=00-1-2-01 tenant=seven",
    ):
        assert words in result
    job = anywhere("show", "job1", "--json").json
    assert list(job)[: len(KEYS)] == KEYS
    assert job["headers"] == {"traceparent": "00-1-2-01", "tenant": "seven"}
    assert (job["output"], job["progress"], job["timeout_seconds"]) == ("one\ntwo\n", 0.5, 300)
    assert [one["error"] for one in job["history"]] == ["the first error", "the second error"]


def test_a_task_is_shown_by_its_entrypoint_and_payload(control: Control) -> None:
    with Queue(control.store) as queue:
        queue.enqueue_many([NewJob("send_email", b'{"to":["a"]}', id="task")])
    assert '│ send_email {"to":["a"]} │' in control.done("list")
    assert "send_email" in control.done("show", "task")
    [job] = control("list", "--json").json
    assert (job["entrypoint"], job["command"]) == ("send_email", None)


def test_the_end_of_long_output_is_shown(control: Control) -> None:
    control.done("enqueue", "-c", "a", "--id", "job1")
    lines = b"".join(b"line %d\n" % number for number in range(100))
    control.worked(lambda queue, job: queue.heartbeat(job, output=lines))
    result = control.done("show", "job1")
    assert "the last 20 of 100 lines" in result
    assert "line 99" in result
    assert "line 79" not in result


def test_an_unknown_id_is_not_found(anywhere: Control) -> None:
    anywhere.begins()
    for command in ("show", "cancel", "retry"):
        assert "nope" in anywhere.refused(command, "nope", code=3)
    assert "nope" in anywhere.refused("dlq", "show", "nope", code=3)


def test_queues_are_counted_one_by_one(anywhere: Control) -> None:
    one_of_each(anywhere)
    anywhere.done("pause", "empty")
    result = {one["queue"]: one for one in anywhere("queues", "--json").json}
    assert list(result) == ["default", "empty", "other"]
    assert (result["default"]["pending"], result["default"]["dead"]) == (1, 1)
    assert (result["other"]["processing"], result["other"]["paused"]) == (1, False)
    assert result["empty"]["paused"]
    shown = anywhere.done("queues")
    assert first_column(shown) == ["default", "empty", "other"]


def test_common_options_come_before_or_after_the_command(control: Control, tmp_path: Path) -> None:
    control.done("enqueue", "-c", "a")
    result = control("list", "--json").out
    assert control("--json", "list").out == result
    elsewhere = f"{tmp_path}/other.db"
    assert control("list", "--store", elsewhere, "--json").out == "[]\n"


def test_a_job_whose_last_lease_expired_is_listed_as_dead(anywhere: Control) -> None:
    with Queue(anywhere.store) as queue:
        queue.enqueue("e", id="spent", max_attempts=1)
        queue.enqueue("e", id="held", max_attempts=1)
        queue.dequeue(id="spent", lease=timedelta(microseconds=1))
        queue.dequeue(id="held")
    listed = {
        state: [one["id"] for one in anywhere("list", "--state", state, "--json").json]
        for state in ("processing", "dead")
    }
    assert listed == {"processing": ["held"], "dead": ["spent"]}


def test_list_has_columns_for_state_and_queue(control: Control) -> None:
    one_of_each(control)
    result = control.done("list")
    titles = re.findall(r"[A-Z][\w ]*\w", result.split("\n")[2])
    assert titles == ["Job ID", "Command", "State", "Queue", "Attempts", "Updated At"]
    assert set(re.findall(r"│ (\w+) +│ (?:default|other) ", result)) == set(STATES)


def test_on_a_narrow_terminal_ids_and_times_are_short(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.done("enqueue", "-c", "make it")
    control.done("enqueue", "-c", "make it", "--id", "report-2026-11")
    [job, _] = control.jobs()
    monkeypatch.setenv("COLUMNS", "80")
    result = control.done("list")
    assert f"│ …{job.id[-8:]} " in result
    assert "│ report-2026-11 │ make it " in result
    assert re.search(r"│ \d\d:\d\d:\d\d +│", result)
    assert job.id in control("list", "--json").out
    for width in ("120", None):
        monkeypatch.delenv("COLUMNS") if width is None else monkeypatch.setenv("COLUMNS", width)
        assert f"│ {job.id} │" in control.done("list")
        assert re.search(r"│ \d{4}-\d\d-\d\d \d\d:\d\d:\d\d │", control.done("list"))


def test_show_prints_the_traceback_of_the_last_failure(anywhere: Control) -> None:
    anywhere.done("enqueue", "-c", "a", "--id", "job1", "--max-attempts", "3")

    def fails(name: str) -> None:
        def attempt(queue: Queue, job: Job) -> None:
            nothing: dict[str, int] = {}
            try:
                nothing[f"{name} \x1b[31m [red]x[/red]"]
            except KeyError as error:
                queue.nack(job, error=error)

        anywhere.worked(attempt)

    fails("first")
    shown = anywhere.done("show", "job1")
    assert "\nTraceback of attempt 1:\nTraceback (most recent call last):\n" in shown
    fails("second")
    anywhere.worked(lambda queue, job: queue.nack(job, error="no traceback"))
    shown = anywhere.done("show", "job1")
    head, traceback = shown.split("Traceback of attempt 2; --json prints those before:\n")
    assert traceback.endswith("\nKeyError: 'second \\x1b[31m [red]x[/red]'\n")
    assert "first" not in traceback
    for text in (r"│ KeyError: 'first \x1b[31m [red]x[/red]'", "│ no traceback "):
        assert text in head
    assert "\x1b" not in shown


def test_a_long_traceback_is_cut_at_its_beginning(control: Control) -> None:
    control.done("enqueue", "-c", "a", "--id", "job1")

    def recurse(depth: int) -> None:
        if depth % 2:
            recurse(depth - 1)
        elif depth:
            _other(depth)
        else:
            raise ValueError("the end")

    def _other(depth: int) -> None:
        recurse(depth - 1)

    def attempt(queue: Queue, job: Job) -> None:
        try:
            recurse(30)
        except ValueError as error:
            queue.fail(job, error=error)

    control.worked(attempt)
    shown = control.done("show", "job1")
    assert re.search(
        r"Traceback of attempt 1 \(the last 40 of \d+ lines; --json prints all\)", shown
    )
    assert shown.endswith("\nValueError: the end\n")


def test_a_completed_job_is_shown_with_its_payload(anywhere: Control) -> None:
    with Queue(anywhere.store) as queue:
        for size in (8_000, 9_000):
            queue.enqueue("e", b"x" * size, id=f"sized-{size}", retain=timedelta(hours=1))
        queue.ack_many(queue.dequeue(batch_size=2))
    assert anywhere("show", "sized-8000", "--json").json["payload"] == "x" * 8_000
    assert anywhere("show", "sized-9000", "--json").json["payload"] == ""
    assert "│ e xxxxx" in anywhere.done("list", "--state", "completed")


def test_show_prints_an_error_of_several_lines_in_lines(control: Control) -> None:
    control.done("enqueue", "-c", "a", "--id", "job1", "--max-attempts", "2")
    text = "{}: exit code 2\n  \x1b[1mmake[1]: error\nstop"
    control.worked(lambda queue, job: queue.nack(job, error=text.format("first")))
    control.worked(lambda queue, job: queue.nack(job, error=text.format("second")))
    shown = control.done("show", "job1")
    fields, attempts = re.split(r"Attempts +\n", shown)
    rows = re.findall(r"│ (?:Error)? +│ (.*?) +│", fields)
    assert rows[-3:] == ["second: exit code 2", r"  \x1b[1mmake[1]: error", "stop"]
    assert "│ first: exit code 2 │" in " ".join(attempts.split())
    assert "stop" not in attempts


def test_show_keeps_the_environment_and_the_folder_of_a_completed_command(
    control: Control,
) -> None:
    control.done("enqueue", "-c", "a", "--id", "job1", "-e", "A=1", "--cwd", "/srv")
    control.worked(lambda queue, job: queue.ack(job, result=b'{"command": "a", "exit_code": 0}'))
    shown = control.done("show", "job1")
    assert "A=1" in shown
    assert "/srv" in shown
