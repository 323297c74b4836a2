"""ObstoreBucket: a bucket on S3, Google Cloud Storage or Azure, through obstore.

Requests are obstore's blocking calls, made on the bucket's own threads. obstore's coroutines would
need no threads, but they pass a result to Python from a Rust thread. If that happens while the
interpreter is ending, the process aborts. This happened to 1 in 80 short programs, and to 3 in 13
of those that met errors. A blocking call that is answered while the interpreter is ending does
not return, and its thread ends with the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from casque.buckets.addresses import checked_endpoint, checked_prefix
from casque.buckets.aws_profile import profile_options
from casque.buckets.daemon_threads import DaemonThreads
from casque.buckets.port import PAGE, Expect, Found, Listed, Version
from casque.buckets.replies import (
    AZURE,
    GCS,
    S3,
    ObjectRequest,
    Reply,
    Service,
    Verb,
    error_for,
    reply_in,
    says_absent,
)
from casque.errors import InvalidError, StorageError
from casque.system import forks
from casque.system.clock import to_us

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_Client = S3Store | GCSStore | AzureStore
T = TypeVar("T")

REQUEST_SECONDS = 20
"""How long one request may take, including reading the whole answer."""
CONNECT_SECONDS = 5
_GIVE_UP_SECONDS = REQUEST_SECONDS + CONNECT_SECONDS
"""How long a call may take in all, including fetching credentials and waiting for a thread."""
_THREADS = 128
"""How many requests may run at once. One that hangs keeps its thread until it times out, so this
is more than are ever sent together."""

# If obstore retried a write that had landed, the retry would report a conflict with the first.
_NO_RETRIES: RetryConfig = {"max_retries": 0}

_started_in: int | None = None
"""The fork generation of the process that started obstore's threads."""


class ObstoreBucket:
    """The objects under a prefix of a bucket. Made by `s3_bucket`, `gcs_bucket`, `azure_bucket`."""

    blocking = False

    def __init__(self, store: _Client, service: Service, bucket: str, prefix: str) -> None:
        self.name = "/".join(part for part in (f"{service.scheme}://{bucket}", prefix) if part)
        self.service = service
        self._store = store
        self._root = f"{prefix}/" if prefix else ""
        self._threads: DaemonThreads | None = None

    async def get(self, key: str) -> Found | None:
        def request() -> Found:
            got = obstore.get(self._store, self._root + key)
            version = self._version_in(got.meta, key)
            return Found(got.bytes().to_bytes(), version, to_us(got.meta["last_modified"]))

        return await self._ask("read", key, request)

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        mode: Any = "create" if expect is Expect.ABSENT else {self._version_field: expect}

        def request() -> Version:
            put = obstore.put(self._store, self._root + key, body, mode=mode)
            return self._version_in(put, key)

        version = await self._ask("write", key, request)
        assert version is not None  # only what is read or deleted can be absent
        return version

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        found = await self._ask(
            "list", prefix, lambda: _page(self._store, self._root, prefix, after)
        )
        return found or []

    async def delete(self, key: str) -> None:
        await self._ask("delete", key, lambda: obstore.delete(self._store, self._root + key))

    async def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.close()

    async def _ask(self, verb: Verb, key: str, request: Callable[[], T]) -> T | None:
        """Return the result of `request`; None if the object does not exist."""
        self._check_process()
        about = ObjectRequest(self.service, self.name, verb, key)
        try:
            async with asyncio.timeout(_GIVE_UP_SECONDS):
                if self._threads is None:
                    self._threads = DaemonThreads(_THREADS, "casque-bucket")
                return await asyncio.wrap_future(self._threads.submit(request))
        except TimeoutError as error:
            reply = Reply(None, "", f"no answer within {_GIVE_UP_SECONDS} s")
            raise error_for(about, reply, error) from error
        except _Unordered as error:
            raise StorageError(
                f"{self.name} does not list its objects in the order of their names ({error} is "
                "out of order), and a queue needs that order. Use a general purpose bucket, or on "
                "Azure an account without a hierarchical namespace.",
                cause=error,
                outcome_unknown=False,
            ) from error
        except (BaseError, OSError) as error:
            reply = reply_in(str(error))
            if verb in ("read", "delete") and says_absent(reply):
                return None
            raise error_for(about, reply, error) from error

    def _check_process(self) -> None:
        global _started_in  # noqa: PLW0603 - obstore has one set of threads for all of a process
        if _started_in is None:
            _started_in = forks.generation()
        if _started_in != forks.generation():
            raise StorageError(
                f"{self.name}: this process was forked after its parent had used a bucket, and "
                "obstore's threads exist only in the parent: a request would hang. Nothing was "
                'sent. Start the process with multiprocessing\'s "spawn", or use buckets only in '
                "the children.",
                outcome_unknown=False,
            )

    @property
    def _version_field(self) -> Literal["e_tag", "version"]:
        # On Google, obstore accepts the generation as a write condition, but not the etag.
        return "version" if self.service is GCS else "e_tag"

    def _version_in(self, told: Any, key: str) -> Version:
        version: str | None = told[self._version_field]
        if version is None:
            raise StorageError(
                f"{self.name}: the server returned no version of {key}, so a conflict between two "
                "writers cannot be detected. Check that the endpoint is an object storage.",
                outcome_unknown=True,
            )
        return Version(version)


class _Unordered(Exception):  # noqa: N818 - it never leaves this module
    """The server listed two keys in the wrong order."""


def _page(store: _Client, root: str, prefix: str, after: str) -> list[Listed]:
    # obstore lists whole folders; within one, begin as near to the prefix as it allows.
    folder = prefix.rpartition("/")[0]
    start = max(after, _just_before(prefix))
    # An offset before all keys is left out: some servers would misread it.
    offset = None if f"{folder}/".startswith(start) or start < folder else root + start
    found: list[Listed] = []
    last = ""
    for chunk in obstore.list(
        store, (root + folder).rstrip("/") or None, offset=offset, chunk_size=PAGE
    ):
        for meta in chunk:
            key = meta["path"][len(root) :]
            if key < last:
                raise _Unordered(key)
            last = key
            if not key.startswith(prefix):
                if key > prefix:
                    return found
            elif key > after:  # Azurite ignores the offset, and lists everything
                found.append(Listed(key, meta["size"], to_us(meta["last_modified"])))
                if len(found) == PAGE:
                    return found
    return found


def _just_before(prefix: str) -> str:
    """Return a string that sorts just before every key with this prefix."""
    if not prefix or prefix.endswith("/"):
        return ""
    # No character of a key sorts above a tilde, and obstore accepts no two slashes in a row.
    before = chr(ord(prefix[-1]) - 1)
    return f"{prefix[:-1]}{'.' if before == '/' else before}~"


def s3_bucket(
    bucket: str,
    prefix: str = "",
    *,
    endpoint: str | None = None,
    region: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
) -> ObstoreBucket:
    """Return a bucket on S3, or on an S3-compatible server.

    Missing arguments come from the usual environment (AWS_REGION,
    AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID …), from the profile that `aws configure`
    wrote, or from the machine's role.
    """
    prefix = checked_prefix("s3", bucket, prefix)
    endpoint = checked_endpoint(
        endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    )
    options = (profile_options() if access_key_id is None else {}) | _given(
        endpoint=endpoint,
        region=region,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
    )
    options |= {"conditional_put": "etag", "disable_bulk_delete": True}
    store = _client(S3Store, bucket, endpoint, options)
    return ObstoreBucket(store, S3, bucket, prefix)


def gcs_bucket(
    bucket: str,
    prefix: str = "",
    *,
    endpoint: str | None = None,
    bearer_token: str | None = None,
) -> ObstoreBucket:
    """Return a bucket on Google Cloud Storage. It uses the application default credentials."""
    prefix = checked_prefix("gs", bucket, prefix)
    endpoint = checked_endpoint(endpoint or os.environ.get("GOOGLE_BASE_URL"))
    options = _given(base_url=endpoint, bearer_token=bearer_token)
    store = _client(GCSStore, bucket, endpoint, options)
    return ObstoreBucket(store, GCS, bucket, prefix)


def azure_bucket(
    container: str,
    prefix: str = "",
    *,
    endpoint: str | None = None,
    account_name: str | None = None,
    account_key: str | None = None,
) -> ObstoreBucket:
    """Return a container of Azure Blob Storage as a bucket.

    Missing arguments come from the usual environment
    (AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY …) or from the
    machine's identity.
    """
    prefix = checked_prefix("az", container, prefix)
    endpoint = checked_endpoint(endpoint or os.environ.get("AZURE_STORAGE_ENDPOINT"))
    options = _given(endpoint=endpoint, account_name=account_name, account_key=account_key)
    store = _client(AzureStore, container, endpoint, options)
    return ObstoreBucket(store, AZURE, container, prefix)


def _client(
    kind: type[_Client], bucket: str, endpoint: str | None, options: dict[str, Any]
) -> _Client:
    bounds: ClientConfig = {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "allow_http": endpoint is not None and endpoint.startswith("http://"),
    }
    try:
        return kind(bucket, client_options=bounds, retry_config=_NO_RETRIES, **options)
    except (BaseError, OSError, ValueError) as error:
        told = str(error).partition("\n\nDebug source:")[0]
        raise InvalidError(f"{told}. Fix the URL or the environment.", cause=error) from error


def _given(**options: str | None) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
