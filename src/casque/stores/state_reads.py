"""State reads: the reads that all stores with a `State` share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from casque.job import Job, Stats
from casque.record import Record
from casque.rules import views
from casque.rules.state import QueueState, State
from casque.rules.views import JobFilter, Served, Unserved

T = TypeVar("T")


class StateReads:
    """Reads for memory, document and ledger. The subclass keeps the state current."""

    async def _read(self, look: Callable[[State, int], T]) -> T:
        """Return `look(state, now)` for the current state and the store's time."""
        raise NotImplementedError

    async def get(self, job_id: str) -> Job | None:
        return await self._read(lambda state, now: views.job(state, job_id, now))

    async def jobs(self, wanted: JobFilter, *, limit: int, after: int = 0) -> list[Job]:
        return await self._read(lambda state, now: views.jobs(state, wanted, limit, after, now))

    async def peek(
        self, entrypoints: Collection[str] | None, queue: str | None, limit: int
    ) -> list[Job]:
        return await self._read(
            lambda state, now: views.peek(state, entrypoints, queue, limit, now)
        )

    async def stats(self, queue: str | None) -> Stats:
        return await self._read(lambda state, now: state.stats(queue, now))

    async def queues(self, *, due: bool) -> list[str]:
        return await self._read(lambda state, now: views.queues(state, now, due=due))

    async def unserved(self, served: Served, *, limit: int, waited_us: int) -> Unserved:
        return await self._read(
            lambda state, now: views.unserved(state, served, limit, now - waited_us)
        )

    async def mismatched(self, queue: str | None) -> int:
        return await self._read(lambda state, _: views.mismatched(state, queue))

    async def next_run(self, queue: str) -> int | None:
        return await self._read(lambda state, _: views.next_run(state, queue))

    async def records(self, kind: str) -> list[Record]:
        return await self._read(lambda state, now: views.records(state, kind, now))

    async def last_token(self) -> int:
        return await self._read(lambda state, _: state.token)

    async def picture(self) -> QueueState:
        return await self._read(views.picture)
