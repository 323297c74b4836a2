"""Every sentence of docs/how-to/move-from-jqueue.md has a test."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.compat import upstream
from tests.docs.following import FENCE, ROOT
from tests.docs.pages import DOCS, section
from tests.docs.test_docs import existing_tests

PAGE = DOCS / "how-to" / "move-from-jqueue.md"
CODE_RUNS = "test_the_code_of_a_page_runs_and_prints_what_the_page_says"
INSTRUCTION = ""
"""A sentence that claims nothing: it says what to do, or where to read on."""
UPSTREAM = "test_the_tests_that_do_not_pass_are_listed_with_a_reason"

PROOFS: dict[str, str] = {
    # The beginning of each sentence, or the first cell of a row, and the test of it.
    "After this page you can run a jqueue program": "test_a_program_runs_with_its_imports_changed",
    "The package `casque.compat.jqueue` has": "test_a_sub_module_of_jqueue_is_there",
    "Read [what is different]": INSTRUCTION,
    "Install it": "test_without_pydantic_the_error_names_the_extra",
    "With S3 or Google Cloud Storage": "test_the_extras_of_the_page_exist",
    "Stop every process that uses the queue": INSTRUCTION,
    "A jqueue process that writes after": (
        "test_jqueue_drops_the_fields_of_casque_and_an_open_queue_then_refuses"
    ),
    "Copy the file": INSTRUCTION,
    "Change the imports": "test_a_program_runs_with_its_imports_changed",
    "The rest of the program stays": CODE_RUNS,
    "Start": INSTRUCTION,
    "Queued jobs are there": "test_a_file_made_by_jqueue_goes_on",
    "Jobs that were in progress": "test_a_file_made_by_jqueue_goes_on",
    "`DirectQueue(storage, max_retries=10)`": "test_the_classes_have_the_parameters_of_jqueue",
    "`Job` and `QueueState` are frozen": (
        "test_a_job_does_not_change_and_its_functions_return_another"
    ),
    "`JQueueError` is the base": ("test_every_error_is_a_jqueue_error_and_the_error_of_casque"),
    "`StorageError(message, cause)` has": "test_the_constructors_are_those_of_jqueue",
    "Each error is also casque's": "test_every_error_is_a_jqueue_error_and_the_error_of_casque",
    "The sub-modules `domain`": "test_a_sub_module_of_jqueue_is_there",
    "An adapter that you wrote": "test_an_adapter_written_for_jqueue_holds_a_queue",
    "An adapter that still raises": (
        "test_an_adapter_with_the_errors_of_another_library_works_too"
    ),
    "`codec.encode` and `codec.decode` keep": (
        "test_a_state_that_is_written_back_unchanged_loses_nothing"
    ),
    "Only `requeue_stale`, or a `BrokerQueue`": (
        "test_only_requeue_stale_takes_a_job_from_a_direct_queue"
    ),
    "A job that the program enqueues": "test_a_job_is_tried_for_ever",
    "A late `ack` is accepted": ("test_a_late_ack_is_accepted_while_no_other_worker_has_the_job"),
    "`ack`, `nack` and `heartbeat` by a queue object": (
        "test_a_queue_object_that_did_not_claim_the_job_means_the_current_claim"
    ),
    "`ack` also removes a queued": (
        "test_a_queued_job_can_be_acked_and_nacked_but_has_no_heartbeat"
    ),
    "`nack` queues a dead job": "test_a_dead_job_can_be_acked_and_nacked",
    "a call by a worker whose job": "test_a_worker_that_lost_its_job_cannot_change_it",
    "`heartbeat` of a job that is queued or dead": (
        "test_a_queued_job_can_be_acked_and_nacked_but_has_no_heartbeat"
    ),
    "`HeartbeatManager` when the storage": "test_it_goes_on_when_only_the_storage_failed",
    "a nacked or requeued job": "test_a_nacked_job_waits_behind_the_others_of_its_priority",
    "stale jobs of a `BrokerQueue`": (
        "test_a_broker_takes_back_a_job_without_heartbeats_with_any_write"
    ),
    "a job that jqueue itself": "test_a_job_that_jqueue_stored_is_dead_after_25_attempts",
    "an id": "test_a_new_job_is_queued_and_has_an_id_and_a_time_of_its_own",
    "an empty `dequeue`": "test_concurrent_calls_share_a_commit_and_fail_alone",
    "a `BrokerQueue` that was not entered": (
        "test_a_broker_outside_of_its_context_refuses_at_once"
    ),
    "a `BrokerQueue` that is entered again": (
        "test_a_broker_may_be_entered_again_and_its_claims_still_hold"
    ),
    "a crash in the middle of a write": ("test_a_kill_at_any_disk_call_loses_nothing_acknowledged"),
    "a write whose reply was lost": "test_a_write_whose_reply_was_lost_is_applied_once",
    "a write that the storage does not answer": (
        "test_a_storage_that_never_accepts_a_write_is_reported_after_30_seconds"
    ),
    "an adapter's exception": ("test_any_other_exception_of_an_adapter_arrives_as_a_storage_error"),
    "a `BrokerQueue` that keeps losing": ("test_a_broker_gives_up_after_30_seconds_of_lost_races"),
    "`max_retries=0`": "test_max_retries_is_the_number_of_writes_that_may_lose",
    "two first writers on S3": "test_a_queue_on_a_real_server",
    "stored bytes that are no queue": "test_bytes_that_are_no_queue_are_refused_and_kept",
    "a negative `batch_size`": "test_wrong_arguments_are_refused_and_nothing_is_stored",
    "limits": "test_wrong_arguments_are_refused_and_nothing_is_stored",
    "Python": "test_casque_needs_no_newer_python_than_3_11",
    "`S3Storage` and `GCSStorage` without": "test_a_queue_on_a_real_server",
    "A session or a client that you pass": "test_a_queue_on_a_real_server",
    "Of the 192 tests": UPSTREAM,
    "These do not pass": UPSTREAM,
    "`test_sync_write": UPSTREAM,
    "To repeat that": "test_make_has_the_target_of_the_page",
    "It also runs the code": "test_the_code_of_a_page_is_run_and_its_signatures_are_compared",
    "A queue takes any": "test_a_broker_opens_and_closes_a_store_from_its_address",
    "So the same program can use SQLite": CODE_RUNS,
    "Programs with casque's own names": "test_casques_names_and_those_of_jqueue_share_a_store",
    "Their leases end": "test_casques_names_and_those_of_jqueue_share_a_store",
    "A jqueue `BrokerQueue` also requeues": "test_a_broker_requeues_jobs_of_casques_names_too",
    "`read_state` leaves out": "test_jobs_with_a_status_that_jqueue_lacks_are_not_shown",
    "casque keeps jqueue's fields": "test_jqueue_fields_are_written_as_jqueue_writes_them",
    "[Every field is documented]": "test_every_field_of_the_document_is_described",
    "Each queue object that writes": "test_each_queue_object_has_one_row_in_the_file",
    "**Once casque has written": INSTRUCTION,
    "jqueue keeps only its own": (
        "test_jqueue_drops_the_fields_of_casque_and_an_open_queue_then_refuses"
    ),
    "Every process that has the queue": (
        "test_jqueue_drops_the_fields_of_casque_and_an_open_queue_then_refuses"
    ),
    "Stop every process, then write": (
        "test_the_jobs_that_go_back_are_the_unfinished_and_the_dead"
    ),
    "jqueue has no delays": "test_the_jobs_that_go_back_are_the_unfinished_and_the_dead",
    "[`queuectl export --format jqueue`]": "test_an_export_for_jqueue_has_its_fields_alone",
}


def sentences() -> Iterator[str]:
    """The sentences of the page, and the rows of its tables."""
    text = re.sub(r"^#.*$", "", FENCE.sub("\n", PAGE.read_text()), flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.strip().startswith("|"):
            yield from (row.strip("| ") for row in paragraph.strip().splitlines()[2:])
            continue
        for item in re.split(r"^(?:- |\d+\. )", paragraph, flags=re.MULTILINE):
            plain = " ".join(item.split())
            yield from filter(
                None, re.split(r"(?<=[.])(?:\*\*)? (?=[A-Z`\[]|casque|jqueue)", plain)
            )


def key_of(sentence: str) -> str | None:
    keys = [key for key in PROOFS if sentence.startswith(key)]
    return max(keys, key=len, default=None)


def test_every_sentence_has_a_test() -> None:
    assert [one for one in sentences() if key_of(one) is None] == []
    assert {key_of(one) for one in sentences()} == set(PROOFS)


def test_the_tests_of_the_sentences_exist() -> None:
    there = existing_tests(ROOT / "tests", ROOT / "src" / "casque" / "testing")
    assert {name for name in PROOFS.values() if name not in there} == {INSTRUCTION}


def test_the_extras_of_the_page_exist() -> None:
    extras = set(re.findall(r'"casque\[([\w,]+)\]"', PAGE.read_text()))
    assert extras == {"jqueue", "jqueue,s3", "jqueue,gcs"}
    project = (ROOT / "pyproject.toml").read_text()
    for extra in ("jqueue", "s3", "gcs"):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)


def test_make_has_the_target_of_the_page() -> None:
    assert "`make jqueue JQUEUE=path/of/the/clone`" in PAGE.read_text()
    assert re.search(r"^jqueue:.*## .*JQUEUE=", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_tests_that_do_not_pass_are_listed_with_a_reason() -> None:
    text = section(PAGE, "jqueue's own tests")
    total, passing = upstream.figures()
    assert len(upstream.listed()) == total - passing == 3
    reasons = re.findall(r"^\| `test_\w+` \| (.+\.) \|$", text, re.MULTILINE)
    assert len(reasons) == len(upstream.listed())


@pytest.mark.parametrize("sentence", ["A claim that no test proves.", "| a row | x | y |"])
def test_a_sentence_without_a_test_is_found(sentence: str) -> None:
    assert key_of(sentence.strip("| ")) is None
