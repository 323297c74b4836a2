"""Fixtures: `queuectl` on each kind of local store, and entries of workers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from casque.cli.store import Access
from casque.record import ABSENT, WORKER
from casque.rules.operations import PutRecord
from casque.system.clock import MICROSECOND, SystemClock, to_datetime
from casque.worker.registry import process_identity
from casque.worker.registry.entries import WorkerEntry
from tests.cli.control import STORES, Control
from tests.cli.entries import Write
from tests.forkserver import remember_commands


@pytest.fixture(scope="session", autouse=True)
def _quickly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", typer.main.get_command)  # so that it is restored
        remember_commands()
        yield


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the user who runs the tests, who may run them in a job."""
    for name in ("CASQUE_STORE", "CASQUE_DEPTH", "CASQUE_JOB_ID", "CASQUE_DEBUG", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=STORES)
def anywhere(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Control:
    """On SQLite, on a document and on a ledger in a folder."""
    return Control(f"{tmp_path}/{request.param}", capsys, monkeypatch)


@pytest.fixture
def control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Control:
    """On SQLite."""
    return Control(f"{tmp_path}/jobs.db", capsys, monkeypatch)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    address = f"{tmp_path}/{request.param}"
    monkeypatch.setenv("CASQUE_STORE", address)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return address


@pytest.fixture
def write(store: str) -> Write:
    """Writes the entry of a worker: by default of this process."""

    def written(age_us: int = 0, **changes: Any) -> WorkerEntry:
        vitals = process_identity.vitals(os.getpid())
        assert vitals is not None
        now = to_datetime(SystemClock().now())
        given: dict[str, Any] = {
            "name": f"{socket.gethostname()}:{changes.get('pid', os.getpid())}",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": now - timedelta(hours=2),
            "beat_at": now - age_us * MICROSECOND,
            "concurrency": 4,
            "queues": None,
            "entrypoints": ("shell",),
            "running": ("job1",),
            "supervisor": None,
            "machine": process_identity.machine(),
            "birth": vitals.birth,
            "obeys_signals": True,
        }
        with Access(store) as access:
            entry = WorkerEntry(**({"store": access.store.name} | given | changes))
            value = msgspec.json.encode(entry)
            access.submit(PutRecord(WORKER, entry.name, value, ABSENT, entry.ttl_us))
        return entry

    return written
