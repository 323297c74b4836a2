"""The document store passes the suite, on memory, on a file and on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.testing import StoreSuite
from casque.testing.rig import Flavour
from tests.conformance.harnesses import DocumentHarness, S3DocumentHarness
from tests.servers.client import BucketServer
from tests.servers.fixtures import unique_prefix


class TestDocumentInMemory(StoreSuite):
    @pytest.fixture
    def harness(self) -> DocumentHarness:
        return DocumentHarness(None)


class TestDocumentInAFile(StoreSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DocumentHarness:
        return DocumentHarness(tmp_path)


class TestDocumentOnS3(StoreSuite):
    @pytest.fixture(params=["direct"])
    def flavour(self, request: pytest.FixtureRequest) -> Flavour:
        flavour: Flavour = request.param
        return flavour

    @pytest.fixture
    def harness(
        self, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
    ) -> S3DocumentHarness:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
        return S3DocumentHarness(bucket_server, f"{unique_prefix()}.json")
