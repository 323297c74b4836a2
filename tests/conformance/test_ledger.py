"""The ledger passes the suite, on every bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.testing import StoreSuite
from casque.testing.rig import Flavour
from tests.conformance.harnesses import (
    LedgerHarness,
    ledger_in_a_folder,
    ledger_in_memory,
    ledger_on_a_server,
)
from tests.servers.fixtures import MakeBucket
from tests.servers.others import Running


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the processes that a test starts find there."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def s3_address(bucket: MakeBucket, server: Running) -> str:
    return f"{bucket().name}?endpoint={server.url}"


def one_flavour(request: pytest.FixtureRequest) -> Flavour:
    """On servers one kind of queue is enough: all three meet in memory and in a folder."""
    flavour: Flavour = request.param
    return flavour


class TestLedgerInMemory(StoreSuite):
    @pytest.fixture
    def harness(self) -> LedgerHarness:
        return ledger_in_memory()


class TestLedgerInAFolder(StoreSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> LedgerHarness:
        return ledger_in_a_folder(tmp_path)


class TestLedgerOnMinistack(StoreSuite):
    @pytest.fixture(params=["broker"])
    def flavour(self, request: pytest.FixtureRequest) -> Flavour:
        return one_flavour(request)

    @pytest.fixture
    def harness(
        self, s3_ministack: MakeBucket, ministack: Running, s3_environment: None
    ) -> LedgerHarness:
        return ledger_on_a_server(s3_ministack, s3_address(s3_ministack, ministack))


class TestLedgerOnSeaweedfs(StoreSuite):
    @pytest.fixture(params=["queue"])
    def flavour(self, request: pytest.FixtureRequest) -> Flavour:
        return one_flavour(request)

    @pytest.fixture
    def harness(
        self, s3_seaweedfs: MakeBucket, seaweedfs: Running, s3_environment: None
    ) -> LedgerHarness:
        return ledger_on_a_server(s3_seaweedfs, s3_address(s3_seaweedfs, seaweedfs))


class TestLedgerOnAzurite(StoreSuite):
    @pytest.fixture(params=["direct"])
    def flavour(self, request: pytest.FixtureRequest) -> Flavour:
        return one_flavour(request)

    @pytest.fixture
    def harness(self, azure: MakeBucket) -> LedgerHarness:
        return ledger_on_a_server(azure)


class TestLedgerOnGoogle(StoreSuite):
    @pytest.fixture(params=["broker"])
    def flavour(self, request: pytest.FixtureRequest) -> Flavour:
        return one_flavour(request)

    @pytest.fixture
    def harness(self, gcs: MakeBucket) -> LedgerHarness:
        return ledger_on_a_server(gcs)
