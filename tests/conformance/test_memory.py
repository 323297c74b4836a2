"""The memory store passes the suite."""

from __future__ import annotations

import pytest

from casque.testing import StoreSuite
from tests.conformance.harnesses import MemoryHarness


class TestMemory(StoreSuite):
    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()
