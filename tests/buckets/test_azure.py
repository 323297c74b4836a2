"""The bucket on Azure passes the suite, on Azurite."""

from __future__ import annotations

import pytest

from casque.testing import BucketSuite
from tests.buckets.harnesses import ServedHarness
from tests.servers.fixtures import MakeBucket


class TestAzurite(BucketSuite):
    @pytest.fixture
    def bucket_harness(self, azure: MakeBucket) -> ServedHarness:
        return ServedHarness(azure)
