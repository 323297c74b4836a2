"""Dead jobs by their errors: `dlq errors`, and the Error column of `dlq list`."""

from __future__ import annotations

from collections import Counter

import pytest

from casque import Job, NewJob, Queue
from casque.cli import error_groups
from casque.cli.error_groups import ErrorGroups, error_of, summary
from casque.job import Attempt, Failure
from tests.cli.control import Control


def dead(error: str, *, entrypoint: str = "e", at: int = 0, queue: str = "default") -> Job:
    failure = Failure("Boom", error)
    history = (Attempt(1, "w", 0, at, failure),)
    return Job(
        id=f"{entrypoint}-{at}",
        entrypoint=entrypoint,
        payload=b"",
        queue=queue,
        error=f"Boom: {error}",
        history=history,
        finished_us=at,
        updated_us=at,
    )


def grouped(*jobs: Job) -> ErrorGroups:
    groups = ErrorGroups()
    for job in jobs:
        groups.add(job)
    return groups


def test_jobs_are_grouped_by_task_and_the_first_line_of_their_error() -> None:
    groups = grouped(
        dead("a\nfirst", at=5),
        dead("a\nsecond", at=7, queue="mail"),
        dead("a", entrypoint="f", at=6),
        dead("b", at=1),
    )
    found = groups.most_frequent()
    assert [(one.count, one.error, one.entrypoint) for one in found] == [
        (2, "Boom: a", "e"),
        (1, "Boom: a", "f"),
        (1, "Boom: b", "e"),
    ]
    assert (found[0].kind, found[0].last_us, found[0].job_id) == ("Boom", 7, "e-7")
    assert found[0].queues == {"default", "mail"}
    assert (groups.total, groups.others) == (4, 0)


def test_groups_are_bounded_and_frequent_errors_survive_many_rare_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(error_groups, "MOST_GROUPS", 10)
    groups = ErrorGroups()
    for number in range(200):
        groups.add(dead(f"order {number} not found", at=number))
        groups.add(dead("no IBAN", at=number))
        assert len(groups._groups) <= 20
    found = groups.most_frequent()
    assert (found[0].count, found[0].error) == (200, "Boom: no IBAN")
    assert len(found) == 10
    assert groups.others + sum(one.count for one in found) == groups.total == 400


def test_an_error_without_a_stored_attempt_is_that_of_the_job() -> None:
    job = Job(id="a", entrypoint="e", payload=b"", error="\n one line \nanother")
    assert error_of(job) == ("", "one line")
    assert error_of(Job(id="a", entrypoint="e", payload=b"")) == ("", "")


def test_a_summary_names_the_largest_groups() -> None:
    alike = [dead("a", at=n) for n in range(3)]
    assert summary(grouped(*alike)) == "Boom: a in e"
    several = [*alike, dead("b"), dead("c", entrypoint="f"), dead("d")]
    counts = Counter(summary(grouped(*several)).split("; "))
    assert counts["3 × Boom: a in e"] == counts["1 other"] == 1
    different = [dead(f"order {n}", at=n) for n in range(9)]
    assert summary(grouped(*different)) == "each with another error, such as Boom: order 8 in e"
    tasks = ErrorGroups()
    for name in ("charge", "ship", "mail", "bill", "call"):
        tasks.add(Job(id=name, entrypoint=name, payload=b"", updated_us=1), by_error=False)
    assert summary(tasks) == "1 × charge; 1 × ship; 1 × mail; 2 others"


def test_dlq_errors_counts_the_dead_jobs(anywhere: Control) -> None:
    assert anywhere.done("dlq", "errors") == "No dead jobs.\n"
    assert anywhere("dlq", "errors", "--json").json == {"errors": [], "others": 0, "total": 0}
    with Queue(anywhere.store) as queue:
        queue.enqueue_many([NewJob("charge", queue="bank") for _ in range(3)])
        queue.enqueue_many([NewJob("send"), NewJob("charge"), NewJob("alive")])
        for job in queue.dequeue(["charge", "send"], batch_size=10):
            error = KeyError("iban") if job.queue == "bank" else "\x1b[31mred\nmore"
            queue.fail(job, error=error)
    result = anywhere("dlq", "errors", "--json").json
    first = result["errors"][0]
    assert list(first) == [
        *("count", "error", "kind", "entrypoint", "queues", "last_seen_at", "last_job"),
    ]
    assert (first["count"], first["error"], first["kind"]) == (3, "KeyError: 'iban'", "KeyError")
    assert (first["entrypoint"], first["queues"]) == ("charge", ["bank"])
    assert (result["total"], result["others"]) == (5, 0)
    shown = anywhere.done("dlq", "errors")
    assert "│     3 │ KeyError: 'iban' │ charge │ bank " in shown
    assert r"│ \x1b[31mred " in shown
    assert "more" not in shown
    assert anywhere.done("dlq", "errors", "-n", "1").endswith("… and 2 jobs with other errors\n")
    assert anywhere("dlq", "errors", "-n", "1", "--json").json["others"] == 2
    assert "│ KeyError: 'iban' │ bank " in anywhere.done("dlq", "list")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("queue", ["default", "customer-1-of-many"])
def test_an_error_of_5000_characters_takes_a_few_lines(
    control: Control, monkeypatch: pytest.MonkeyPatch, width: int, queue: str
) -> None:
    errors = ("z" * 5_000, "some words " * 500)
    with Queue(control.store) as opened:
        opened.enqueue_many([NewJob("package.module.send_email", queue=queue) for _ in errors])
        for job, error in zip(opened.dequeue(batch_size=9), errors, strict=True):
            opened.fail(job, error=error)
    monkeypatch.setenv("COLUMNS", str(width))
    for command in ("errors", "list"):
        shown = control.done("dlq", command)
        assert shown.count("\n") <= 4 + 6 * len(errors) + 1, shown
        assert max(map(len, shown.split("\n"))) <= width
        assert "zzzz" in shown
        assert "some" in shown
    assert len(control("dlq", "errors", "--json").json["errors"][0]["error"]) == 500


def test_tables_of_errors_fit_in_80_columns(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(control.store) as queue:
        for number in range(3):
            queue.enqueue("package.module.send_email", queue=f"customer-{number}-of-many")
        for job in queue.dequeue(batch_size=9):
            queue.fail(job, error="a long text " * 20)
    for width in ("80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        for command in ("errors", "list"):
            lines = control.done("dlq", command).split("\n")
            assert max(map(len, lines)) <= int(width)
    monkeypatch.setenv("COLUMNS", "80")
    job = control.jobs()[-1]
    assert f"…{job.id[-8:]} │" in control.done("dlq", "errors")
    assert f"…{job.id[-8:]} │" in control.done("list")
    monkeypatch.setenv("COLUMNS", "120")
    assert job.id in control.done("list")
