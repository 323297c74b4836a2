"""InMemoryStorage: one object in this process's memory, for tests and experiments."""

from __future__ import annotations

import threading

from casque.errors import CASConflictError
from casque.system import forks


class InMemoryStorage:
    """An object that lives as long as its process. Tasks, loops and threads may share it."""

    name = "memory"

    def __init__(self, initial_content: bytes = b"") -> None:
        self._lock = threading.Lock()
        self._content = initial_content
        self._writes = 0
        self._exists = bool(initial_content)
        self._generation = forks.generation()

    async def read(self) -> tuple[bytes, str | None]:
        with self._here():
            return self._content, self._etag()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        with self._here():
            if if_match != self._etag():
                raise CASConflictError(
                    f"the object was changed: expected etag {if_match}, got {self._etag()}."
                )
            self._content, self._exists = content, True
            self._writes += 1
            return str(self._writes)

    def _here(self) -> threading.Lock:
        """Return the lock. Raises in a forked child, which has only a copy."""
        forks.refuse_in_child(self._generation, "this object", "a file")
        return self._lock

    def _etag(self) -> str | None:
        return str(self._writes) if self._exists else None
