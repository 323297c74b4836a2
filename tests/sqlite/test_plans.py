"""Every statement uses its index: no scan and no sort without a stated reason."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from casque import NewJob, Queue
from casque.stores.sqlite.rows import STATEMENTS, schema
from casque.stores.sqlite.store import SqliteStore
from casque.testing import FakeClock
from tests.sqlite.plans import EVERYTHING, FINISHED, PLANS, Plan, plan_of
from tests.sqlite.waiting import closed_behind

HOUR = timedelta(hours=1)


def fill(path: Path) -> None:
    """A queue with jobs and records of every kind, written by its own code."""
    store = SqliteStore(path, clock=FakeClock())
    with closed_behind(store), Queue(store) as q:
        for queue in "abc":
            q.enqueue_many([NewJob("e", queue=queue, priority=n % 7) for n in range(50)])
            q.enqueue_many([NewJob("f", queue=queue, id=f"{queue}{n}", delay=HOUR) for n in "123"])
            q.enqueue("e", queue=queue, retain=HOUR, priority=-1)
        for job in q.dequeue(batch_size=5):
            q.ack(job)
        q.nack(q.dequeue()[0])
        q.fail(q.dequeue()[0], error="no")
        q.cancel("a1")
        q.dequeue(batch_size=3)
        q.pause("b")


@pytest.fixture(params=["empty", "filled"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as opened:
        if request.param == "empty":
            opened.executescript(schema())
        else:
            fill(path)
        yield opened


def test_every_statement_has_a_plan_here() -> None:
    assert set(STATEMENTS) - set(PLANS) == set(), "add these to tests/sqlite/plans.py"
    assert set(PLANS) - set(STATEMENTS) == set(), "these statements no longer exist"


def test_every_statement_does_as_its_plan_says(connection: sqlite3.Connection) -> None:
    told = {name: plan_of(connection, STATEMENTS[name]) for name in PLANS}
    assert told == {name: plan.summary for name, plan in PLANS.items()}


CLAIMS = {
    *("heads", "next_rank", "due_of_rank", "ring", "ring_of_entrypoint"),
    *("come_due", "come_due_of_entrypoint", "first_waiting", "place_line"),
    "turn_line",
    *("claim", "claim_all", "claim_fast"),
    *("ack_fast", "holds", "holds_named", "delete_jobs", "complete"),
    *("add", "add_plain", "add_fast", "add_plain_fast"),
}


def test_no_claim_ack_or_enqueue_sorts_or_reads_all_jobs() -> None:
    for name in CLAIMS:
        assert not PLANS[name].sorts
        assert PLANS[name].walks not in (EVERYTHING, FINISHED)


WITHOUT = {
    "casque_job_due": ("heads", "next_rank", "due_of_rank", "claim_fast", "held_until"),
    "casque_job_name": ("holds_named", "job_named"),
    "casque_job_expiry": ("next_job_expiry", "delete_expired_jobs"),
    "casque_job_mismatch": ("mismatched", "mismatched_in_all"),
    "casque_line_next": ("ring", "come_due", "first_waiting", "claim_fast"),
    "casque_line_entrypoint": (
        "ring_of_entrypoint",
        "come_due_of_entrypoint",
        "first_waiting_of_entrypoint",
        "next_entrypoint",
    ),
    "casque_line_name": ("line", "lines_of_queue"),
    "casque_record_expiry": ("expired_records",),
    "casque_counter_seen": ("forget_writers",),
}


@pytest.mark.parametrize("index", WITHOUT)
def test_a_missing_index_is_noticed(index: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema())
        connection.execute(f"DROP INDEX {index}")
        for name in WITHOUT[index]:
            assert not _is_as_planned(connection, name, PLANS[name])


def _is_as_planned(connection: sqlite3.Connection, name: str, plan: Plan) -> bool:
    try:
        return plan_of(connection, STATEMENTS[name]) == plan.summary
    except sqlite3.OperationalError as error:
        if "no such index" in str(error):
            return False
        raise


def test_an_order_that_no_index_has_is_noticed() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema())
        sql = STATEMENTS["heads"].replace("ORDER BY priority, due_us", "ORDER BY priority, id")
        assert sql != STATEMENTS["heads"]
        assert plan_of(connection, sql).sorts
