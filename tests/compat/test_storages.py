"""jqueue's storages, and adapters that were written for jqueue."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from casque.compat.jqueue import (
    BrokerQueue,
    CASConflictError,
    CorruptError,
    DirectQueue,
    InMemoryStorage,
    InvalidError,
    Job,
    JQueueError,
    LocalFileSystemStorage,
    ObjectStoragePort,
    QueueState,
    StorageError,
)
from casque.compat.jqueue.adapters.storage.gcs import GCSStorage
from casque.compat.jqueue.adapters.storage.s3 import S3Storage, _s3_error_code
from casque.compat.jqueue.core import codec
from casque.stores.document.store import DocumentStore
from casque.testing import FakeClock
from tests.servers.client import BucketServer
from tests.servers.fixtures import unique_prefix
from tests.servers.openers import BUCKET

# -- memory and files --------------------------------------------------------------------


@pytest.fixture(params=["memory", "file"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStoragePort:
    if request.param == "memory":
        return InMemoryStorage()
    return LocalFileSystemStorage(tmp_path / "deep" / "queue.json")


def test_a_write_needs_the_etag_of_the_last_one(storage: ObjectStoragePort) -> None:
    async def test() -> None:
        assert isinstance(storage, ObjectStoragePort)
        assert await storage.read() == (b"", None)
        for wrong in ("1", "stale"):
            with pytest.raises(CASConflictError):
                await storage.write(b"x", if_match=wrong)
        first = await storage.write(b"one")
        assert await storage.read() == (b"one", first)
        for other in (None, "stale"):
            with pytest.raises(CASConflictError):
                await storage.write(b"x", if_match=other)
        second = await storage.write(b"two", first)
        assert second != first
        assert await storage.read() == (b"two", second)

    asyncio.run(test())


def test_one_of_many_first_writers_succeeds(storage: ObjectStoragePort) -> None:
    async def test() -> None:
        told = await asyncio.gather(
            *(storage.write(b"%d" % n) for n in range(10)), return_exceptions=True
        )
        assert sum(isinstance(one, str) for one in told) == 1
        assert sum(isinstance(one, CASConflictError) for one in told) == 9

    asyncio.run(test())


def test_memory_may_begin_with_content() -> None:
    async def test() -> None:
        content = codec.encode(QueueState(jobs=(Job.new("mail", b"1"),), version=4))
        storage = InMemoryStorage(initial_content=content)
        assert await storage.read() == (content, "0")
        assert storage.initial_content == content
        [job] = await DirectQueue(storage).dequeue("mail")
        assert job.payload == b"1"

    asyncio.run(test())


def test_a_file_is_replaced_whole_and_an_empty_one_counts_as_none(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "queue.json"
        path.touch()
        storage = LocalFileSystemStorage(str(path))
        assert storage.path == path
        assert await storage.read() == (b"", None)
        before = path.stat().st_ino
        await DirectQueue(storage).enqueue("mail", b"1")
        assert path.stat().st_ino != before
        assert len(codec.decode(path.read_bytes()).jobs) == 1

    asyncio.run(test())


def test_a_file_that_is_emptied_under_an_open_queue_is_noticed(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "queue.json"
        q = DirectQueue(LocalFileSystemStorage(path))
        await q.enqueue("mail", b"1")
        path.write_bytes(b"")
        with pytest.raises(CorruptError):
            await q.enqueue("mail", b"2")

    asyncio.run(test())


def test_a_file_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    storage = LocalFileSystemStorage(tmp_path / "file" / "queue.json")
    with pytest.raises(StorageError) as caught:
        asyncio.run(storage.write(b"1"))
    assert isinstance(caught.value.cause, OSError)
    with pytest.raises(InvalidError):
        LocalFileSystemStorage("")


def test_two_processes_worth_of_queues_share_a_file(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "queue.json"
        async with (
            BrokerQueue(LocalFileSystemStorage(path)) as a,
            BrokerQueue(LocalFileSystemStorage(path)) as b,
        ):
            await asyncio.gather(*(q.enqueue("mail", b"1") for q in (a, b) for _ in range(20)))
            claimed = [job.id for q in (a, b) for job in await q.dequeue(batch_size=25)]
            assert len(claimed) == len(set(claimed)) == 40

    asyncio.run(test())


# -- adapters that were written for jqueue -------------------------------------------------


class TableStorage:
    """An adapter as a user of jqueue writes it: two methods, jqueue's errors, no base class."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[bytes, int]] = {}
        self.failures: dict[str, list[Exception]] = {"read": [], "write": []}
        self.loses_reply = False

    async def read(self) -> tuple[bytes, str | None]:
        try:
            self._fail("read")
        except OSError as error:
            raise StorageError("table read failed", error) from error
        if "queue" not in self.rows:
            return b"", None
        content, number = self.rows["queue"]
        return content, f"v{number}"

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        number = self.rows["queue"][1] if "queue" in self.rows else 0
        if if_match not in (f"v{number}", None):
            raise CASConflictError(f"row is at v{number}, not {if_match}")
        try:
            if self.loses_reply:
                self.rows["queue"] = (content, number + 1)
            self._fail("write")
        except OSError as error:
            raise StorageError("table write failed", error) from error
        self.rows["queue"] = (content, number + 1)
        return f"v{number + 1}"

    def _fail(self, call: str) -> None:
        if self.failures[call]:
            raise self.failures[call].pop(0)


def test_an_adapter_written_for_jqueue_holds_a_queue() -> None:
    async def test() -> None:
        table = TableStorage()
        a, b = DirectQueue(table), DirectQueue(table)
        for n in range(6):
            await (a if n % 2 else b).enqueue("mail", b"%d" % n)
        async with BrokerQueue(storage=table) as broker:
            for job in await broker.dequeue(batch_size=10):
                await broker.ack(job.id)
        assert (await a.read_state()).jobs == ()

    asyncio.run(test())


def test_a_storage_error_of_the_adapter_arrives_with_its_cause() -> None:
    async def test() -> None:
        table, reset = TableStorage(), OSError("connection reset")
        table.failures["read"] = [reset]
        with pytest.raises(StorageError, match="table read failed: connection reset") as caught:
            await DirectQueue(table).enqueue("mail", b"1")
        assert caught.value.cause is reset
        assert not caught.value.outcome_unknown
        assert table.rows == {}
        await DirectQueue(table).enqueue("mail", b"1")  # and the next call works

    asyncio.run(test())


def test_a_write_whose_reply_was_lost_is_applied_once() -> None:
    async def test() -> None:
        table, clock = TableStorage(), FakeClock()
        q = DirectQueue(DocumentStore(table, clock))
        table.loses_reply = True
        table.failures["write"] = [OSError("reply lost")]
        await q.enqueue("mail", b"1")
        table.loses_reply = False
        table.failures["write"] = [OSError("not sent")] * 3
        await q.enqueue("mail", b"2")
        assert [job.payload for job in (await q.read_state()).jobs] == [b"1", b"2"]

    asyncio.run(test())


def test_a_storage_that_never_accepts_a_write_is_reported_after_30_seconds() -> None:
    async def test() -> None:
        table, clock, down = TableStorage(), FakeClock(), OSError("down")
        table.failures["write"] = [down] * 10_000
        q = DirectQueue(DocumentStore(table, clock))
        before = clock.monotonic()
        with pytest.raises(StorageError, match="table write failed") as caught:
            await q.enqueue("mail", b"1")
        assert caught.value.cause is down
        assert caught.value.outcome_unknown
        assert 30e6 < clock.monotonic() - before < 40e6

    asyncio.run(test())


class ForeignConflictError(Exception):
    """The conflict of a package that imports another library's errors."""


def test_an_adapter_with_the_errors_of_another_library_works_too() -> None:
    class Foreign(TableStorage):
        async def write(self, content: bytes, if_match: str | None = None) -> str:
            try:
                return await super().write(content, if_match)
            except JQueueError as error:
                raise ForeignConflictError(str(error)) from None

    async def test() -> None:
        table, clock = Foreign(), FakeClock()
        a, b = DirectQueue(DocumentStore(table, clock)), DirectQueue(DocumentStore(table, clock))
        for n in range(6):
            await (a if n % 2 else b).enqueue("mail", b"%d" % n)
        payloads = [job.payload for job in (await a.read_state()).jobs]
        assert payloads == [b"%d" % n for n in range(6)]

    asyncio.run(test())


def test_any_other_exception_of_an_adapter_arrives_as_a_storage_error() -> None:
    class Breaks(TableStorage):
        async def read(self) -> tuple[bytes, str | None]:
            raise ConnectionError("no route")

    with pytest.raises(StorageError) as caught:
        asyncio.run(DirectQueue(Breaks()).read_state())
    assert isinstance(caught.value.cause, ConnectionError)


# -- S3 and Google Cloud Storage -------------------------------------------------------


def test_nothing_is_opened_before_the_first_call() -> None:
    s3 = S3Storage(bucket="b", key="a/jobs.json", region_name="eu-west-1", session=object())
    assert repr(s3) == (
        "S3Storage(bucket='b', key='a/jobs.json', region_name='eu-west-1', endpoint_url=None)"
    )
    gcs = GCSStorage(bucket_name="b", blob_name="jobs.json")
    for storage in (s3, gcs, S3Storage("", "")):
        assert isinstance(storage, ObjectStoragePort)
    with pytest.raises(InvalidError):
        asyncio.run(S3Storage("", "").read())
    with pytest.raises(InvalidError):
        asyncio.run(GCSStorage("b", "/").write(b"1"))


@pytest.mark.parametrize("response", ["text", {}, {"Error": "text"}, {"Error": {"Code": ""}}])
def test_an_error_without_a_code_has_none(response: object) -> None:
    error = Exception()
    assert _s3_error_code(error) == ""
    error.response = response  # type: ignore[attr-defined]
    assert _s3_error_code(error) == ""


class FakeSession:
    """A session that is not aioboto3's and raises its own errors, with botocore's fields."""

    def __init__(self, code: str) -> None:
        self.error = Exception(code)
        self.error.response = {"Error": {"Code": code}}  # type: ignore[attr-defined]

    def client(self, *_: object, **__: object) -> Any:
        raise self.error


def test_errors_with_the_fields_of_botocore_are_understood() -> None:
    async def test() -> None:
        assert await S3Storage("b", "k", FakeSession("NoSuchKey")).read() == (b"", None)
        with pytest.raises(CASConflictError):
            await S3Storage("b", "k", FakeSession("PreconditionFailed")).write(b"1", "etag")
        other = FakeSession("Odd")
        for call in (S3Storage("b", "k", other).read(), S3Storage("b", "k", other).write(b"1")):
            with pytest.raises(StorageError) as caught:
                await call
            assert caught.value.cause is other.error

    asyncio.run(test())


def _by_obstore_s3(url: str, key: str) -> ObjectStoragePort:
    return S3Storage(BUCKET, key, region_name="us-east-1", endpoint_url=url)


def _by_aioboto3(url: str, key: str) -> ObjectStoragePort:
    import aioboto3

    return S3Storage(BUCKET, key, aioboto3.Session("test", "testtest"), "us-east-1", url)


def _by_obstore_gcs(url: str, key: str) -> ObjectStoragePort:
    os.environ["GOOGLE_BASE_URL"] = url
    return GCSStorage(BUCKET, key)


def _by_google(url: str, key: str) -> ObjectStoragePort:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    options = {"api_endpoint": url}
    client = storage.Client("p", AnonymousCredentials(), client_options=options)
    return GCSStorage(BUCKET, key, client)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", [_by_obstore_s3, _by_aioboto3, _by_obstore_gcs, _by_google])
def test_a_queue_on_a_real_server(
    kind: Any, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "testtest"),
        ("GOOGLE_BEARER_TOKEN", "any"),
        ("GOOGLE_BASE_URL", ""),
    ):
        monkeypatch.setenv(name, value)
    key = f"{unique_prefix()}/jobs.json"

    async def test() -> None:
        storage = kind(bucket_server.url, key)
        async with BrokerQueue(storage) as q:
            await q.enqueue("mail", b"1")
            [job] = await q.dequeue("mail")
            await q.ack(job.id)
            assert (await q.read_state()).jobs == ()
        with pytest.raises(CASConflictError):
            await kind(bucket_server.url, key).write(b"a second first writer")
        with pytest.raises(CASConflictError):
            await storage.write(b"late", "1")
        bucket_server.fail(403)
        with pytest.raises(StorageError) as caught:
            await storage.read()
        assert isinstance(caught.value.cause, Exception)
        assert not isinstance(caught.value.cause, StorageError)

    asyncio.run(test())
