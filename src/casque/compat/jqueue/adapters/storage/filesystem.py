"""LocalFileSystemStorage: one file, replaced whole and durably."""

from __future__ import annotations

from pathlib import Path

from casque.adapters.storage import filesystem
from casque.compat.jqueue.domain.errors import jqueue_errors


class LocalFileSystemStorage:
    """A file on a local disk. The first write creates the parent folders.

    An empty file counts as no file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = str(path)
        with jqueue_errors():
            self._file = filesystem.LocalFileSystemStorage(path)

    def __repr__(self) -> str:
        return f"LocalFileSystemStorage(path={self.path!r})"

    async def read(self) -> tuple[bytes, str | None]:
        with jqueue_errors():
            content, etag = await self._file.read()
        return content, etag if content else None

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        with jqueue_errors():
            if if_match is None:
                # What the write expects: no file, or an empty one.
                there, etag = await self._file.read()
                if_match = None if there else etag
            return await self._file.write(content, if_match)
