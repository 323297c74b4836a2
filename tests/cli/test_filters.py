"""Options that select jobs: for lists, and for changes after a question."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta

import pytest
import typer

from casque import Job, JobStatus, Queue, StorageError
from casque.cli import job_changes, job_search
from casque.cli.store import Access
from casque.rules.operations import Operation, Purge
from tests.cli.control import Control

QUEUES = {"charge": "default", "send": "mail"}
ERRORS = {
    "key": KeyError("iban"),
    "timeout": TimeoutError("bank.example.com: no answer\nafter 30 s"),
    "unknown": LookupError("No Such User"),
}


def some_die(control: Control, **counts: int) -> None:
    """Dead jobs: of `charge` by a KeyError or a timeout, of `send` by an unknown user."""
    with Queue(control.store) as queue:
        for name, count in counts.items():
            entrypoint = "send" if name == "unknown" else "charge"
            for number in range(count):
                queue.enqueue(entrypoint, id=f"{name}-{number}", queue=QUEUES[entrypoint])
        for job in queue.dequeue(batch_size=1_000):
            queue.fail(job, error=ERRORS[job.id.partition("-")[0]])


def ids_with(control: Control, status: JobStatus) -> set[str]:
    return {job.id for job in control.jobs() if job.status is status}


def answers(monkeypatch: pytest.MonkeyPatch, say: str) -> list[str]:
    """Answer each question with this. Returns the questions."""
    asked: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        return say == "y"

    monkeypatch.setattr(job_changes, "is_asked", lambda: True)
    monkeypatch.setattr("casque.cli.dlq.is_asked", lambda: True)
    monkeypatch.setattr(typer, "confirm", confirm)
    return asked


SELECTIONS = [
    (("--error", "keyerror"), {"key-0", "key-1"}),
    (("--error", "'IBAN'"), {"key-0", "key-1"}),
    (("--error", "such user"), {"unknown-0"}),
    (("--error", "after 30 s"), {"timeout-0"}),
    (("--entrypoint", "charge"), {"key-0", "key-1", "timeout-0"}),
    (("--entrypoint", "charge", "--error", "e"), {"key-0", "key-1", "timeout-0"}),
    (("--queue", "mail"), {"unknown-0"}),
    (("--queue", "mail", "--error", "key"), set()),
    (("--since", "1h"), {"key-0", "key-1", "timeout-0", "unknown-0"}),
    (("--since", "2999-01-01"), set()),
]


@pytest.mark.parametrize(("options", "ids"), SELECTIONS)
def test_lists_show_the_selected_jobs(
    anywhere: Control, options: tuple[str, ...], ids: set[str]
) -> None:
    some_die(anywhere, key=2, timeout=1, unknown=1)
    for command in (("list",), ("dlq", "list")):
        assert {one["id"] for one in anywhere(*command, *options, "--json").json} == ids
    errors = anywhere("dlq", "errors", *options, "--json").json
    assert errors["total"] == len(ids)


@pytest.mark.parametrize(("options", "ids"), SELECTIONS)
def test_retry_and_purge_change_the_selected_jobs_only(
    control: Control, options: tuple[str, ...], ids: set[str]
) -> None:
    some_die(control, key=2, timeout=1, unknown=1)
    every = {job.id for job in control.jobs()}
    control.done("dlq", "retry", *options, "--yes")
    assert ids_with(control, JobStatus.QUEUED) == ids
    assert ids_with(control, JobStatus.DEAD) == every - ids
    with Queue(control.store) as queue:
        for job in queue.dequeue(batch_size=100):
            queue.fail(job, error=job.error or "")
    assert control("dlq", "purge", *options, "--yes", "--json").json == {"purged": len(ids)}
    assert {job.id for job in control.jobs()} == every - ids


def test_since_is_about_the_end_of_a_job_or_its_last_change(control: Control) -> None:
    some_die(control, key=1)
    job = control.job("key-0")
    assert job is not None
    before = job.updated_at - timedelta(milliseconds=1)
    after = job.updated_at + timedelta(milliseconds=1)
    assert len(control("list", "--since", before.isoformat(), "--json").json) == 1
    assert control("list", "--since", after.isoformat(), "--json").json == []
    for wrong in ("yesterday", ""):
        assert "--since" in control.refused("list", "--since", wrong)
    assert "too long" in control.refused("list", "--since", "200000d")


@pytest.mark.parametrize("option", ["--error", "--entrypoint", "--queue"])
@pytest.mark.parametrize("command", ["list", "dlq list", "dlq retry", "dlq purge", "cancel"])
def test_an_empty_option_never_selects_everything(
    control: Control, command: str, option: str
) -> None:
    some_die(control, key=1)
    for nothing in ("", *([" \t"] if option == "--error" else [])):
        control.refused(*command.split(), option, nothing)
    assert ids_with(control, JobStatus.DEAD) == {"key-0"}


def test_without_a_terminal_many_need_yes_and_one_does_not(anywhere: Control) -> None:
    some_die(anywhere, key=3, timeout=1)
    refusal = anywhere.refused("dlq", "retry", "--error", "iban")
    assert "3 dead jobs match: KeyError: 'iban' in charge; pass --yes" in refusal
    assert len(ids_with(anywhere, JobStatus.DEAD)) == 4
    result = anywhere.done("dlq", "retry", "--error", "bank")
    assert result == "Job timeout-0 moved from DLQ to 'pending'.\n"
    refusal = anywhere.refused("dlq", "purge", "--error", "iban")
    assert "3 dead jobs match" in refusal
    assert anywhere.done("dlq", "retry", "--error", "nothing") == "No dead jobs match.\n"
    assert anywhere.done("dlq", "purge", "--error", "nothing") == "0 dead jobs purged.\n"
    assert anywhere("dlq", "retry", "--error", "nothing", "--json").json == []


def test_a_question_says_how_many_and_why(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_die(control, key=3, timeout=2, unknown=1)
    asked = answers(monkeypatch, "n")
    assert control("dlq", "retry", "--all").code == 2
    assert asked.pop() == (
        "6 dead jobs match: 3 × KeyError: 'iban' in charge; 2 × TimeoutError: bank.example.com: no "
        "answer in charge; 1 × LookupError: No Such User in send. Retry them?"
    )
    assert control("dlq", "purge", "--entrypoint", "send").code == 2
    assert asked.pop().startswith("1 dead job matches: LookupError: No Such User in send. Delete")
    assert control("purge", "--older-than", "0").code == 2
    assert asked.pop().startswith("Delete 6 dead jobs from ")
    assert len(ids_with(control, JobStatus.DEAD)) == 6
    answers(monkeypatch, "y")
    assert control.done("dlq", "retry", "--error", "iban").count("moved from DLQ") == 3
    assert control.done("dlq", "purge", "--error", "bank") == "2 dead jobs purged.\n"
    assert {job.id for job in control.jobs()} == {"key-0", "key-1", "key-2", "unknown-0"}


def test_cancel_selects_unfinished_jobs_and_counts_running_ones(
    anywhere: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_die(anywhere, key=1)
    with Queue(anywhere.store) as queue:
        for number in range(3):
            queue.enqueue("charge", id=f"new-{number}", delay=timedelta(seconds=number * 3_600))
        queue.enqueue("send", id="other", queue="mail")
        queue.dequeue(id="new-0", lease=timedelta(hours=1))
    anywhere.refused("cancel")
    anywhere.refused("cancel", "other", "--queue", "mail")
    assert "3 jobs (1 running) match: charge" in anywhere.refused("cancel", "--queue", "default")
    assert anywhere.done("cancel", "--error", "iban", "--yes") == "No jobs match.\n"
    asked = answers(monkeypatch, "y")
    assert anywhere.done("cancel", "--entrypoint", "charge", "--reason", "no").count("\n") == 3
    assert asked == ["3 jobs (1 running) match: charge. Cancel them?"]
    assert ids_with(anywhere, JobStatus.CANCELLED) == {"new-0", "new-1", "new-2"}
    assert ids_with(anywhere, JobStatus.DEAD) == {"key-0"}


def test_many_jobs_are_counted_not_listed(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "_BATCH", 10)
    some_die(control, key=45)
    result = control.done("dlq", "retry", "--error", "iban", "--yes")
    assert result == "45 dead jobs moved from DLQ to 'pending'.\n"
    with Queue(control.store) as queue:
        for job in queue.dequeue(batch_size=100):
            queue.fail(job, error="iban")
    moved = control("dlq", "retry", "--error", "iban", "--yes", "--json").json
    assert len(moved) == 45
    assert {one["state"] for one in moved} == {"pending"}


def meanwhile(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Do this once, after the jobs were read and before the first change."""
    left = [do]

    def submit_all(access: Access, operations: list[Operation]) -> list[object]:
        if left:
            left.pop()()
        return whole_all(access, operations)

    def submit(access: Access, operation: Operation) -> object:
        if left and isinstance(operation, Purge):
            left.pop()()
        return whole(access, operation)

    whole_all, whole = Access.submit_all, Access.submit
    monkeypatch.setattr(Access, "submit_all", submit_all)
    monkeypatch.setattr(Access, "submit", submit)


def again(control: Control, *ids: str, error: str | None = None) -> Callable[[], None]:
    """Retry these jobs; with an error, let them fail with it."""

    def do() -> None:
        with Queue(control.store) as queue:
            for id in ids:
                queue.retry(id)
                if error is not None:
                    queue.fail(queue.dequeue(id=id)[0], error=error)

    return do


def test_a_job_that_changes_before_its_retry_is_skipped_and_counted(
    anywhere: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_die(anywhere, key=3)
    meanwhile(monkeypatch, again(anywhere, "key-1"))
    result = anywhere("dlq", "retry", "--error", "iban", "--yes")
    assert (result.code, result.out.count("moved from DLQ")) == (0, 2)
    assert "1 dead job skipped: it has changed meanwhile" in result.err


@pytest.mark.parametrize("error", [None, "another error", "KeyError: 'iban'"])
def test_a_filtered_purge_spares_a_job_that_was_retried_meanwhile(
    anywhere: Control, monkeypatch: pytest.MonkeyPatch, error: str | None
) -> None:
    some_die(anywhere, key=3)
    meanwhile(monkeypatch, again(anywhere, "key-1", error=error))
    result = anywhere("dlq", "purge", "--error", "iban", "--yes")
    assert (result.code, result.out) == (0, "2 dead jobs purged.\n")
    assert "1 dead job skipped: it has changed meanwhile" in result.err
    assert [job.id for job in anywhere.jobs()] == ["key-1"]


def test_jobs_that_come_during_the_question_are_not_changed(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_die(control, key=2, timeout=2)

    def confirm(question: str, **_: object) -> bool:
        assert "2 dead jobs match" in question
        some_die(control, key=4)  # key-2 and key-3 are new
        again(control, "key-0", error="KeyError: 'iban', again")()
        return True

    answers(monkeypatch, "y")
    monkeypatch.setattr(typer, "confirm", confirm)
    result = control("dlq", "retry", "--error", "iban")
    assert (result.code, result.out.count("moved from DLQ")) == (0, 1)
    assert "1 dead job skipped: it has changed meanwhile" in result.err
    assert ids_with(control, JobStatus.QUEUED) == {"key-1"}


def test_a_purge_of_all_spares_what_died_during_the_question(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_die(control, key=2)
    names = iter(["timeout", "unknown"])

    def confirm(_: str, **__: object) -> bool:
        some_die(control, **{next(names): 1})
        return True

    answers(monkeypatch, "y")
    monkeypatch.setattr(typer, "confirm", confirm)
    assert control.done("dlq", "purge") == "2 dead jobs purged.\n"
    assert ids_with(control, JobStatus.DEAD) == {"timeout-0"}
    assert control.done("purge", "--older-than", "0") == "1 job purged.\n"
    assert ids_with(control, JobStatus.DEAD) == {"unknown-0"}


def test_an_error_of_the_storage_ends_a_change_and_says_what_is_done(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "_BATCH", 10)
    some_die(control, key=35)
    whole, commits = Access.submit_all, [0]
    handler = signal.getsignal(signal.SIGINT)

    def submit_all(access: Access, operations: list[Operation]) -> list[object]:
        commits[0] += 1
        if commits[0] == 2:
            raise StorageError("the storage does not answer.", outcome_unknown=False)
        return whole(access, operations)

    monkeypatch.setattr(Access, "submit_all", submit_all)
    result = control("dlq", "retry", "--error", "iban", "--yes")
    assert (result.code, result.out.count("moved from DLQ")) == (5, 10)
    assert result.err == "queuectl: the storage does not answer.\n"
    assert signal.getsignal(signal.SIGINT) is handler


def test_commits_are_small_when_payloads_are_large(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "_BATCH_BYTES", 50_000)
    with Queue(control.store) as queue:
        for _ in range(12):
            queue.enqueue("e", bytes(20_000))
    sizes: list[int] = []
    whole = Access.submit_all

    def submit_all(access: Access, operations: list[Operation]) -> list[object]:
        sizes.append(len(operations))
        return whole(access, operations)

    monkeypatch.setattr(Access, "submit_all", submit_all)
    assert control.done("cancel", "--entrypoint", "e", "--yes").count("cancelled") == 12
    assert sizes == [3, 3, 3, 3]


def test_ctrl_c_ends_between_two_commits_and_says_how_many_are_done(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "_BATCH", 10)
    some_die(control, key=35)
    whole, commits = Access.submit_all, [0]

    def submit_all(access: Access, operations: list[Operation]) -> list[object]:
        commits[0] += 1
        if commits[0] == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(access, operations)

    monkeypatch.setattr(Access, "submit_all", submit_all)
    result = control("dlq", "retry", "--error", "iban", "--yes")
    moved = [f"Job key-{number} moved from DLQ to 'pending'.\n" for number in range(20)]
    assert (result.code, result.out) == (130, "".join(moved))
    assert "interrupted after 20 jobs; the rest is as it was" in result.err
    assert len(ids_with(control, JobStatus.QUEUED)) == 20


def test_pages_are_small_when_payloads_are_large(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_search, "_PAGE_BYTES", 100_000)
    with Queue(control.store) as queue:
        for _ in range(120):
            queue.enqueue("e", bytes(20_000))
    sizes: list[int] = []
    whole = Access.jobs

    def jobs(access: Access, *given: object, **options: int) -> list[Job]:
        page: list[Job] = whole(access, *given, **options)  # type: ignore[arg-type]
        sizes.append(len(page))
        return page

    monkeypatch.setattr(Access, "jobs", jobs)
    assert len(control("list", "--limit", "1000", "--json").json) == 120
    assert sizes[:2] == [100, 4]
    assert sum(sizes) == 120


def test_the_rest_of_a_filtered_list_is_counted(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from casque.cli import list as listing

    some_die(control, key=7, unknown=2)
    for options in (("--error", "iban"), ("--entrypoint", "charge")):
        assert control.done("list", *options, "-n", "3").endswith("… and 4 more\n")
        assert "more" not in control.done("list", *options, "-n", "7")
    monkeypatch.setattr(listing, "_COUNTED", 3)
    result = control.done("dlq", "list", "--error", "iban", "-n", "3")
    assert result.endswith("… and more than 3 more\n")
