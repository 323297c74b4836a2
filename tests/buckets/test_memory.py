"""The memory bucket passes the suite."""

from __future__ import annotations

import pytest

from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Bucket
from casque.testing import BucketSuite
from casque.testing.racers import Limit, Opener
from casque.testing.rig import Tier


class MemoryHarness:
    """All handles are the same bucket: no other process can reach this one's memory."""

    tier: Tier = "full"
    limits: frozenset[Limit] = frozenset()
    opener: Opener | None = None

    def __init__(self) -> None:
        self._bucket = MemoryBucket()

    def open(self) -> Bucket:
        return self._bucket


class TestMemory(BucketSuite):
    @pytest.fixture
    def bucket_harness(self) -> MemoryHarness:
        return MemoryHarness()
