"""The numbers on the pages are those of the code."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from casque import Backoff, checks
from casque.buckets import PAGE, replies
from casque.queues import arguments, async_queue, commit, held_claims
from casque.rules import retention, state, transaction, transitions
from casque.stores import port, url
from casque.stores.document import store
from casque.stores.ledger import bucket_requests, bucket_time, log_reader, pacing, polling, presence
from casque.stores.sqlite import lock_wait, watch
from casque.system import local_disk
from casque.system.clock import DAY_US, LONGEST_SPAN_US, MINUTE_US, SECOND_US
from casque.system.durations import told
from casque.tasks import app
from casque.worker import __main__, options, store_thread
from casque.worker.supervision import registration, supervisor
from tests.docs.following import ROOT
from tests.docs.pages import DOCS, GUARANTEES, named, section


def mib(size: int) -> str:
    return f"{size // 2**20} MiB"


def kib(size: int) -> str:
    return f"{size // 2**10} KiB"


def seconds(us: int) -> str:
    return f"{us // SECOND_US} s"


@pytest.mark.parametrize(
    ("row", "limits"),
    [
        ("names", [f"{checks.NAME_BYTES} bytes"]),
        ("payload", [mib(checks.PAYLOAD_BYTES)]),
        ("result", [kib(checks.RESULT_BYTES)]),
        ("output", [kib(checks.OUTPUT_BYTES)]),
        ("error text", [kib(checks.ERROR_BYTES)]),
        ("history", [f"last {transitions.HISTORY_LIMIT} attempts"]),
        ("durations", [f"{LONGEST_SPAN_US // (365 * DAY_US)} years"]),
        (
            "jobs that one `enqueue_many`",
            [f"{arguments.ENQUEUE_MANY_JOBS:,} jobs", mib(arguments.ENQUEUE_MANY_BYTES)],
        ),
        (
            "one commit |",
            [f"{commit.BATCH_OPERATIONS:,} operations", mib(commit.BATCH_BYTES)],
        ),
        ("operations waiting", [f"{commit.WAITING_CALLERS:,}"]),
        ("all tries of one commit together", [seconds(port.COMMIT_DEADLINE_US)]),
        ("one request to a bucket", [f"{bucket_requests.REQUEST_SECONDS} s"]),
        (
            "one call on a bucket that does not answer",
            [seconds(port.COMMIT_DEADLINE_US + bucket_requests.LEAST_US)],
        ),
        ("pending work", [seconds(commit.CLOSE_PATIENCE_US)]),
        ("waiting for a file's lock", [seconds(local_disk.LOCK_PATIENCE_US)]),
        (
            "how long the store remembers the last commit",
            [f"{state.WRITER_MEMORY_US // MINUTE_US} minutes"],
        ),
        ("claims", [f"{held_claims.HELD_CLAIMS_KEPT:,}"]),
        ("depth", [f"{async_queue.DEFAULT_MAX_DEPTH}"]),
        ("dead", [f"{retention.DEAD_RETENTION_US // DAY_US} days"]),
        ("pruned", [f"{transaction.PRUNED_AT_ONCE} expired jobs"]),
    ],
)
def test_the_limits_are_those_of_the_code(row: str, limits: list[str]) -> None:
    rows = section(GUARANTEES, "Limits").splitlines()
    [found] = [line for line in rows if line.startswith(f"| {row}")]
    for limit in limits:
        assert limit in found


def test_the_wait_for_sqlites_lock_is_as_long_as_its_page_says() -> None:
    text = " ".join((DOCS / "how-to" / "use-sqlite.md").read_text().split())
    warns, ends = seconds(lock_wait.WARN_AFTER_US), seconds(port.COMMIT_DEADLINE_US)
    assert f"After {warns} casque logs a warning" in text
    assert f"after {ends} the call raises `StorageError`" in text


def test_the_warning_of_the_document_is_where_the_guarantees_say() -> None:
    text = " ".join(GUARANTEES.read_text().split())
    assert f"{store.RECORDS_BEFORE_WARNING:,} jobs" in text


def test_what_the_bucket_page_says_of_the_ledger_is_so() -> None:
    text = " ".join((DOCS / "how-to" / "use-a-bucket.md").read_text().split())
    quick, slowest = polling.QUICK_US / SECOND_US, polling.SLOWEST_US / SECOND_US
    assert f"every {quick} s while the log grows" in text
    slow_after = polling.IDLE_SHARE * polling.SLOWEST_US // SECOND_US
    assert f"until the pause is {slowest} s after {slow_after} s" in text
    assert f"In a folder it is always {polling.QUICK_LOCAL_US / SECOND_US} s" in text
    assert f"{1 / quick:g} GETs a second while the log grows; 1 GET every {slowest} s" in text
    least, most = told(url.SHORTEST_POLL_US), told(url.LONGEST_POLL_US)
    assert (least, most) == ("50ms", "1m")
    assert "from 50 ms to 60 s" in text
    every = presence.PRESENCE_US // MINUTE_US
    assert f"overwrites every {every} minutes" in text
    assert f"1 PUT and 1 GET every {every} minutes" in text
    assert f"1 LIST for each {pacing._LOOK_EVERY}" in text
    assert f"after {seconds(pacing._STALE_US)}" in text
    assert f"another PUT every {seconds(pacing._SPEAK_AGAIN_US)}" in text
    assert f"more than {seconds(bucket_time.BEHIND_US)} after the bucket's clock" in text
    assert f"every {bucket_time.ASK_EVERY_US // MINUTE_US} minutes" in text
    assert f"{MINUTE_US // log_reader.CHECK_EVERY_US} GETs a minute for the last entry" in text
    assert f"{SECOND_US // log_reader.LOOK_EVERY_US} GET a second at most" in text
    assert log_reader.IDLE_LOOK_US == MINUTE_US
    assert "while it only waits, 1 or 2 a minute" in text
    assert f"up to {log_reader._AT_ONCE} entries at a time" in text
    assert f"{PAGE:,} entries a request" in text
    for service in (replies.S3, replies.GCS):
        for permissions in service.permissions.values():
            for permission in permissions.split(" and "):
                assert f"`{permission.removeprefix('storage.objects.')}`" in text.replace(
                    "storage.objects.", ""
                )
    for scheme in url._BUCKETS:
        assert f"`{scheme}://" in text
    for extra in url._BUCKETS.values():
        assert f"`casque[{extra}]`" in text


def test_what_the_pages_on_workers_say_is_so() -> None:
    text = " ".join((DOCS / "how-to" / "run-workers.md").read_text().split())
    lease, grace = (
        seconds(options.DEFAULT_LEASE_US),
        seconds(options.DEFAULT_GRACE_US),
    )
    pace, backoff = supervisor.RestartPolicy(), Backoff()
    assert f"{lease} after the last heartbeat" in text
    assert f"`--grace`, {grace}" in text
    assert f"waits longer each time, up to {seconds(pace.longest_us)}" in text
    assert f"not ended {seconds(pace.beyond_grace_us)} after the grace is killed" in text
    assert f"the grace and the {seconds(pace.beyond_grace_us)} after it" in text
    assert f"growing intervals of at most {seconds(store_thread._LONGEST_PAUSE_US)}" in text
    assert f"not gone {store_thread.CANCEL_SECONDS:g} s later" in text
    waits = f"at most {backoff.base.total_seconds():g} s, 4 s, 8 s and so on"
    assert f"{waits}, and never more than an hour" in text
    assert (backoff.factor, backoff.cap, store_thread.BEATS_PER_LEASE) == (2, timedelta(hours=1), 3)
    assert (options.DEFAULT_CONCURRENCY, app.MAX_ATTEMPTS) == (32, 10)
    assert f"by default {lease} after" in " ".join(GUARANTEES.read_text().split())
    there = set(re.findall(r"--[a-z][a-z-]+", __main__._parser().format_help())) - {"--help"}
    assert {option for option in there if option not in text} == set()


def test_what_idle_workers_write_is_as_the_pages_say() -> None:
    beats = MINUTE_US // options.DEFAULT_LEASE_US * store_thread.BEATS_PER_LEASE
    assert (beats, registration._RENEWALS_PER_LEASE) == (3, store_thread.BEATS_PER_LEASE)
    for page, words in (
        (ROOT / "README.md", "three times a minute"),
        (GUARANTEES, "three times a minute"),
        (DOCS / "how-to" / "use-sqlite.md", f"{beats} commits a minute each"),
    ):
        assert words in " ".join(page.read_text().split()), page.name


@pytest.mark.parametrize("page", [GUARANTEES, DOCS / "how-to" / "use-sqlite.md"], ids=named)
def test_the_pace_of_sqlite_is_as_the_pages_say(page: Path) -> None:
    text = " ".join(page.read_text().split())
    assert f"within about {watch.LOOK_LAZILY_US // 1000} ms" in text


@pytest.mark.parametrize(
    ("page", "figures"),
    [
        ("design/0006-sqlite.md", ["after 5 ms"]),
        ("how-to/use-a-bucket.md", ["6.5", "65", "610", "2,700 to 4,000", "half a second"]),
    ],
)
def test_the_rates_in_the_readme_are_those_of_the_page_they_link_to(
    page: str, figures: list[str]
) -> None:
    [*rows] = [
        line for line in (ROOT / "README.md").read_text().splitlines() if f"(docs/{page}" in line
    ]
    assert rows
    measured = " ".join((DOCS / page).read_text().split())
    for figure in figures:
        assert any(figure in row for row in rows), figure
        assert figure in measured, figure


def test_the_defaults_in_the_readme_are_those_of_the_code() -> None:
    text = (ROOT / "README.md").read_text()
    assert f"its lease ends ({seconds(options.DEFAULT_LEASE_US)} by default)" in text
    assert f"{app.MAX_ATTEMPTS} attempts, exponential backoff" in text
    assert f"keep it below {store.RECORDS_BEFORE_WARNING:,} jobs" in text
