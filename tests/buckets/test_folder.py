"""The bucket in a folder passes the suite."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from casque.buckets.folder import FolderBucket
from casque.buckets.port import Bucket
from casque.testing import BucketSuite
from casque.testing.racers import Limit, Opener
from casque.testing.rig import Tier


class FolderHarness:
    tier: Tier = "full"
    limits: frozenset[Limit] = frozenset()

    def __init__(self, folder: Path) -> None:
        self.opener: Opener | None = partial(FolderBucket, folder / "bucket")

    def open(self) -> Bucket:
        assert self.opener is not None
        return self.opener()


class TestFolder(BucketSuite):
    @pytest.fixture
    def bucket_harness(self, quick_path: Path) -> FolderHarness:
        return FolderHarness(quick_path)
