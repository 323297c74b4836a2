"""The queue may be in a user's database, where ANALYZE or PRAGMA optimize may run any time."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from casque import NewJob, Queue
from casque.stores.sqlite.rows import STATEMENTS
from tests.sqlite.plans import PLANS, plan_of

CONTENTS: dict[str, list[NewJob]] = {
    "one job": [NewJob("e")],
    "one line": [NewJob("e")] * 1_000,
    "many queues": [NewJob("e", queue=f"q{n}") for n in range(1_000)],
    "many entrypoints": [NewJob(f"e{n}") for n in range(1_000)],
    "many lines": [NewJob(f"e{n}", queue=f"q{n % 50}") for n in range(1_000)],
    "many priorities": [NewJob("e", priority=n, id=str(n)) for n in range(1_000)],
}


@pytest.mark.parametrize("content", CONTENTS)
def test_outdated_statistics_change_no_plan(tmp_path: Path, content: str) -> None:
    path = tmp_path / "jobs.db"
    with Queue(path) as q:
        q.enqueue_many(CONTENTS[content])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("ANALYZE")
        told = {name: plan_of(connection, STATEMENTS[name]) for name in PLANS}
    assert told == {name: plan.summary for name, plan in PLANS.items()}
