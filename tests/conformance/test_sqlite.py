"""The SQLite store passes the suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.testing import StoreSuite
from tests.conformance.harnesses import SqliteHarness


class TestSqlite(StoreSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> SqliteHarness:
        return SqliteHarness(tmp_path)
