"""The bucket server has exactly the faults that are switched on: fault tests depend on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from casque import StorageError
from casque.buckets.port import ABSENT, Bucket
from tests.servers.client import BucketServer
from tests.servers.fixtures import MakeBucket
from tests.servers.openers import BUCKET, gcs_of, s3_of


async def _fails(bucket: Bucket, key: str = "a") -> bool:
    try:
        await bucket.get(key)
    except StorageError:
        return True
    return False


def failures(make: MakeBucket, count: int, key: str = "a") -> list[bool]:
    async def go() -> list[bool]:
        bucket = make()
        try:
            return [await _fails(bucket, key) for _ in range(count)]
        finally:
            await bucket.close()

    return asyncio.run(go())


def test_a_switch_lets_some_requests_pass_and_then_hits_some(
    s3: MakeBucket, bucket_server: BucketServer
) -> None:
    bucket_server.fail(500, ["get"], skip=2, times=3)
    before = bucket_server.hits()
    assert failures(s3, 8) == [False, False, True, True, True, False, False, False]
    assert bucket_server.hits() == before + 3


def test_a_switch_hits_only_its_keys_and_verbs(s3: MakeBucket, bucket_server: BucketServer) -> None:
    bucket_server.fail(500, ["get"], match="log/")
    bucket_server.fail(500, ["put"])
    assert failures(s3, 1, "log/1") == [True]
    assert failures(s3, 1, "format") == [False]


@pytest.mark.parametrize("switch", [BucketServer.drop_requests, BucketServer.lose_replies])
def test_chance_replays_from_its_seed(
    switch: Callable[..., None], s3: MakeBucket, bucket_server: BucketServer
) -> None:
    def once() -> list[bool]:
        bucket_server.clear()
        switch(bucket_server, ["get"], probability=0.4, seed=7)
        return failures(s3, 30)

    first = once()
    assert {True, False} == set(first)
    assert once() == first


def test_a_cleared_server_has_no_faults(s3: MakeBucket, bucket_server: BucketServer) -> None:
    bucket_server.drop_requests()
    assert failures(s3, 2) == [True, True]
    bucket_server.clear()
    assert failures(s3, 2) == [False, False]


def test_a_test_can_read_and_change_the_objects(
    s3: MakeBucket, bucket_server: BucketServer
) -> None:
    async def go() -> None:
        bucket = s3()
        await bucket.put("a", b"1", expect=ABSENT)
        name = f"{bucket.name}/a"
        [key] = [key for key in bucket_server.objects(BUCKET) if name.endswith(f"/{key}")]
        bucket_server.write(BUCKET, key, b"tampered")
        found = await bucket.get("a")
        assert found is not None
        assert found.body == b"tampered"
        bucket_server.remove(BUCKET, key)
        assert await bucket.get("a") is None
        await bucket.close()

    asyncio.run(go())


def test_its_clock_can_be_set(s3: MakeBucket, bucket_server: BucketServer) -> None:
    async def modified(bucket: Bucket, key: str) -> int:
        await bucket.put(key, b"1", expect=ABSENT)
        [one] = await bucket.list(key)
        return one.modified_us

    async def go() -> None:
        bucket = s3()
        before = await modified(bucket, "a")
        bucket_server.shift_clock(3600)
        try:
            assert await modified(bucket, "b") - before >= 3600 * 1_000_000
        finally:
            bucket_server.shift_clock(-3600)
        await bucket.close()

    asyncio.run(go())


def test_objects_in_a_folder_survive_a_kill(tmp_path: Path) -> None:
    server = BucketServer(tmp_path)
    server.make_bucket("b")

    async def go() -> None:
        s3, gcs = s3_of(server.url, "q", bucket="b"), gcs_of(server.url, "q", bucket="b")
        await s3.put("log/1", b"\n1\n", expect=ABSENT)
        version = await gcs.put("log/2", b"", expect=ABSENT)
        await s3.delete("log/1")
        await s3.put("log/1", b"\n3\n", expect=ABSENT)
        server.kill()
        server.restart()
        found = await s3.get("log/1")
        assert found is not None
        assert found.body == b"\n3\n"
        assert await gcs.put("log/2", b"more", expect=version) > version
        for bucket in (s3, gcs):
            await bucket.close()

    asyncio.run(go())
    assert server.objects("b") == {"q/log/1": b"\n3\n", "q/log/2": b"more"}
    server.stop()
