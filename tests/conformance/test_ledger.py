"""The ledger passes the suite, on every bucket."""

from __future__ import annotations

import pytest

from casque.buckets.memory import MemoryBucket
from casque.testing import FakeClock, StoreSuite
from tests.conformance.harnesses import BucketClock, LedgerHarness


class TestLedgerInMemory(StoreSuite):
    @pytest.fixture
    def harness(self) -> LedgerHarness:
        clock = FakeClock()
        bucket = MemoryBucket(BucketClock(clock))
        return LedgerHarness(clock, lambda: bucket, tier="full")
