"""ObjectStoragePort: the two methods by which any single-object storage carries a queue."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ObjectStoragePort(Protocol):
    """One object, read whole and replaced whole. Any object with these two methods will do."""

    async def read(self) -> tuple[bytes, str | None]:
        """The content and its etag; `(b"", None)` when the object does not exist."""
        ...

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Replace the object if its etag is `if_match`, and return the new etag.

        `None` means that the object must not exist yet. Raises CASConflictError
        when the condition does not hold. A port that writes unconditionally on
        `None` works too, but two first writers can then overwrite each other.
        """
        ...
