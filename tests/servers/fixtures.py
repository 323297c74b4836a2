"""Fixtures: real servers, started when a test first needs one and stopped with the session.

The tests of a server that is not installed are skipped, with its name; with CI set
in the environment they fail. The processes of pytest-xdist share third-party servers.
Each has its own copy of our server, because tests switch faults on there.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from casque.buckets.obstore import ObstoreBucket, gcs_bucket
from tests.servers.client import BucketServer
from tests.servers.installed import UnavailableError
from tests.servers.openers import BUCKET, azure_of, gcs_of, s3_of
from tests.servers.others import Start, shared, start_azurite, start_ministack, start_seaweedfs

_ours = os.urandom(4).hex()
_numbers = itertools.count()

MakeBucket = Callable[[], ObstoreBucket]
"""Opens another handle on the same objects. It can be pickled for other processes."""


def unique_prefix() -> str:
    """A prefix that no other test has had."""
    return f"t-{_ours}-{next(_numbers)}"


@pytest.fixture(scope="session")
def _bucket_server() -> Iterator[BucketServer]:
    server = BucketServer()
    server.make_bucket(BUCKET)
    yield server
    server.stop()


@pytest.fixture
def bucket_server(_bucket_server: BucketServer) -> Iterator[BucketServer]:
    """Our own server. Its faults are switched off after the test."""
    yield _bucket_server
    _bucket_server.clear()


@pytest.fixture(scope="session")
def ministack() -> str:
    return _url("ministack", start_ministack)


@pytest.fixture(scope="session")
def seaweedfs() -> str:
    return _url("seaweedfs", start_seaweedfs)


@pytest.fixture(scope="session")
def azurite() -> str:
    return _url("azurite", start_azurite)


def _url(name: str, start: Start) -> str:
    try:
        return shared(name, start)
    except UnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture
def s3(bucket_server: BucketServer) -> MakeBucket:
    """A new prefix on our server, as S3."""
    prefix = unique_prefix()
    return partial(s3_of, bucket_server.url, prefix)


@pytest.fixture
def s3_ministack(ministack: str) -> MakeBucket:
    prefix = unique_prefix()
    return partial(s3_of, ministack, prefix)


@pytest.fixture
def s3_seaweedfs(seaweedfs: str) -> MakeBucket:
    prefix = unique_prefix()
    return partial(s3_of, seaweedfs, prefix)


@pytest.fixture
def azure(azurite: str) -> MakeBucket:
    prefix = unique_prefix()
    return partial(azure_of, azurite, prefix)


@pytest.fixture
def gcs(request: pytest.FixtureRequest) -> MakeBucket:
    """A new prefix on our server, as Google Cloud Storage; or on CASQUE_TEST_GCS_URL.

    That is a URL like http://127.0.0.1:4443/bucket, or gs://bucket for the real
    service with the usual credentials.
    """
    prefix = unique_prefix()
    other = os.environ.get("CASQUE_TEST_GCS_URL")
    if not other:
        server: BucketServer = request.getfixturevalue("bucket_server")
        return partial(gcs_of, server.url, prefix)
    endpoint, _, bucket = other.rstrip("/").rpartition("/")
    if endpoint == "gs:/":
        return partial(gcs_bucket, bucket, prefix)
    return partial(gcs_of, endpoint, prefix, bucket=bucket)
