"""OnThread: runs a blocking store on separate threads, for use in an event loop.

Commits have one thread and reads have another, so that a long read of a large queue
does not delay commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from casque.errors import InvalidError
from casque.job import Job, Stats
from casque.record import Record
from casque.rules.operations import Batch
from casque.rules.state import QueueState
from casque.rules.views import JobFilter, Served, Unserved
from casque.stores.port import Answer, MaySleep, Store
from casque.system.clock import Bell, drive

T = TypeVar("T")


class OnThread:
    """Forwards every call to a store whose coroutines never suspend."""

    blocking = False
    instant = False

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = store.clock
        self.name = store.name
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="casque-commit")
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="casque-read")

    async def commit(
        self, batches: Sequence[Batch], *, max_conflicts: int | None = None
    ) -> list[Answer]:
        commit = partial(self.store.commit, batches, max_conflicts=max_conflicts)
        return await _on(self._commits, commit)

    def listen(self, bell: Bell) -> AbstractContextManager[MaySleep]:
        return self.store.listen(bell)

    async def get(self, job_id: str) -> Job | None:
        return await _on(self._reads, lambda: self.store.get(job_id))

    async def jobs(self, wanted: JobFilter, *, limit: int, after: int = 0) -> list[Job]:
        return await _on(self._reads, lambda: self.store.jobs(wanted, limit=limit, after=after))

    async def peek(
        self, entrypoints: Collection[str] | None, queue: str | None, limit: int
    ) -> list[Job]:
        return await _on(self._reads, lambda: self.store.peek(entrypoints, queue, limit))

    async def stats(self, queue: str | None) -> Stats:
        return await _on(self._reads, lambda: self.store.stats(queue))

    async def queues(self, *, due: bool) -> list[str]:
        return await _on(self._reads, lambda: self.store.queues(due=due))

    async def unserved(self, served: Served, *, limit: int, waited_us: int) -> Unserved:
        return await _on(
            self._reads, lambda: self.store.unserved(served, limit=limit, waited_us=waited_us)
        )

    async def mismatched(self, queue: str | None) -> int:
        return await _on(self._reads, lambda: self.store.mismatched(queue))

    async def next_run(self, queue: str) -> int | None:
        return await _on(self._reads, lambda: self.store.next_run(queue))

    async def records(self, kind: str) -> list[Record]:
        return await _on(self._reads, lambda: self.store.records(kind))

    async def picture(self) -> QueueState:
        return await _on(self._reads, self.store.picture)

    async def close(self) -> None:
        """Stop the threads. The store itself stays open: its creator closes it."""
        self._commits.shutdown(wait=False)
        self._reads.shutdown(wait=False)


async def _on(executor: ThreadPoolExecutor, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # The coroutine is created on the thread: a call cancelled before its turn never creates one.
    try:
        running = asyncio.get_running_loop().run_in_executor(executor, lambda: drive(work()))
    except RuntimeError as error:
        raise InvalidError("this queue is closed; open a new one.", cause=error) from error
    return await running
