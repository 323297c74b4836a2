"""Ids by a part of them: the one job that is meant, or none."""

from __future__ import annotations

import pytest

from casque import JobStatus, Queue
from casque.cli import job_ids
from casque.cli.job_ids import has_part, shown_ids
from tests.cli.control import Control

ONE = "01a1f090-edfd-7004-b15e-682d56c5af8a"
TWO = "01a1f090-edfd-7004-b1cb-59415d59af8a"


@pytest.mark.parametrize(
    ("id", "part", "is_meant"),
    [
        (ONE, "c5af8a", True),
        (ONE, "682d56c5af8a", True),
        (ONE, "5af8a", False),  # an end needs six characters
        (ONE, "01a1", True),
        (ONE, "01a1f090-edfd-7004-b15", True),
        (ONE, "f090-edfd", False),
        ("report-2026-11", "report", True),
        ("report-2026-11", "report-2026", True),
        ("report-2026-11", "2026-11", True),
        ("job10", "job1", False),
        ("order-17001", "order-1", False),
        ("order-17001", "order-1700", False),
        ("14711234", "4711234", False),
        ("c0ffee" * 6, "c0f", True),
        ("9" * 64, "9" * 8, True),
    ],
)
def test_a_part_is_the_beginning_or_the_end_and_never_cuts_a_number(
    id: str, part: str, is_meant: bool
) -> None:
    assert has_part(id, part) is is_meant


def test_an_exact_id_is_always_meant_first(anywhere: Control) -> None:
    anywhere.dies("report", "report-old", "my-report")
    assert anywhere.done("dlq", "retry", "report") == "Job report moved from DLQ to 'pending'.\n"
    anywhere.refused("dlq", "retry", "report")  # it is there, and not dead any more
    assert _dead(anywhere) == {"report-old", "my-report"}


@pytest.mark.parametrize("command", ["show", "cancel", "retry", "dlq show", "dlq retry"])
def test_every_command_takes_the_end_or_the_beginning_of_an_id(
    anywhere: Control, command: str
) -> None:
    words = command.split()
    for part in ("last6", "cut", "begins"):
        with Queue(anywhere.store) as queue:
            queue.drop("default")
            job, other = queue.enqueue("e"), queue.enqueue("e", id="another-one")
            if command != "cancel":
                for one in (job, other):
                    queue.fail(queue.dequeue(id=one.id)[0], error="no luck")
        meant = {"last6": job.id[-6:], "cut": f"…{job.id[-8:]}", "begins": job.id[:20]}[part]
        assert job.id in anywhere.done(*words, meant)
        with Queue(anywhere.store) as queue:
            untouched = queue.get("another-one")
            assert untouched is not None
            assert untouched.status is (JobStatus.QUEUED if command == "cancel" else JobStatus.DEAD)


def test_a_change_guesses_no_id_that_a_person_chose(anywhere: Control) -> None:
    for id in ("order-1-refund", "weekly-import", "a-long-name-of-a-report-that-a-table-cuts"):
        anywhere.done("enqueue", "-c", "true", "--id", id)
    for part in ("order-1", "import", "order-1-"):
        assert "no such job" in anywhere.refused("cancel", part, code=3)
    assert "order-1-refund" in anywhere.done("show", "order-1")
    assert "a-long-name" in anywhere.done("cancel", "…table-cuts")
    assert len([job for job in anywhere.jobs() if job.status is JobStatus.QUEUED]) == 2


def test_a_part_that_several_jobs_have_changes_none_and_lists_some(anywhere: Control) -> None:
    ids = [f"mail-{place}-{letter}" for place in "ab" for letter in "abc"]
    anywhere.dies(*ids)
    for command in (("retry",), ("dlq", "retry")):
        anywhere.refused(*command, "mail", code=3)
    for command in (("dlq", "show"), ("show",)):
        refusal = anywhere.refused(*command, "mail")
        assert "mail-a-a, mail-a-b, mail-a-c, …" in refusal
    assert "mail-b-a, mail-b-b, mail-b-c. Write more" in anywhere.refused("show", "mail-b")
    assert _dead(anywhere) == set(ids)


def test_a_numbered_id_never_means_a_longer_number(anywhere: Control) -> None:
    anywhere.done("enqueue", "-c", "a", "--id", "job10")
    assert "job1: there is no such job" in anywhere.refused("cancel", "job1", code=3)
    assert "job1: not found" in anywhere.refused("show", "job1", code=3)
    assert [job.status for job in anywhere.jobs()] == [JobStatus.QUEUED]


def test_a_part_needs_four_characters(anywhere: Control) -> None:
    anywhere.dies("abcdef")
    assert "at least 4" in anywhere.refused("dlq", "retry", "abc", code=3)
    assert "at least 4" in anywhere.refused("show", "abc", code=3)
    assert "abcdef" in anywhere.done("dlq", "show", "abcd")


def test_dlq_looks_only_among_the_dead(control: Control) -> None:
    control.dies("report-dead")
    control.done("enqueue", "-c", "a", "--id", "report-alive")
    assert "report-dead" in control.done("dlq", "show", "report")
    assert "several jobs" in control.refused("show", "report")


def test_several_parts_are_changed_together_and_failures_are_named(control: Control) -> None:
    first, second, third = "1f" * 20, "2e" * 20, "3d" * 20
    control.dies(first, second, third)
    result = control("dlq", "retry", first[:6], "nothing", second, second[:7], "--json")
    assert [job["id"] for job in result.json] == [second, first]
    assert result.code == 3
    assert "nothing: there is no such job" in result.err
    assert _dead(control) == {third}


def test_in_a_large_store_a_part_is_not_guessed(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.dies("first-job", "second-job", "third-job")
    monkeypatch.setattr(job_ids, "SEARCHED_JOBS", 2)
    for command in ("show", "retry"):
        assert "Write the whole id" in control.refused(command, "first", code=3)
    assert control.done("retry", "first-job") == "Job first-job is pending again.\n"


def test_ids_are_shortened_to_ends_that_differ() -> None:
    assert shown_ids(["a", "bc"], 9) == ["a", "bc"]
    assert shown_ids([ONE, "job1"], 9) == ["…56c5af8a", "job1"]
    assert shown_ids([ONE, TWO], 40) == [ONE, TWO]
    alike = [f"{ONE[:-12]}{number}{ONE[-8:]}" for number in ("aaaa", "bbbb")]
    assert shown_ids(alike, 9) == [f"…aaaa{ONE[-8:]}", f"…bbbb{ONE[-8:]}"]
    assert shown_ids(["a-long-name-with-123456789012"], 16) == ["…123456789012"]
    for id, shown in zip(alike, shown_ids(alike, 9), strict=True):
        assert has_part(id, shown.removeprefix("…"))


def _dead(control: Control) -> set[str]:
    return {job.id for job in control.jobs() if job.status is JobStatus.DEAD}
