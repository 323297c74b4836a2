"""The ledger passes the suite, on every bucket.

In memory it runs with every kind of queue. Elsewhere only the place of the bytes differs, so one
kind is enough.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.testing import StoreSuite
from tests.conformance.harnesses import (
    LedgerHarness,
    ledger_in_a_folder,
    ledger_in_memory,
    ledger_on_a_server,
)
from tests.servers.fixtures import MakeBucket


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment variables for the processes that a test starts."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def s3_address(bucket: MakeBucket, server: str) -> str:
    return f"{bucket().name}?endpoint={server}"


class TestLedgerInMemory(StoreSuite):
    @pytest.fixture
    def harness(self) -> LedgerHarness:
        return ledger_in_memory()


class TestLedgerInAFolder(StoreSuite):
    flavours = ("queue",)

    @pytest.fixture
    def harness(self, tmp_path: Path) -> LedgerHarness:
        return ledger_in_a_folder(tmp_path)


class TestLedgerOnSeaweedfs(StoreSuite):
    flavours = ("queue",)

    @pytest.fixture
    def harness(
        self, s3_seaweedfs: MakeBucket, seaweedfs: str, s3_environment: None
    ) -> LedgerHarness:
        return ledger_on_a_server(s3_seaweedfs, s3_address(s3_seaweedfs, seaweedfs))


class TestLedgerOnAzurite(StoreSuite):
    flavours = ("direct",)

    @pytest.fixture
    def harness(self, azure: MakeBucket) -> LedgerHarness:
        return ledger_on_a_server(azure)


class TestLedgerOnGoogle(StoreSuite):
    flavours = ("broker",)

    @pytest.fixture
    def harness(self, gcs: MakeBucket) -> LedgerHarness:
        return ledger_on_a_server(gcs)
