"""Relays: stores that wrap another one and count, delay or fail its commits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from casque.errors import StorageError
from casque.rules.operations import Batch
from casque.stores.port import Answer, Store


class Relay:
    """A store that passes everything to another one. Subclasses override `commit`."""

    def __init__(self, store: Store) -> None:
        self.clock, self.name = store.clock, store.name
        self.blocking, self.instant = store.blocking, store.instant
        self.get, self.jobs, self.peek, self.stats = store.get, store.jobs, store.peek, store.stats
        self.queues, self.next_run, self.records = store.queues, store.next_run, store.records
        self.unserved, self.mismatched = store.unserved, store.mismatched
        self.picture, self.listen, self.close = store.picture, store.listen, store.close
        self._store = store

    async def commit(
        self, batches: Sequence[Batch], *, max_conflicts: int | None = None
    ) -> list[Answer]:
        return await self._store.commit(batches, max_conflicts=max_conflicts)


class Outage(Relay):
    """A store whose next `unanswered` commits fail."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.unanswered = 0
        self.asked = 0

    async def commit(self, *args: Any, **options: Any) -> list[Answer]:
        self.asked += 1
        if self.unanswered:
            self.unanswered -= 1
            raise StorageError("the storage is unavailable", outcome_unknown=False)
        return await super().commit(*args, **options)


class Gate(Relay):
    """A store that delays a commit, before or after it is stored, until the gate opens."""

    def __init__(self, store: Store, *, is_stored: bool) -> None:
        super().__init__(store)
        self.blocking = False
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self._is_stored = is_stored

    async def commit(self, *args: Any, **options: Any) -> list[Answer]:
        if not self._is_stored:
            await self._wait()
        outcomes = await super().commit(*args, **options)
        if self._is_stored:
            await self._wait()
        return outcomes

    async def _wait(self) -> None:
        self.reached.set()
        await self.opened.wait()


class Turnstile(Relay):
    """A store that counts its commits and makes them wait while `gate` is closed, on any thread."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.commits = 0
        self.operations = 0
        self.gate = threading.Event()
        self.gate.set()

    async def commit(
        self, batches: Sequence[Batch], *, max_conflicts: int | None = None
    ) -> list[Answer]:
        self.commits += 1
        self.operations += sum(len(batch.operations) for batch in batches)
        if self.blocking and asyncio._get_running_loop() is None:
            self.gate.wait()
        while not self.gate.is_set():  # noqa: ASYNC110 - opened from any thread or loop
            await asyncio.sleep(0)
        return await super().commit(batches, max_conflicts=max_conflicts)
