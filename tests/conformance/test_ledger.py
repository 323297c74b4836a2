"""The ledger passes the suite, on every bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.testing import StoreSuite
from tests.conformance.harnesses import LedgerHarness, ledger_in_a_folder, ledger_in_memory


class TestLedgerInMemory(StoreSuite):
    @pytest.fixture
    def harness(self) -> LedgerHarness:
        return ledger_in_memory()


class TestLedgerInAFolder(StoreSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> LedgerHarness:
        return ledger_in_a_folder(tmp_path)
