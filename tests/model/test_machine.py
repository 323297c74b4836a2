"""The stores, driven side by side with the oracle through every flavour of queue.

A run is the same each time, so that a red build stays red until it is fixed.
To search further, run `CASQUE_MODEL_EXAMPLES=2000 pytest tests/model`. It starts
from another seed each time and prints how to replay a failure.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from casque.buckets.port import Bucket
from casque.testing.machine import machine_for
from casque.testing.rig import FLAVOURS, Flavour, Harness
from tests.conformance.harnesses import (
    DocumentHarness,
    LedgerHarness,
    MemoryHarness,
    S3DocumentHarness,
    SqliteHarness,
    ledger_in_a_folder,
    ledger_in_memory,
    ledger_on_a_server,
)
from tests.servers.client import BucketServer
from tests.servers.fixtures import unique_prefix
from tests.servers.openers import azure_of, gcs_of, s3_of

SEARCH = os.environ.get("CASQUE_MODEL_EXAMPLES")

# Far above the real duration: hypothesis would treat a timeout inside an example as a failure.
pytestmark = pytest.mark.timeout(0 if SEARCH else 1_200)


def agree(open_harness: Callable[[], Harness], flavour: Flavour, examples: int, steps: int) -> None:
    machine = machine_for(open_harness, flavour)
    if SEARCH is None:
        # Each flavour has another seed: the same walk three times would show nothing new.
        seed(zlib.crc32(flavour.encode()))(machine)
    how = settings(
        # One more: the first example is the simplest, in which only time passes.
        max_examples=int(SEARCH or examples) + 1,
        stateful_step_count=steps,
        deadline=None,
        derandomize=SEARCH is None,
        print_blob=True,
        # A failure is reported at once; only CASQUE_MODEL_EXAMPLES=… shrinks it.
        phases=tuple(Phase) if SEARCH else (Phase.explicit, Phase.generate),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=how)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_memory_and_the_oracle_agree_after_every_step(flavour: Flavour) -> None:
    agree(MemoryHarness, flavour, examples=4, steps=50)


def test_the_document_and_the_oracle_agree_after_every_step() -> None:
    agree(lambda: DocumentHarness(None), "queue", examples=3, steps=50)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_sqlite_and_the_oracle_agree_after_every_step(flavour: Flavour, tmp_path: Path) -> None:
    def fresh() -> SqliteHarness:
        return SqliteHarness(Path(tempfile.mkdtemp(dir=tmp_path)))

    agree(fresh, flavour, examples=5, steps=50)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_ledger_and_the_oracle_agree_after_every_step(flavour: Flavour) -> None:
    agree(ledger_in_memory, flavour, examples=3, steps=50)


def test_a_ledger_in_a_folder_and_the_oracle_agree_after_every_step(tmp_path: Path) -> None:
    agree(
        lambda: ledger_in_a_folder(tempfile.mkdtemp(dir=tmp_path)), "direct", examples=2, steps=50
    )


def test_a_ledger_on_ministack_and_the_oracle_agree_after_every_step(ministack: str) -> None:
    agree(on_a_server(s3_of, ministack), "broker", examples=2, steps=20)


def test_a_ledger_on_seaweedfs_and_the_oracle_agree_after_every_step(seaweedfs: str) -> None:
    agree(on_a_server(s3_of, seaweedfs), "queue", examples=2, steps=20)


def test_a_ledger_on_azurite_and_the_oracle_agree_after_every_step(azurite: str) -> None:
    agree(on_a_server(azure_of, azurite), "direct", examples=2, steps=20)


def test_a_ledger_on_google_and_the_oracle_agree_after_every_step(
    bucket_server: BucketServer,
) -> None:
    agree(on_a_server(gcs_of, bucket_server.url), "broker", examples=2, steps=20)


def test_a_document_on_s3_and_the_oracle_agree_after_every_step(
    bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")

    def fresh() -> DocumentHarness:
        return S3DocumentHarness(bucket_server, f"{unique_prefix()}.json")

    agree(fresh, "direct", examples=2, steps=20)


def on_a_server(make: Callable[[str, str], Bucket], url: str) -> Callable[[], Harness]:
    def fresh() -> LedgerHarness:
        return ledger_on_a_server(partial(make, url, unique_prefix()))

    return fresh
