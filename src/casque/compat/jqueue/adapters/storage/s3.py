"""S3Storage: one object on S3, or on an S3-compatible server."""

from __future__ import annotations

import dataclasses
from typing import Any

from casque.adapters.storage import s3
from casque.compat.jqueue.domain.errors import (
    CASConflictError,
    JQueueError,
    StorageError,
    jqueue_errors,
)

_ABSENT = ("NoSuchKey", "404")


@dataclasses.dataclass
class S3Storage:
    """An object in a bucket, through obstore; or through `session`, an `aioboto3.Session`.

    Nothing is opened before the first call. The first write expects that no object exists.
    """

    bucket: str
    key: str
    session: Any = dataclasses.field(default=None, repr=False)
    region_name: str | None = None
    endpoint_url: str | None = None

    def __post_init__(self) -> None:
        self.name = f"s3://{self.bucket}/{self.key}"
        self._object: s3.S3Storage | None = None

    async def read(self) -> tuple[bytes, str | None]:
        try:
            with jqueue_errors():
                return await self._opened().read()
        except JQueueError:
            raise
        except Exception as error:
            if _s3_error_code(error) in _ABSENT:
                return b"", None
            raise StorageError(f"cannot read {self.name}", error) from error

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        try:
            with jqueue_errors():
                return await self._opened().write(content, if_match)
        except JQueueError:
            raise
        except Exception as error:
            if _s3_error_code(error) == "PreconditionFailed":
                raise CASConflictError(f"{self.name} is not as expected.") from error
            raise StorageError(f"cannot write {self.name}", error) from error

    def _opened(self) -> s3.S3Storage:
        if self._object is None:
            self._object = s3.S3Storage(
                self.bucket, self.key, self.session, **self._client_kwargs()
            )
        return self._object

    def _client_kwargs(self) -> dict[str, str]:
        given = {"region_name": self.region_name, "endpoint_url": self.endpoint_url}
        return {name: value for name, value in given.items() if value}


def _s3_error_code(error: Exception) -> str:
    """The code in an error of botocore's form; empty if it has none."""
    response = getattr(error, "response", None)
    told = response.get("Error") if isinstance(response, dict) else None
    code = told.get("Code") if isinstance(told, dict) else None
    return str(code or "")
