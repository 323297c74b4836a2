"""Storage that refuses, breaks or lies: the error says what happened and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from casque import CASConflictError, StorageError
from casque.buckets.obstore import ObstoreBucket
from casque.buckets.port import ABSENT, Version
from tests.servers.client import BucketServer
from tests.servers.fixtures import MakeBucket, unique_prefix
from tests.servers.openers import BUCKET, azure_of, gcs_of, s3_of
from tests.servers.switches import Verb

Call = Callable[[ObstoreBucket], Awaitable[Any]]

CALLS: dict[Verb, Call] = {
    "get": lambda bucket: bucket.get("log/1"),
    "put": lambda bucket: bucket.put("log/1", b"x", expect=ABSENT),
    "list": lambda bucket: bucket.list("log/"),
    "delete": lambda bucket: bucket.delete("log/1"),
}


async def update(bucket: ObstoreBucket) -> Version:
    return await bucket.put("log/1", b"x", expect=Version("1" if "gs:" in bucket.name else '"1"'))


S3_PERMISSIONS: dict[Verb, str] = {
    "get": "s3:GetObject",
    "put": "s3:PutObject",
    "list": "s3:ListBucket",
    "delete": "s3:DeleteObject",
}
GCS_PERMISSIONS: dict[Verb, str] = {
    "get": "storage.objects.get",
    "put": "storage.objects.create",
    "list": "storage.objects.list",
    "delete": "storage.objects.delete",
}


def refused(bucket: ObstoreBucket, call: Call) -> StorageError:
    """Return the error of a call that changed nothing."""
    with pytest.raises(StorageError) as caught:
        asyncio.run(_closing(bucket, call))
    assert not caught.value.outcome_unknown
    assert bucket.name in str(caught.value)
    assert caught.value.cause is not None
    return caught.value


def unanswered(bucket: ObstoreBucket, call: Call) -> StorageError:
    """Return the error of a call with an unknown outcome."""
    with pytest.raises(StorageError) as caught:
        asyncio.run(_closing(bucket, call))
    assert caught.value.outcome_unknown
    assert "log/" in str(caught.value)
    return caught.value


async def _closing(bucket: ObstoreBucket, call: Call) -> Any:
    try:
        return await call(bucket)
    finally:
        await bucket.close()


def done(bucket: ObstoreBucket, call: Call) -> Any:
    return asyncio.run(_closing(bucket, call))


@pytest.mark.parametrize("verb", CALLS)
def test_a_missing_permission_is_named(
    verb: Verb, s3: MakeBucket, bucket_server: BucketServer
) -> None:
    bucket_server.fail(403, [verb])
    error = refused(s3(), CALLS[verb])
    assert f"Allow {S3_PERMISSIONS[verb]}" in str(error)
    assert "log/" in str(error)
    bucket_server.clear()
    done(s3(), CALLS[verb])


@pytest.mark.parametrize("verb", CALLS)
def test_a_missing_permission_is_named_in_googles_words(
    verb: Verb, gcs: MakeBucket, bucket_server: BucketServer
) -> None:
    bucket_server.fail(403, [verb])
    assert f"Allow {GCS_PERMISSIONS[verb]}" in str(refused(gcs(), CALLS[verb]))


def test_a_missing_object_that_may_not_be_listed_is_not_taken_for_absent(
    s3: MakeBucket, bucket_server: BucketServer
) -> None:
    bucket_server.hide_missing()
    assert "s3:ListBucket" in str(refused(s3(), CALLS["get"]))


@pytest.mark.parametrize("kind", [s3_of, gcs_of])
@pytest.mark.parametrize("call", [*CALLS.values(), update], ids=[*CALLS, "update"])
def test_a_missing_bucket_is_not_an_empty_one(
    kind: Any, call: Call, bucket_server: BucketServer
) -> None:
    bucket = kind(bucket_server.url, "q", bucket="nobody-made-it")
    assert "There is no such bucket: create it first" in str(refused(bucket, call))


@pytest.mark.parametrize("call", [*CALLS.values(), update], ids=[*CALLS, "update"])
def test_a_missing_container_is_not_an_empty_one(call: Call, azurite: str) -> None:
    bucket = azure_of(azurite, "q", bucket="nobody-made-it")
    assert "There is no such container: create it first" in str(refused(bucket, call))


@pytest.mark.parametrize("verb", CALLS)
def test_credentials_that_are_not_accepted(verb: Verb, bucket_server: BucketServer) -> None:
    for bucket, says in (
        (s3_of(bucket_server.url, "q", key_id="somebody"), "AWS_ACCESS_KEY_ID"),
        (gcs_of(bucket_server.url, "q", token="refused"), "GOOGLE_APPLICATION_CREDENTIALS"),
    ):
        error = str(refused(bucket, CALLS[verb]))
        assert "The credentials are not accepted" in error
        assert says in error


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (400, None, "400 InvalidRequest"),
        (403, "RequestTimeTooSkewed", "clock is wrong"),
        (403, "SignatureDoesNotMatch", "credentials are not accepted"),
        (400, "ExpiredToken", "credentials are not accepted"),
        (404, "Nonsense", "Check the endpoint"),
        (301, "PermanentRedirect", "set its region"),
        (501, None, "does not support conditional writes"),
    ],
)
def test_a_refusal_says_why(
    status: int, code: str | None, says: str, s3: MakeBucket, bucket_server: BucketServer
) -> None:
    bucket_server.fail(status, code=code)
    assert says in str(refused(s3(), CALLS["put"]))


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
def test_no_answer_is_not_no(
    status: int, verb: Verb, s3: MakeBucket, bucket_server: BucketServer
) -> None:
    bucket_server.fail(status, [verb])
    error = unanswered(s3(), CALLS[verb])
    assert str(status) in str(error)
    may = {"put": "may still have been written", "delete": "may still have been deleted"}
    assert may.get(verb, "Try again") in str(error)


def test_a_409_of_s3_is_no_conflict_whatever_was_expected(
    s3: MakeBucket, gcs: MakeBucket, bucket_server: BucketServer
) -> None:
    # obstore reports "already exists", but S3 sends it for two racing requests, of which maybe
    # neither was carried out.
    bucket_server.fail(409, ["put"])
    for bucket, call in ((s3(), CALLS["put"]), (s3(), update), (gcs(), CALLS["put"])):
        unanswered(bucket, call)


@pytest.mark.parametrize("kind", ["s3", "gcs"])
@pytest.mark.parametrize("verb", CALLS)
def test_a_request_is_sent_once_whatever_its_outcome(
    verb: Verb, kind: str, request: pytest.FixtureRequest, bucket_server: BucketServer
) -> None:
    bucket = request.getfixturevalue(kind)()
    done(bucket, CALLS["get"])  # opens a connection that a library might take for stale
    switches: list[Callable[[], None]] = [
        lambda: bucket_server.fail(500),
        lambda: bucket_server.fail(409),
        bucket_server.lose_replies,
        bucket_server.drop_requests,
    ]
    for switch in switches:
        switch()
        before = bucket_server.counts().get(verb, 0)
        unanswered(bucket, CALLS[verb])
        assert bucket_server.counts()[verb] == before + 1
        bucket_server.clear()


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_a_write_whose_reply_was_lost_is_there(
    kind: str, request: pytest.FixtureRequest, bucket_server: BucketServer
) -> None:
    bucket = request.getfixturevalue(kind)()
    bucket_server.lose_replies(["put"], times=1)
    unanswered(bucket, CALLS["put"])
    assert done(bucket, CALLS["get"]).body == b"x"
    with pytest.raises(CASConflictError):
        done(bucket, CALLS["put"])
    bucket_server.fail(500, ["delete"], times=1, carried_out=True)
    unanswered(bucket, CALLS["delete"])
    assert done(bucket, CALLS["get"]) is None


def test_a_write_that_was_dropped_is_not_there(s3: MakeBucket, bucket_server: BucketServer) -> None:
    bucket = s3()
    bucket_server.drop_requests(["put"], times=1)
    unanswered(bucket, CALLS["put"])
    assert done(bucket, CALLS["get"]) is None
    done(bucket, CALLS["put"])


def test_two_creates_detect_a_server_that_ignores_conditions(
    s3: MakeBucket, bucket_server: BucketServer
) -> None:
    # No answer shows it, but two creates do. So a process that opens a queue tries two creates.
    bucket = s3()
    bucket_server.ignore_conditions()
    assert done(bucket, CALLS["put"]) == done(bucket, CALLS["put"])
    assert done(bucket, update)


def test_a_name_written_too_often_must_wait(gcs: MakeBucket, bucket_server: BucketServer) -> None:
    bucket = gcs()
    bucket_server.pace()
    version = done(bucket, CALLS["put"])
    error = unanswered(bucket, lambda bucket: bucket.put("log/1", b"2", expect=version))
    assert "429" in str(error)
    done(bucket, lambda bucket: bucket.put("log/2", b"2", expect=ABSENT))


def test_no_server_listens() -> None:
    error = unanswered(s3_of("http://127.0.0.1:1", "q"), CALLS["get"])
    assert "no answer from http://127.0.0.1:1" in str(error)


def test_a_page_of_another_server_is_not_an_empty_queue(bucket_server: BucketServer) -> None:
    # As when the endpoint lacks a path, or a proxy answers instead.
    bucket = s3_of(f"{bucket_server.url}/-", "q", bucket="no-such-page")
    assert "Check the endpoint" in str(refused(bucket, CALLS["get"]))


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_an_empty_404_is_not_a_missing_object(
    kind: str, request: pytest.FixtureRequest, bucket_server: BucketServer
) -> None:
    # As from an ingress that has no route to the storage.
    bucket = request.getfixturevalue(kind)()
    done(bucket, CALLS["put"])
    bucket_server.fail(404, code="")
    for call in CALLS.values():
        assert "Check the endpoint" in str(refused(bucket, call))
    bucket_server.clear()
    assert done(bucket, CALLS["get"]).body == b"x"


def test_no_secret_is_in_a_message(bucket_server: BucketServer) -> None:
    bucket_server.fail(403)
    bucket = s3_of(bucket_server.url, unique_prefix(), bucket=BUCKET)
    error = refused(bucket, CALLS["put"])
    for secret in ("testtest", "Signature", "Credential="):
        assert secret not in str(error)
        assert secret not in str(error.cause)
