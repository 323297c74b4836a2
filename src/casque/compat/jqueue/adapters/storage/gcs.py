"""GCSStorage: one object on Google Cloud Storage."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from casque.adapters.storage import gcs
from casque.compat.jqueue.domain.errors import JQueueError, StorageError, jqueue_errors


@dataclasses.dataclass
class GCSStorage:
    """An object in a bucket, through obstore; or through `client`, a `google.cloud.storage.Client`.

    Nothing is opened before the first call. The first write expects that no object exists.
    """

    bucket_name: str
    blob_name: str
    client: Any = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.name = f"gs://{self.bucket_name}/{self.blob_name}"
        self._object: gcs.GCSStorage | None = None

    async def read(self) -> tuple[bytes, str | None]:
        try:
            if self.client is not None:
                return await asyncio.to_thread(self._sync_read)
            with jqueue_errors():
                return await self._opened().read()
        except JQueueError:
            raise
        except Exception as error:
            raise StorageError(f"cannot read {self.name}", error) from error

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        try:
            if self.client is not None:
                return await asyncio.to_thread(self._sync_write, content, if_match)
            with jqueue_errors():
                return await self._opened().write(content, if_match)
        except JQueueError:
            raise
        except Exception as error:
            raise StorageError(f"cannot write {self.name}", error) from error

    def _opened(self) -> gcs.GCSStorage:
        if self._object is None:
            self._object = gcs.GCSStorage(self.bucket_name, self.blob_name)
        return self._object

    def _sync_read(self) -> tuple[bytes, str | None]:
        with jqueue_errors():
            found = gcs.ClientBucket(self.client, self.bucket_name).get_now(self.blob_name)
        return (b"", None) if found is None else found

    def _sync_write(self, content: bytes, if_match: str | None) -> str:
        generation = gcs.NO_OBJECT if if_match is None else int(if_match)
        with jqueue_errors():
            bucket = gcs.ClientBucket(self.client, self.bucket_name)
            return bucket.put_now(self.blob_name, content, generation)
