"""A queue opened by the URL of its bucket, with credentials from the environment."""

from __future__ import annotations

import pytest

from casque import InvalidError, Queue, StorageError
from tests.servers.client import BucketServer
from tests.servers.fixtures import unique_prefix
from tests.servers.openers import AZURE_ACCOUNT, AZURE_KEY, BUCKET
from tests.servers.switches import Verb


@pytest.fixture
def s3_address(bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    return f"s3://{BUCKET}/{unique_prefix()}/mail?endpoint={bucket_server.url}&region=us-east-1"


def work_a_job(address: str) -> None:
    with Queue(address) as q:
        q.enqueue("greet", b"Ada")
        [job] = q.dequeue("greet")
        q.ack(job)
        assert not q.stats().total


def test_a_queue_by_a_url_of_s3(s3_address: str) -> None:
    work_a_job(s3_address)


def test_a_queue_by_a_url_of_azure(azurite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
    work_a_job(f"az://{BUCKET}/{unique_prefix()}?endpoint={azurite}")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("s3:///prefix", "write s3://name/prefix"),
        ("s3://key:hunter2@bucket/prefix", "Credentials come from the environment"),
        ("s3://bucket/prefix?profile=x", "no option profile; .*endpoint, region and poll"),
        ("gs://bucket/prefix?region=x", "no option region; .*endpoint and poll"),
        ("s3://bucket/prefix?endpoint=server:9000", "the endpoint must be like"),
        ("s3://bucket/a//b", "each part of a path must be a name"),
    ],
)
def test_an_invalid_bucket_address_is_refused(address: str, says: str) -> None:
    with pytest.raises(InvalidError, match=says) as refused:
        Queue(address)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("verb", "permission"),
    [
        ("get", "s3:GetObject"),
        ("put", "s3:PutObject"),
        ("list", "s3:ListBucket"),
        ("delete", "s3:DeleteObject"),
    ],
)
def test_each_permission_is_needed_to_open_and_named_when_it_is_missing(
    verb: Verb, permission: str, s3_address: str, bucket_server: BucketServer
) -> None:
    bucket_server.fail(403, (verb,), code="AccessDenied")
    with (
        Queue(s3_address) as q,
        pytest.raises(StorageError, match=f"Allow {permission}") as refused,
    ):
        q.enqueue("greet")
    assert not refused.value.outcome_unknown


def test_a_process_that_may_not_list_does_not_take_the_place_for_empty(
    s3_address: str, bucket_server: BucketServer
) -> None:
    bucket_server.hide_missing()
    with Queue(s3_address) as q, pytest.raises(StorageError, match="s3:ListBucket on the bucket"):
        q.stats()


def test_a_server_that_ignores_conditions_holds_no_queue(
    s3_address: str, bucket_server: BucketServer
) -> None:
    bucket_server.ignore_conditions()
    with Queue(s3_address) as q, pytest.raises(StorageError, match="ignores conditional writes"):
        q.enqueue("greet")
    bucket_server.clear()
    work_a_job(s3_address)  # leftover probes are ours, and do no harm
