"""The program of the page on damaged ledgers saves jobs from snapshots, entries and payloads."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casque import Queue
from casque.buckets.folder import FolderBucket
from casque.job import JobStatus
from casque.stores.ledger.ledger_bucket import Upkeep
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US
from casque.testing import FakeClock
from tests.docs.following import FENCE
from tests.docs.pages import DOCS

UPKEEP = Upkeep(deletion_age_us=60 * SECOND_US, proof_age_us=5 * SECOND_US, snapshot_entries=10)
LARGE = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def unfinished() -> Callable[[Path], dict[str, Any]]:
    """The function of the page."""
    fences = FENCE.finditer((DOCS / "how-to" / "recover-a-damaged-ledger.md").read_text())
    [program] = [fence[2] for fence in fences if "def unfinished" in fence[2]]
    names: dict[str, Any] = {}
    exec(program[: re.search(r"^ledger = ", program, re.MULTILINE).start()], names)  # type: ignore[union-attr]
    found: Callable[[Path], dict[str, Any]] = names["unfinished"]
    return found


def filled(path: Path) -> tuple[Path, dict[str, bytes]]:
    """Fill a ledger that has snapshots. Returns its folder, and the payloads of the open jobs."""
    clock = FakeClock()
    store = LedgerStore(FolderBucket(path, clock), clock, upkeep=UPKEEP)
    with Queue(store) as q:
        for number in range(30):
            q.enqueue("e", LARGE if number % 3 else b"small", id=f"job {number}")
            if number % 4 == 0:
                [job] = q.dequeue()
                (q.ack if number % 8 else q.fail)(job)
        q.retry(q.jobs(status="dead")[0])
        jobs = q.read_state().jobs
    [folder] = [one.parent for one in path.glob("*/log")]
    kept = {job.id: job.payload for job in jobs if job.status is JobStatus.QUEUED}
    return folder, kept


def saved(jobs: dict[str, Any]) -> dict[str, bytes]:
    return {id: job["payload"] for id, job in jobs.items()}


def test_all_jobs_are_saved_from_a_snapshot_and_the_entries_after_it(
    tmp_path: Path, unfinished: Callable[[Path], dict[str, Any]]
) -> None:
    folder, kept = filled(tmp_path)
    *_, newest = sorted(folder.glob("snapshot/0*"))
    for entry in folder.glob("log/0*"):
        if entry.name <= newest.name:
            entry.unlink()
    assert saved(unfinished(folder)) == kept
    newest.write_bytes(b"damaged")
    older = saved(unfinished(folder))  # of the snapshot before
    assert len(older.keys() & kept.keys()) > 10


def test_a_lost_payload_or_entry_loses_one_job(
    tmp_path: Path, unfinished: Callable[[Path], dict[str, Any]]
) -> None:
    folder, kept = filled(tmp_path)
    next(iter(folder.glob("payload/*"))).unlink()
    found = saved(unfinished(folder))
    assert len(found) == len(kept) - 1
    assert found.items() <= kept.items()
