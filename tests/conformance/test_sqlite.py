"""The SQLite store passes the suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casque.testing import StoreSuite
from tests.conformance.harnesses import SqliteHarness


class TestSqlite(StoreSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[SqliteHarness]:
        harness = SqliteHarness(tmp_path)
        yield harness
        harness.close()
