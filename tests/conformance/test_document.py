"""The document store passes the suite, on memory, on a file and on S3.

Each runs with one kind of queue, a different one each time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.testing import StoreSuite
from tests.conformance.harnesses import DocumentHarness, S3DocumentHarness
from tests.servers.client import BucketServer
from tests.servers.fixtures import unique_prefix


class TestDocumentInMemory(StoreSuite):
    flavours = ("queue",)

    @pytest.fixture
    def harness(self) -> DocumentHarness:
        return DocumentHarness(None)


class TestDocumentInAFile(StoreSuite):
    flavours = ("broker",)

    @pytest.fixture
    def harness(self, tmp_path: Path) -> DocumentHarness:
        return DocumentHarness(tmp_path)


class TestDocumentOnS3(StoreSuite):
    flavours = ("direct",)

    @pytest.fixture
    def harness(
        self, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
    ) -> S3DocumentHarness:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
        return S3DocumentHarness(bucket_server, f"{unique_prefix()}.json")
