"""InMemoryStorage: one object in this process's memory."""

from __future__ import annotations

from casque.adapters.storage import memory
from casque.compat.jqueue.domain.errors import jqueue_errors


class InMemoryStorage(memory.InMemoryStorage):
    """An object that lives as long as its process."""

    def __init__(self, initial_content: bytes = b"") -> None:
        super().__init__(initial_content)
        self.initial_content = initial_content

    async def read(self) -> tuple[bytes, str | None]:
        with jqueue_errors():
            return await super().read()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        with jqueue_errors():
            return await super().write(content, if_match)
