"""The storage fails under busy workers: they wait, log it once, and continue by themselves.

Here for a moment, with a shorter deadline for stores than the usual one; in
tests/torture for half a minute, with the usual deadline.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from casque import App, Queue
from casque.system.clock import SECOND_US
from casque.worker.store_thread import LAST_WORDS_US
from casque.worker.supervision.supervisor import RestartPolicy
from tests.acceptance.fleet import PATIENCE, Fleet, assert_each_done_once, chore, until
from tests.acceptance.outages import (
    FAULTS,
    bucket_server,
    outlive_a_bucket,
    outlive_a_locked_file,
)
from tests.servers.openers import BUCKET

SECONDS = 1.0
IMPATIENT = 0.5
"""After how many seconds without an answer a store gives up, here."""
LAST_WORDS = {"CHORES_LAST_WORDS_US": "1000000"}


def test_workers_wait_for_a_locked_file(tmp_path: Path) -> None:
    outlive_a_locked_file(tmp_path, SECONDS, IMPATIENT)


@pytest.mark.parametrize("fault", FAULTS)
def test_workers_wait_for_a_bucket_that_fails(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    outlive_a_bucket(fault, tmp_path, SECONDS, IMPATIENT)


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_worker_can_stop_while_its_storage_does_not_answer(count: str, tmp_path: Path) -> None:
    with (
        Fleet(tmp_path, "jobs.db", **LAST_WORDS) as fleet,
        closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other,
    ):
        fleet.queue.enqueue_many(
            [chore("wait_at_the_gate", "endless"), chore("wait_for_the_end", "b")]
        )
        worker = fleet.start("--count", count, "--grace", "1", "--lease", "5")
        until("both run", lambda: len(fleet.times_run()) == 2)
        other.execute("BEGIN EXCLUSIVE")
        worker.terminate()
        (tmp_path / "stopping").touch()
        assert worker.wait(PATIENCE) == 0, "it ends by itself; its supervisor does not kill it"
        other.execute("ROLLBACK")
        assert [said for said in fleet.said() if "stopping without an answer" in said.message]
        assert fleet.queue.stats().processing == 2, "as after a kill"
        fleet.open_gate()
        fleet.start("--lease", "5")
        fleet.until_completed(2)
        assert_each_done_once(fleet, ["endless", "b"])


def test_a_worker_that_ends_while_its_storage_hangs_blames_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    with bucket_server(tmp_path / "bucket") as server:
        store = f"s3://{BUCKET}/jobs?endpoint={server.url}&region=us-east-1"
        with Fleet(tmp_path, store, **LAST_WORDS) as fleet:
            fleet.queue.enqueue_many([chore("wait_for_the_end", "a")])
            worker = fleet.start()
            until("it runs", lambda: len(fleet.times_run()) == 1)
            server.delay(600)
            worker.terminate()
            (tmp_path / "stopping").touch()
            assert worker.wait(PATIENCE) == 0
            server.kill()  # so that the queue of this test does not wait for it either
            warned = [said.message for said in fleet.said() if said.level != "INFO"]
            assert [line for line in warned if "stopping without an answer" in line] == warned


def test_a_supervisor_waits_longer_than_a_stopping_worker_for_its_storage() -> None:
    assert RestartPolicy().beyond_grace_us > LAST_WORDS_US + SECOND_US


GREETER = """
from casque import App

app = App("sqlite:///jobs.db")

@app.task
def greet() -> None: ...
"""


def test_workers_whose_log_is_removed_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text(GREETER)
    command = [sys.executable, "-m", "casque.worker", "greeter:app", "--count", "2"]

    def completed() -> int:
        with Queue(tmp_path / "jobs.db") as q:
            return q.stats().completed

    def ask() -> None:
        app = App(tmp_path / "jobs.db")

        @app.task
        def greet() -> None: ...

        greet.enqueue()
        app.close()

    with subprocess.Popen(command, cwd=tmp_path) as supervisor:
        try:
            ask()
            until("they work", lambda: completed() == 1)
            for part in ("-wal", "-shm"):
                (tmp_path / f"jobs.db{part}").unlink(missing_ok=True)  # seen already
            ask()
            until("their replacements work", lambda: completed() == 2)
        finally:
            supervisor.terminate()
        assert supervisor.wait(PATIENCE) == 0
