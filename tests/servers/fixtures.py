"""Fixtures: real servers, started when a test first asks for one and stopped with the session.

A server that cannot be had skips its tests, naming itself; with CI set in the
environment it fails them. Each process of pytest-xdist starts its own.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from casque.buckets.obstore import ObstoreBucket, gcs_bucket
from tests.servers.client import BucketServer
from tests.servers.installed import Package, UnavailableError
from tests.servers.openers import BUCKET, azure_of, gcs_of, s3_of
from tests.servers.others import (
    AZURITE,
    MINISTACK,
    SEAWEEDFS,
    Running,
    start_azurite,
    start_ministack,
    start_seaweedfs,
)

PACKAGES: dict[str, Package] = {
    "ministack": MINISTACK,
    "seaweedfs": SEAWEEDFS,
    "azurite": AZURITE,
}
_ours = os.urandom(4).hex()
_numbers = itertools.count()

MakeBucket = Callable[[], ObstoreBucket]
"""Opens one more handle on the same objects, in another process too: it can be pickled."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that need a server that may have to be installed come last, and it has begun."""
    needed = {name for item in items for name in _servers_of(item)}
    for name in needed:
        PACKAGES[name].install_in_the_background()
    items.sort(key=lambda item: bool(_servers_of(item)))


def _servers_of(item: pytest.Item) -> set[str]:
    return PACKAGES.keys() & set(getattr(item, "fixturenames", ()))


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
    """Our own server, with its switches; they are off again after the test."""
    yield _bucket_server
    _bucket_server.clear()


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from _running(start_ministack, tmp_path_factory.mktemp("ministack"))


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from _running(start_seaweedfs, tmp_path_factory.mktemp("seaweedfs"))


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from _running(start_azurite, tmp_path_factory.mktemp("azurite"))


def _running(start: Callable[[Path], Running], folder: Path) -> Iterator[Running]:
    try:
        server = start(folder)
    except UnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.fixture
def s3(bucket_server: BucketServer) -> MakeBucket:
    """A new prefix on our server, as S3."""
    prefix = unique_prefix()
    return partial(s3_of, bucket_server.url, prefix)


@pytest.fixture
def s3_ministack(ministack: Running) -> MakeBucket:
    prefix = unique_prefix()
    return partial(s3_of, ministack.url, prefix)


@pytest.fixture
def s3_seaweedfs(seaweedfs: Running) -> MakeBucket:
    prefix = unique_prefix()
    return partial(s3_of, seaweedfs.url, prefix)


@pytest.fixture
def azure(azurite: Running) -> MakeBucket:
    prefix = unique_prefix()
    return partial(azure_of, azurite.url, prefix)


@pytest.fixture
def gcs(request: pytest.FixtureRequest) -> MakeBucket:
    """A new prefix on our server, as Google Cloud Storage; or on the one that is named.

    CASQUE_TEST_GCS_URL is then like http://127.0.0.1:4443/bucket, or gs://bucket
    for the real service with the usual credentials.
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
