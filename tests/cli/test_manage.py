"""Commands for operators: they change jobs, queues and settings."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import pytest

from casque import JobStatus, Queue
from tests.cli.control import Control


def states(control: Control) -> dict[str, JobStatus]:
    return {job.id: job.status for job in control.jobs()}


def test_cancel_reports_each_job_and_exits_with_the_highest_code(anywhere: Control) -> None:
    anywhere.done("enqueue", "-c", "a", "--id", "one")
    anywhere.done("enqueue", "-c", "a", "--id", "two")
    anywhere.dies("dead")
    with Queue(anywhere.store) as queue:
        assert queue.stats().dead == 3  # `dies` takes all due jobs
        queue.retry("one")
        queue.retry("two")
    result = anywhere("cancel", "one", "nope", "dead", "two", "--reason", "no need")
    assert result.out == "Job one cancelled.\nJob two cancelled.\n"
    assert "nope: there is no such job" in result.err
    assert "dead is dead already" in result.err
    assert result.code == 3
    assert states(anywhere)["two"] is JobStatus.CANCELLED
    job = anywhere.job("one")
    assert job is not None
    assert job.error == "no need"


def test_retry_is_for_dead_jobs(anywhere: Control) -> None:
    anywhere.dies("job-fail")
    assert anywhere.done("retry", "job-fail") == "Job job-fail is pending again.\n"
    assert "only a dead job can be retried" in anywhere.refused("retry", "job-fail")


def test_dlq_retry_requeues_a_dead_job_with_all_its_attempts(anywhere: Control) -> None:
    anywhere.dies("job-fail", "job-invalid")
    result = anywhere.done("dlq", "list")
    assert result.split("\n")[0].strip() == "Dead Jobs"
    assert "job-invalid" in result
    result = anywhere.done("dlq", "retry", "job-fail")
    assert result == "Job job-fail moved from DLQ to 'pending'.\n"
    job = anywhere.job("job-fail")
    assert job is not None
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)
    several = anywhere("dlq", "retry", "job-fail", "nope", "job-invalid", "--json")
    assert several.code == 3
    assert [one["id"] for one in several.json] == ["job-invalid"]
    assert "job-fail is queued; only a dead job can be retried" in several.err


def test_dlq_retry_all_requeues_all_dead_jobs_or_those_of_a_queue(
    anywhere: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from casque.cli import job_changes, job_search

    monkeypatch.setattr(job_search, "_PAGE", 2)
    monkeypatch.setattr(job_changes, "_BATCH", 3)
    anywhere.dies("a", "b", "c", "d", "e")
    anywhere.done("enqueue", "-c", "a", "--id", "m", "-q", "mail")
    anywhere.worked(lambda queue, job: queue.fail(job))
    assert anywhere.done("dlq", "retry", "--all", "-q", "mail").count("\n") == 1
    assert anywhere.done("dlq", "retry", "--all").count("moved from DLQ") == 5
    assert anywhere.done("dlq", "retry", "--all") == "No dead jobs.\n"
    assert anywhere("dlq", "retry", "--all", "--json").json == []
    assert set(states(anywhere).values()) == {JobStatus.QUEUED}


@pytest.mark.parametrize(
    "arguments", [(), ("a", "--all"), ("a", "--queue", "mail"), ("a", "--error", "x")]
)
def test_dlq_retry_takes_either_ids_or_options(
    control: Control, arguments: tuple[str, ...]
) -> None:
    control.dies("a")
    control.refused("dlq", "retry", *arguments)


def test_dlq_shows_only_dead_jobs(anywhere: Control) -> None:
    anywhere.dies("dead")
    assert "exit code 1" in anywhere.done("dlq", "show", "dead")
    anywhere.done("enqueue", "-c", "a", "--id", "alive")
    assert "alive is pending, not dead" in anywhere.refused("dlq", "show", "alive", code=3)


def test_dlq_purge_deletes_only_dead_jobs(anywhere: Control) -> None:
    anywhere.done("enqueue", "-c", "a", "--id", "done")
    anywhere.worked(lambda queue, job: queue.ack(job))
    anywhere.dies("a", "b")
    anywhere.done("enqueue", "-c", "a", "--id", "m", "-q", "mail")
    anywhere.worked(lambda queue, job: queue.fail(job))
    anywhere.done("enqueue", "-c", "a", "--id", "gone")
    anywhere.done("cancel", "gone")
    assert "--yes" in anywhere.refused("dlq", "purge")
    assert anywhere.done("dlq", "purge", "--older-than", "1h", "-y") == "0 dead jobs purged.\n"
    assert anywhere.done("dlq", "purge", "-q", "mail", "-y") == "1 dead job purged.\n"
    assert anywhere("dlq", "purge", "--yes", "--json").json == {"purged": 2}
    assert set(states(anywhere)) == {"done", "gone"}


def test_a_job_that_died_with_its_worker_is_purged_too(anywhere: Control) -> None:
    from datetime import timedelta

    from tests.acceptance.fleet import until

    anywhere.done("enqueue", "-c", "a", "--id", "lost", "--max-attempts", "1")
    with Queue(anywhere.store) as queue:
        queue.dequeue(lease=timedelta(milliseconds=1))
        until("the lease is over", lambda: queue.stats().dead == 1)
    assert anywhere.done("dlq", "purge", "--yes") == "1 dead job purged.\n"
    assert anywhere.jobs() == []


def test_purge_prints_the_number_of_deleted_jobs(anywhere: Control) -> None:
    anywhere.dies("a", "b")
    anywhere.done("enqueue", "-c", "a", "--id", "alive")
    assert anywhere.done("purge", "--older-than", "1d") == "0 jobs purged.\n"
    assert anywhere.done("purge", "--older-than", "0", "-q", "mail") == "0 jobs purged.\n"
    assert anywhere("purge", "--older-than", "0", "--yes", "--json").json == {"purged": 2}
    assert set(states(anywhere)) == {"alive"}
    anywhere.refused("purge", "--yes")
    assert "not a duration" in anywhere.refused("purge", "--older-than", "week")


def test_purge_without_a_terminal_needs_yes_and_says_how_many(anywhere: Control) -> None:
    anywhere.done("enqueue", "-c", "a", "--retain", "1d")
    anywhere.worked(lambda queue, job: queue.ack(job))
    anywhere.dies("a", "b")
    refusal = anywhere.refused("purge", "--older-than", "0")
    assert "1 completed, 2 dead jobs; pass --yes" in refusal
    assert len(anywhere.jobs()) == 3


@pytest.mark.parametrize("state", ["completed", "dead", "cancelled"])
def test_purge_of_one_state_leaves_the_others(anywhere: Control, state: str) -> None:
    for id in ("completed", "cancelled"):
        anywhere.done("enqueue", "-c", "a", "--id", id, "-q", id)
    anywhere.done("cancel", "cancelled")
    anywhere.worked(lambda queue, job: queue.ack(job))
    anywhere.dies("dead")
    assert f"1 {state} job;" in anywhere.refused("purge", "--older-than", "0", "--state", state)
    result = anywhere.done("purge", "--older-than", "0", "--state", state.upper(), "--yes")
    assert result == "1 job purged.\n"
    assert set(states(anywhere)) == {"completed", "dead", "cancelled"} - {state}
    assert "completed, dead, cancelled" in anywhere.refused(
        "purge", "--older-than", "0", "--state", "pending"
    )


def test_a_paused_queue_gives_no_jobs(anywhere: Control) -> None:
    anywhere.done("enqueue", "-c", "a")
    for _ in range(2):  # twice is fine
        assert anywhere.done("pause", "default") == "Queue default paused.\n"
    with Queue(anywhere.store) as queue:
        assert queue.dequeue() == []
    assert anywhere.done("resume", "default") == "Queue default resumed.\n"
    assert anywhere.done("resume", "default") == "Queue default is not paused.\n"
    with Queue(anywhere.store) as queue:
        assert len(queue.dequeue()) == 1


def test_pausing_a_queue_without_jobs_warns_and_names_those_with_a_similar_name(
    anywhere: Control,
) -> None:
    anywhere.done("enqueue", "-c", "a", "-q", "billing")
    typo = anywhere("pause", "bilingg")
    assert (typo.code, typo.out) == (0, "Queue bilingg paused.\n")
    note = "queuectl: note: queue 'bilingg' has no jobs, and is paused for those to come; "
    assert typo.err == note + "did you mean 'billing'?\n"
    other = anywhere("pause", "mail", "--json")
    assert other.json == {"queue": "mail", "paused": True}
    assert other.err == (
        "queuectl: note: queue 'mail' has no jobs, and is paused for those to come.\n"
    )
    assert anywhere("pause", "billing").err == ""
    assert anywhere("resume", "bilingg").err == ""
    with Queue(anywhere.store) as queue:
        assert queue.dequeue() == [], "both queues are paused"


def test_resuming_a_queue_that_is_not_paused_says_which_queues_are(anywhere: Control) -> None:
    anywhere.begins()
    note = "queuectl: note: queue 'mial' was not paused; "
    assert anywhere("resume", "mial").err == f"{note}no queue is.\n"
    anywhere.done("pause", "mail")
    anywhere.done("pause", "bills")
    typo = anywhere("resume", "mial")
    assert (typo.code, typo.out) == (0, "Queue mial is not paused.\n")
    assert typo.err == f"{note}paused queues: 'bills', 'mail'.\n"
    as_json = anywhere("resume", "mial", "--json")
    assert (as_json.code, as_json.err) == (0, typo.err)
    assert as_json.json == {"queue": "mial", "paused": False}
    right = anywhere("resume", "mail")
    assert (right.out, right.err) == ("Queue mail resumed.\n", "")


def test_reset_deletes_everything(anywhere: Control) -> None:
    anywhere.done("enqueue", "-c", "a", "-q", "finished")
    anywhere.worked(lambda queue, job: queue.ack(job))
    anywhere.dies("dead")
    anywhere.done("enqueue", "-c", "a", "-q", "held")
    anywhere.worked(lambda queue, job: None)
    anywhere.done("enqueue", "-c", "a", "--delay", "1h")
    anywhere.done("config", "set", "max_retries", "9")
    anywhere.done("pause", "mail")
    assert "--yes" in anywhere.refused("reset")
    assert len(anywhere.jobs()) == 4
    assert anywhere.done("reset", "--yes") == "Store reset: 4 jobs dropped.\n"
    assert anywhere.jobs() == []
    assert anywhere("queues", "--json").json == []
    assert anywhere.done("config", "get", "max_retries") == "3\n"


@pytest.mark.parametrize(("answer", "is_left"), [("y", False), ("n", True), ("", True)])
def test_on_a_terminal_reset_asks(
    control: Control, monkeypatch: pytest.MonkeyPatch, answer: str, is_left: bool
) -> None:
    import io
    import sys

    from casque.cli.main import run

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    control.done("enqueue", "-c", "a")
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    assert run(["--store", control.store, "reset"]) == (2 if is_left else 0)
    assert bool(control.jobs()) is is_left


def test_settings_are_set_shown_and_unset(anywhere: Control) -> None:
    assert anywhere.done("config", "set", "max_retries", "2") == "Config updated: max_retries = 2\n"
    assert anywhere.done("config", "set", "max_retries", "4") == "Config updated: max_retries = 4\n"
    assert anywhere.done("config", "set", "timeout", "90") == "Config updated: timeout = 90s\n"
    assert anywhere.done("config", "get", "max_retries") == "4\n"
    assert anywhere.done("config", "get", "backoff_base") == "2\n"
    result = anywhere.done("config", "list")
    assert result.split("\n")[0].strip() == "System Configuration"
    assert "│ max_retries    │ 4 " in result
    assert "│ backoff_base   │ 2 (default) " in result
    for _ in range(2):
        result = anywhere.done("config", "unset", "max_retries")
        assert result == "Config updated: max_retries = 3 (default)\n"
    listed = {one["key"]: one for one in anywhere("config", "list", "--json").json}
    assert (listed["timeout"]["value"], listed["timeout"]["is_set"]) == (90, True)
    assert (listed["max_retries"]["value"], listed["max_retries"]["is_set"]) == (3, False)
    assert anywhere("config", "get", "timeout", "--json").json == listed["timeout"]


@pytest.mark.parametrize("command", ["get", "unset"])
def test_an_unknown_setting_is_refused_with_the_list(control: Control, command: str) -> None:
    for result in (
        control.refused("config", command, "colour"),
        control.refused("config", "set", "colour", "red"),
    ):
        assert "max_retries, backoff_base, backoff_max, timeout, lease, retention" in result


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_retries", "0"), ("max_retries", "many"), ("timeout", "soon"), ("lease", "1ms")],
)
def test_a_wrong_value_is_refused(control: Control, key: str, value: str) -> None:
    assert value in control.refused("config", "set", key, value)
    assert control("config", "list", "--json").out == control("config", "list", "--json").out
    assert not any(one["is_set"] for one in control("config", "list", "--json").json)


def test_two_concurrent_config_sets_both_succeed(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from casque.cli.store import Access
    from casque.record import ABSENT, CONFIG
    from casque.rules.operations import Operation, PutRecord

    whole, others = Access.submit, [b"7"]

    def beaten(access: Access, operation: Operation) -> object:
        if others:
            whole(access, PutRecord(CONFIG, "max_retries", others.pop(), ABSENT))
        return whole(access, operation)

    monkeypatch.setattr(Access, "submit", beaten)
    control.done("config", "set", "max_retries", "2")
    assert control.done("config", "get", "max_retries") == "2\n"


def test_every_change_is_printed_as_json(control: Control) -> None:
    control.done("enqueue", "-c", "a", "--id", "job1")
    assert control("pause", "a", "--json").json == {"queue": "a", "paused": True}
    assert control("resume", "a", "--json").json == {"queue": "a", "paused": False}
    assert control("config", "set", "max_retries", "2", "--json").json["value"] == 2
    assert control("config", "unset", "max_retries", "--json").json["value"] == 3
    assert [one["state"] for one in control("cancel", "job1", "--json").json] == ["cancelled"]
    assert msgspec.json.decode(control.done("reset", "--yes", "--json")) == {"dropped": 1}


def test_dead_retention_is_a_duration_or_none(control: Control) -> None:
    assert control.done("config", "get", "dead_retention") == "30d\n"
    control.done("config", "set", "dead_retention", "none")
    assert control("config", "get", "dead_retention", "--json").json["value"] is None
    control.done("enqueue", "-c", "a", "--id", "kept")
    control.done("cancel", "kept")
    assert control("show", "kept", "--json").json["expires_at"] is None
    control.done("config", "set", "dead_retention", "1h")
    control.done("enqueue", "-c", "a", "--id", "gone-in-an-hour")
    control.done("cancel", "gone-in-an-hour")
    job = control("show", "gone-in-an-hour", "--json").json
    kept = datetime.fromisoformat(job["expires_at"]) - datetime.fromisoformat(job["finished_at"])
    assert kept == timedelta(hours=1)
    assert "forever" in control.refused("config", "set", "dead_retention", "forever")
    assert control.done("config", "get", "dead_retention") == "1h\n"
