"""The bucket on Google Cloud Storage passes the suite, on our server or CASQUE_TEST_GCS_URL."""

from __future__ import annotations

import pytest

from casque.testing import BucketSuite
from tests.buckets.harnesses import ServedHarness
from tests.servers.fixtures import MakeBucket


class TestGcs(BucketSuite):
    @pytest.fixture
    def bucket_harness(self, gcs: MakeBucket) -> ServedHarness:
        return ServedHarness(gcs)
