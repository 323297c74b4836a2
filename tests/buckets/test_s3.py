"""The bucket on S3 passes the suite: on two third-party servers and on ours."""

from __future__ import annotations

import pytest

from casque.testing import BucketSuite
from tests.buckets.harnesses import ServedHarness
from tests.servers.fixtures import MakeBucket


class TestOurServer(BucketSuite):
    @pytest.fixture
    def bucket_harness(self, s3: MakeBucket) -> ServedHarness:
        return ServedHarness(s3, "hashes")


class TestMinistack(BucketSuite):
    @pytest.fixture
    def bucket_harness(self, s3_ministack: MakeBucket) -> ServedHarness:
        return ServedHarness(s3_ministack, "hashes")


class TestSeaweedfs(BucketSuite):
    @pytest.fixture
    def bucket_harness(self, s3_seaweedfs: MakeBucket) -> ServedHarness:
        return ServedHarness(s3_seaweedfs, "hashes", "folders")
