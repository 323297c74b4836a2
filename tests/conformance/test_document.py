"""The document store passes the suite, on memory and on a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.testing import StoreSuite
from tests.conformance.harnesses import DocumentHarness


class TestDocumentInMemory(StoreSuite):
    @pytest.fixture
    def harness(self) -> DocumentHarness:
        return DocumentHarness(None)


class TestDocumentInAFile(StoreSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DocumentHarness:
        return DocumentHarness(tmp_path)
