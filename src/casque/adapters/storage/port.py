"""ObjectStoragePort: the two methods that a single-object storage needs to hold a queue."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ObjectStoragePort(Protocol):
    """One stored object, read whole and replaced whole. Any class with these two methods works."""

    async def read(self) -> tuple[bytes, str | None]:
        """Return the content and its etag; `(b"", None)` if the object does not exist."""
        ...

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Replace the object if its etag is `if_match`, and return the new etag.

        `None` means that the object must not exist yet. Raises CASConflictError
        if the condition does not hold. A port that writes unconditionally on
        `None` works too, but then two first writers can overwrite each other.
        """
        ...
