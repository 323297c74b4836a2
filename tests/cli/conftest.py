"""A command line on each kind of store that a machine has for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.control import STORES, Control


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have settings of his own, and be a job."""
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
