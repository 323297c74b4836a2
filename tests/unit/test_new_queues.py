"""The process that creates a queue logs its path once. A wrong address fails at `App(…)`."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from casque import App, InMemoryStorage, LocalFileSystemStorage, Queue, open_store
from casque.buckets.memory import MemoryBucket
from casque.stores.ledger.ledger_bucket import LedgerBucket
from casque.stores.port import Announced
from casque.stores.sqlite.connection import Database

STORES = ("jobs.db", "queue.json", "ledger/")
TOGETHER = """
import sys
from casque import Queue

sys.stdin.readline()
with Queue(sys.argv[1]) as q:
    q.enqueue("e")
"""
ONLY_PARSED = """
import json, sys
from casque import App

for address in sys.argv[1:]:
    App(address)
loaded = ("obstore", "sqlite3", "casque.buckets.folder", "casque.stores.document.store")
print(json.dumps([name for name in loaded if name in sys.modules]))
"""


def created(log: pytest.LogCaptureFixture) -> list[str]:
    """The names of new queues in the log. Each is a warning of the logger `casque`."""
    records = [one for one in log.records if "created a new queue" in one.msg]
    assert all((one.name, one.levelno) == ("casque", logging.WARNING) for one in records)
    return [str(one.args[0]) for one in records if isinstance(one.args, tuple)]


@pytest.mark.parametrize("store", STORES)
def test_the_first_write_to_a_new_queue_logs_its_absolute_path_once(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with Queue(store) as q:
        q.enqueue("e")
        q.enqueue("e")
    with Queue(store) as q:
        q.enqueue("e")
    [name] = created(caplog)
    assert name.removeprefix("file://") == str(tmp_path.resolve() / store.rstrip("/"))
    assert "a relative path starts in the working directory" in caplog.text


@pytest.mark.parametrize("store", STORES)
def test_of_many_processes_only_the_one_that_made_the_queue_logs_it(
    store: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", TOGETHER, f"{tmp_path}/{store}"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(6)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=100)[1] for process in processes]
    assert sorted(one.count("created a new queue") for one in said) == [0, 0, 0, 0, 0, 1]
    with Queue(f"{tmp_path}/{store}") as q:
        assert q.stats().pending == 6


@pytest.mark.parametrize("store", STORES)
def test_a_process_that_is_overtaken_while_it_creates_the_queue_does_not_log_it(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one creates it after this one has seen that there is none."""
    path, overtaken = f"{tmp_path}/{store}", list[str]()

    def overtake(original: Callable[..., Any]) -> Callable[..., Any]:
        def first(*arguments: Any, **named: Any) -> Any:
            if not overtaken:
                overtaken.append("by another")
                with Queue(path) as other:
                    other.enqueue("e")
                overtaken[:] = created(caplog)
            return original(*arguments, **named)

        return first

    for kind, step in (
        (Database, "_bound_log"),
        (LocalFileSystemStorage, "_write"),
        (LedgerBucket, "put"),
    ):
        monkeypatch.setattr(kind, step, overtake(getattr(kind, step)))
    with Queue(path) as q:
        q.enqueue("e")
        assert q.stats().pending == 2
    assert created(caplog) == overtaken
    assert len(overtaken) == 1


@pytest.mark.parametrize("make", [lambda: "memory://", InMemoryStorage, MemoryBucket])
def test_a_queue_in_memory_is_not_logged(
    make: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with Queue(make()) as q:
        q.enqueue("e")
    assert created(caplog) == []


def test_a_new_ledger_in_a_bucket_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with Queue(MemoryBucket(name="s3://bucket/jobs")) as q:
        q.enqueue("e")
    assert created(caplog) == ["s3://bucket/jobs"]


def test_a_queue_in_the_callers_own_transaction_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection, Queue(path) as q:
        connection.execute("CREATE TABLE own (n)")
        q.enqueue("e", connection=connection)
        connection.rollback()
    assert created(caplog) == []


@pytest.mark.parametrize("store", STORES)
def test_a_program_may_take_over_the_report(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    opened = open_store(f"{tmp_path}/{store}")
    assert isinstance(opened, Announced)
    opened.announce_to(told.append)
    with Queue(opened) as q:
        q.enqueue("e")
    assert told == [opened.name]
    assert created(caplog) == []


def test_an_app_parses_its_address_and_opens_and_loads_nothing(tmp_path: Path) -> None:
    good = [
        *("jobs.db", "sqlite:///jobs.db?durability=normal", "queue.json", "ledger/", "memory://"),
        *("s3://bucket/q?region=eu-central-1", "gs://bucket/q", "az://container/q"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", ONLY_PARSED, *good],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert json.loads(done.stdout) == []
    assert list(tmp_path.iterdir()) == []


def test_an_app_accepts_an_address_whose_package_is_not_installed() -> None:
    """It may be imported for its tasks alone, or get another store from `--store`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "obstore", None)
        App("s3://bucket/jobs").close()
