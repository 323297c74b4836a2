"""MemoryBucket: a bucket in the memory of this process, for tests and experiments."""

from __future__ import annotations

import threading
from typing import Literal

from casque.buckets.port import ABSENT, PAGE, Expect, Found, Listed, Version
from casque.errors import CASConflictError
from casque.system import forks
from casque.system.clock import Clock, SystemClock


class MemoryBucket:
    """Objects in a dict, shared by all threads of this process."""

    blocking = True

    def __init__(self, clock: Clock | None = None, *, name: str = "memory bucket") -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, Found] = {}
        self._writes = 0
        self._generation = forks.generation()

    async def get(self, key: str) -> Found | None:
        with self._here():
            return self._objects.get(key)

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        with self._here():
            found = self._objects.get(key)
            if (ABSENT if found is None else found.version) != expect:
                raise CASConflictError(f"{self.name}: {key} is not as expected.")
            self._writes += 1
            version = Version(str(self._writes))
            self._objects[key] = Found(bytes(body), version, self._clock.now())
            return version

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        with self._here():
            named = sorted(key for key in self._objects if key > after and key.startswith(prefix))
            return [
                Listed(key, len(self._objects[key].body), self._objects[key].modified_us)
                for key in named[:PAGE]
            ]

    async def delete(self, key: str) -> None:
        with self._here():
            self._objects.pop(key, None)

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _here(self) -> threading.Lock:
        """Return the lock. Raises in a forked child: the objects belong to its parent."""
        forks.refuse_in_child(self._generation, self.name, "a folder")
        return self._lock
