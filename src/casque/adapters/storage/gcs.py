"""GCSStorage: one object on Google Cloud Storage.

It uses obstore, or the google-cloud-storage client that the caller passes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from casque.buckets.addresses import checked_path
from casque.buckets.port import ABSENT, Bucket, Version
from casque.buckets.replies import GCS, ObjectRequest, Reply, Verb, error_for, says_absent
from casque.errors import CasqueError, InvalidError, StorageError

NO_OBJECT = 0
"""The generation that a first write expects."""

_CONNECT_SECONDS = 5
_READ_SECONDS = 20


class GCSStorage:
    """An object in a bucket. The parameters are those of `GCSStorage` in the library jqueue.

    Its etag is the object's generation. Without a `client`, a `google.cloud.storage.Client`,
    it uses the application default credentials.
    """

    def __init__(self, bucket_name: str, blob_name: str, client: Any = None) -> None:
        if not bucket_name or not blob_name:
            raise InvalidError("GCSStorage needs a bucket name and a blob name.")
        self.name = f"gs://{bucket_name}/{blob_name}"
        self._blob_name = blob_name
        self._bucket = (
            _opened(bucket_name, blob_name) if client is None else ClientBucket(client, bucket_name)
        )

    async def read(self) -> tuple[bytes, str | None]:
        found = await self._bucket.get(self._blob_name)
        return (b"", None) if found is None else (found[0], found[1])

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        expect = ABSENT if if_match is None else Version(if_match)
        return await self._bucket.put(self._blob_name, content, expect=expect)


def _opened(bucket_name: str, blob_name: str) -> Bucket:
    try:
        from casque.buckets.obstore import gcs_bucket  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidError(
            'GCSStorage needs obstore, or a google-cloud-storage client: pip install "casque'
            '[gcs]".',
            cause=error,
        ) from error
    if checked_path(blob_name) != blob_name:
        raise InvalidError(
            f"{blob_name!r} cannot be a blob name: it must not begin or end with a slash."
        )
    return gcs_bucket(bucket_name)


class ClientBucket:
    """Reads and writes a bucket's objects with google-cloud-storage, on other threads."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._bucket = client.bucket(bucket)
        self._name = bucket

    async def get(self, key: str) -> tuple[bytes, str] | None:
        return await asyncio.to_thread(self.get_now, key)

    async def put(self, key: str, body: bytes, *, expect: Any) -> str:
        generation = NO_OBJECT if expect is ABSENT else int(expect)
        return await asyncio.to_thread(self.put_now, key, body, generation)

    def get_now(self, key: str) -> tuple[bytes, str] | None:
        blob = self._bucket.blob(key)
        try:
            body: bytes = blob.download_as_bytes(**_bounds())
        except _failures() as error:
            reply = _reply_in(error)
            if says_absent(reply):
                return None
            raise self._error("read", key, reply, error) from error
        return body, self._generation_of(blob, key)

    def put_now(self, key: str, body: bytes, generation: int) -> str:
        blob = self._bucket.blob(key)
        try:
            blob.upload_from_string(
                body,
                content_type="application/json",
                if_generation_match=generation,
                **_bounds(),
            )
        except _failures() as error:
            raise self._error("write", key, _reply_in(error), error) from error
        return self._generation_of(blob, key)

    def _generation_of(self, blob: Any, key: str) -> str:
        if blob.generation is None:
            raise StorageError(
                f"gs://{self._name}: the client returned no generation of {key}, so a conflict "
                "between two writers cannot be detected. Use google-cloud-storage 3 or later."
            )
        return str(blob.generation)

    def _error(self, verb: Verb, key: str, reply: Reply, cause: BaseException) -> CasqueError:
        return error_for(ObjectRequest(GCS, f"gs://{self._name}", verb, key), reply, cause)


def _bounds() -> dict[str, Any]:
    # If a write that had landed were retried, the retry would report a conflict with the first.
    return {"timeout": (_CONNECT_SECONDS, _READ_SECONDS), "retry": None}


def _failures() -> tuple[type[Exception], ...]:
    """Return the errors that a client raises. A user who made a client has its package."""
    from google.api_core.exceptions import GoogleAPIError  # noqa: PLC0415
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
    from google.cloud.storage.exceptions import InvalidResponse  # noqa: PLC0415

    return (GoogleAPIError, GoogleAuthError, InvalidResponse, OSError)


def _reply_in(error: Exception) -> Reply:
    """Return the server's reply from an error; its status is None if no reply came."""
    status = getattr(error, "code", None)
    if not isinstance(status, int):
        is_auth = type(error).__module__.startswith("google.auth")
        return Reply(None, "", f"credentials: {error}" if is_auth else str(error))
    text = str(getattr(error, "message", ""))
    if status == 404:  # noqa: PLR2004
        # Only the text distinguishes the two.
        return Reply(404, "NoSuchBucket" if "bucket does not exist" in text else "NoSuchKey", "")
    return Reply(int(status), "", text)
