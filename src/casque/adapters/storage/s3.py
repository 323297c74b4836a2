"""S3Storage: one object on S3, or on an S3-compatible server.

It uses obstore, or the aioboto3 session that the caller passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from casque.buckets.addresses import checked_path
from casque.buckets.port import ABSENT, Bucket, Version
from casque.buckets.replies import S3, ObjectRequest, Reply, Verb, error_for, says_absent
from casque.errors import CasqueError, InvalidError

if TYPE_CHECKING:
    from botocore.config import Config

_CONNECT_SECONDS = 5
_READ_SECONDS = 20


class S3Storage:
    """An object in a bucket. The parameters are those of `S3Storage` in the library jqueue.

    Without a `session`, an `aioboto3.Session`, credentials come from the usual environment
    or from the machine's role.
    """

    def __init__(
        self,
        bucket: str,
        key: str,
        session: Any = None,
        region_name: str | None = None,
        endpoint_url: str | None = None,
    ) -> None:
        if not bucket or not key:
            raise InvalidError("S3Storage needs a bucket name and an object key.")
        self.name = f"s3://{bucket}/{key}"
        self._key = key
        self._bucket = (
            _opened(bucket, key, region_name, endpoint_url)
            if session is None
            else _SessionBucket(session, bucket, region_name, endpoint_url)
        )

    async def read(self) -> tuple[bytes, str | None]:
        found = await self._bucket.get(self._key)
        return (b"", None) if found is None else (found[0], found[1])

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        expect = ABSENT if if_match is None else Version(if_match)
        return await self._bucket.put(self._key, content, expect=expect)


def _opened(bucket: str, key: str, region: str | None, endpoint: str | None) -> Bucket:
    try:
        from casque.buckets.obstore import s3_bucket  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidError(
            'S3Storage needs obstore, or an aioboto3 session: pip install "casque[s3]".',
            cause=error,
        ) from error
    if checked_path(key) != key:
        raise InvalidError(f"{key!r} cannot be a key: it must not begin or end with a slash.")
    return s3_bucket(bucket, endpoint=endpoint, region=region)


class _SessionBucket:
    """Reads and writes a bucket's objects with aioboto3."""

    def __init__(self, session: Any, bucket: str, region: str | None, endpoint: str | None) -> None:
        self._session = session
        self._bucket = bucket
        self._options = {"region_name": region, "endpoint_url": endpoint}

    async def get(self, key: str) -> tuple[bytes, str] | None:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - comes with it

        try:
            async with self._client() as client:
                got = await client.get_object(Bucket=self._bucket, Key=key)
                body: bytes = await got["Body"].read()
                return body, got["ETag"]
        except (BotoCoreError, ClientError, OSError) as error:
            reply = _reply_in(error)
            if says_absent(reply):
                return None
            raise self._error("read", key, reply, error) from error

    async def put(self, key: str, body: bytes, *, expect: Any) -> str:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - comes with it

        condition = {"IfNoneMatch": "*"} if expect is ABSENT else {"IfMatch": expect}
        try:
            async with self._client() as client:
                put = await client.put_object(Bucket=self._bucket, Key=key, Body=body, **condition)
                etag: str = put["ETag"]
                return etag
        except (BotoCoreError, ClientError, OSError) as error:
            raise self._error("write", key, _reply_in(error), error) from error

    def _client(self) -> Any:
        # One client per request: a storage has no close method, and a client belongs to one event
        # loop.
        return self._session.client("s3", config=_config(), **self._options)

    def _error(self, verb: Verb, key: str, reply: Reply, cause: BaseException) -> CasqueError:
        return error_for(ObjectRequest(S3, f"s3://{self._bucket}", verb, key), reply, cause)


def _config() -> Config:
    from botocore.config import Config  # noqa: PLC0415 - comes with aioboto3

    return Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        # If a write that had landed were retried, the retry would report a conflict with the first.
        # aiohttp still retries once when the connection breaks; the document store detects that.
        retries={"total_max_attempts": 1},
    )


def _reply_in(error: Exception) -> Reply:
    """Return the server's reply in an error; status None if no reply came."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    told = response.get("Error", {})
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return Reply(status, told.get("Code", ""), told.get("Message", "") if status else str(error))
