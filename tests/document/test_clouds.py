"""S3Storage and GCSStorage: with obstore, and with a session or client of the user."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest

from casque import CASConflictError, DirectQueue, InvalidError, ObjectStoragePort, StorageError
from casque.adapters.storage.gcs import GCSStorage
from casque.adapters.storage.s3 import S3Storage
from tests.servers.client import BucketServer
from tests.servers.fixtures import unique_prefix
from tests.servers.openers import BUCKET

pytestmark = [
    # Warnings of other libraries.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Cloud(NamedTuple):
    """A kind of storage, opened with a bucket and a key."""

    open: Callable[[str, str], ObjectStoragePort]
    scheme: str
    put_permission: str
    resends: bool = False


def by_obstore_s3(url: str) -> Cloud:
    return Cloud(
        lambda bucket, key: S3Storage(bucket, key, region_name="us-east-1", endpoint_url=url),
        "s3",
        "s3:PutObject",
    )


@cache
def session() -> Any:
    """Shared by all tests: a new one takes a quarter of a second to read the S3 description."""
    return new_session("test", "testtest")


def new_session(*keys: str) -> Any:
    import aioboto3  # here, because every process of a run collects this file

    return aioboto3.Session(*keys)


def by_aioboto3(url: str) -> Cloud:
    return Cloud(
        lambda bucket, key: S3Storage(bucket, key, session(), "us-east-1", url),
        "s3",
        "s3:PutObject",
        resends=True,
    )


def by_obstore_gcs(_url: str) -> Cloud:
    return Cloud(GCSStorage, "gs", "storage.objects.create")


def by_google(url: str) -> Cloud:
    client = google_client(client_options={"api_endpoint": url})
    return Cloud(
        lambda bucket, key: GCSStorage(bucket, key, client), "gs", "storage.objects.create"
    )


KINDS = [by_obstore_s3, by_aioboto3, by_obstore_gcs, by_google]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def cloud(
    request: pytest.FixtureRequest, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> Cloud:
    _set_environment(monkeypatch)
    monkeypatch.setenv("GOOGLE_BASE_URL", bucket_server.url)
    kind: Callable[[str], Cloud] = request.param
    return kind(bucket_server.url)


@pytest.fixture
def key() -> str:
    return f"{unique_prefix()}/jobs.json"


def _set_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "any")


def test_no_etag_means_that_there_is_nothing_yet(
    cloud: Cloud, key: str, bucket_server: BucketServer
) -> None:
    async def go() -> None:
        storage, other = cloud.open(BUCKET, key), cloud.open(BUCKET, key)
        assert await storage.read() == (b"", None)
        first = await storage.write(b"\r\n--1\n", None)
        assert await other.read() == (b"\r\n--1\n", first)
        with pytest.raises(CASConflictError):
            await other.write(b"another", None)
        second = await other.write(b"2", first)
        assert second != first
        with pytest.raises(CASConflictError):
            await storage.write(b"late", first)
        assert await storage.read() == (b"2", second)

    asyncio.run(go())
    assert bucket_server.objects(BUCKET, key) == {key: b"2"}


def test_a_deleted_object_cannot_be_replaced(
    cloud: Cloud, key: str, bucket_server: BucketServer
) -> None:
    async def go() -> None:
        storage = cloud.open(BUCKET, key)
        etag = await storage.write(b"1", None)
        bucket_server.remove(BUCKET, key)
        with pytest.raises(CASConflictError):
            await storage.write(b"2", etag)
        assert await storage.read() == (b"", None)

    asyncio.run(go())


def test_one_of_many_first_writers_succeeds(cloud: Cloud, key: str) -> None:
    async def go() -> None:
        storages = [cloud.open(BUCKET, key) for _ in range(6)]
        told = await asyncio.gather(
            *(storage.write(b"%d" % place, None) for place, storage in enumerate(storages)),
            return_exceptions=True,
        )
        [winner] = [place for place, answer in enumerate(told) if isinstance(answer, str)]
        assert sum(isinstance(answer, CASConflictError) for answer in told) == 5
        assert (await storages[0].read())[0] == b"%d" % winner

    asyncio.run(go())


def test_a_queue_works_and_its_replies_may_be_lost(
    cloud: Cloud, key: str, bucket_server: BucketServer
) -> None:
    async def go() -> None:
        q = DirectQueue(cloud.open(BUCKET, key))
        bucket_server.lose_replies(["put"], times=1)
        await q.enqueue("send_email", b"1", id="a")
        bucket_server.fail(409, ["put"], times=1)
        await q.enqueue("send_email", b"2", id="b")
        bucket_server.fail(500, ["get", "put"], probability=0.3, seed=1)
        jobs = await q.dequeue("send_email", batch_size=5)
        assert [job.payload for job in jobs] == [b"1", b"2"]
        for job in jobs:
            await q.ack(job)
        bucket_server.clear()
        assert (await q.read_state()).jobs == ()

    asyncio.run(go())


def test_refusals_name_the_object_and_the_remedy(
    cloud: Cloud, key: str, bucket_server: BucketServer
) -> None:
    async def refusal(bucket: str, do: Callable[[ObjectStoragePort], Any]) -> str:
        with pytest.raises(StorageError) as caught:
            await do(cloud.open(bucket, key))
        assert not caught.value.outcome_unknown
        assert f"{cloud.scheme}://{bucket}" in str(caught.value)
        assert key in str(caught.value)
        return str(caught.value)

    async def go() -> None:
        for do in (lambda storage: storage.read(), lambda storage: storage.write(b"1", None)):
            told = await refusal("nobody-made-it", do)
            assert "There is no such bucket: create it first" in told
        bucket_server.fail(403)
        told = await refusal(BUCKET, lambda storage: storage.write(b"1", None))
        assert f"Allow {cloud.put_permission}" in told

    asyncio.run(go())


@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_no_answer_is_not_no(
    status: int, cloud: Cloud, key: str, bucket_server: BucketServer
) -> None:
    async def go() -> None:
        storage = cloud.open(BUCKET, key)
        bucket_server.fail(status)
        before = bucket_server.counts().get("put", 0)
        with pytest.raises(StorageError) as caught:
            await storage.write(b"1", None)
        assert caught.value.outcome_unknown
        assert bucket_server.counts()["put"] == before + 1
        with pytest.raises(StorageError, match=str(status)):
            await storage.read()

    asyncio.run(go())


def test_a_lost_reply_leaves_the_outcome_unknown(
    cloud: Cloud, key: str, bucket_server: BucketServer
) -> None:
    async def go() -> None:
        storage = cloud.open(BUCKET, key)
        bucket_server.lose_replies(["put"], times=1)
        before = bucket_server.counts().get("put", 0)
        with pytest.raises((StorageError, CASConflictError)) as caught:
            await storage.write(b"1", None)
        if bucket_server.counts()["put"] == before + 1:
            assert isinstance(caught.value, StorageError)
            assert caught.value.outcome_unknown
        else:
            # aiohttp always sends it again: a conflict with its own write, which the document
            # store detects, as the queue test above shows.
            assert cloud.resends
        assert (await storage.read())[0] == b"1"

    asyncio.run(go())


@pytest.mark.parametrize("kind", [by_obstore_s3, by_aioboto3])
def test_a_queue_on_another_s3_server(
    kind: Callable[[str], Cloud], ministack: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_environment(monkeypatch)

    async def go() -> None:
        q = DirectQueue(kind(ministack).open(BUCKET, key))
        await q.enqueue("send_email", b"1")
        [job] = await q.dequeue()
        await q.ack(job)
        assert await q.dequeue() == []

    asyncio.run(go())


def test_an_error_about_missing_credentials_says_where_they_come_from(
    bucket_server: BucketServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nobody")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nobody")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    storage = S3Storage(BUCKET, key, new_session(), "us-east-1", bucket_server.url)
    with pytest.raises(StorageError, match="No credentials were found") as caught:
        asyncio.run(storage.write(b"1"))
    assert not caught.value.outcome_unknown


def test_names_are_shown_and_secrets_are_not() -> None:
    secret = new_session("test", "secret")
    assert S3Storage("b", "a/jobs.json", secret).name == "s3://b/a/jobs.json"
    assert GCSStorage("b", "a/jobs.json", google_client()).name == "gs://b/a/jobs.json"
    for storage in (S3Storage("b", "jobs.json", secret), GCSStorage("b", "j", google_client())):
        assert isinstance(storage, ObjectStoragePort)


def google_client(**options: Any) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    return storage.Client(project="p", credentials=AnonymousCredentials(), **options)


@pytest.mark.parametrize("storage", [S3Storage, GCSStorage])
def test_an_invalid_name_is_refused_at_once(storage: Any) -> None:
    for bucket, key in (("", "k"), ("b", ""), ("b", "/k"), ("b", "k/"), ("b", "a//b")):
        with pytest.raises(InvalidError):
            storage(bucket, key)
