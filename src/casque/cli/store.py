"""Access: an open store, for the time of one command."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from casque.cli.location import check_place, is_empty
from casque.cli.output import complain
from casque.job import Job
from casque.queues.async_queue import DEFAULT_MAX_DEPTH, AsyncQueue
from casque.queues.runner import runner_for
from casque.record import CONFIG, Record
from casque.rules.operations import Operation
from casque.rules.views import JobFilter
from casque.stores.url import StoreAddress, open_store
from casque.worker.shell.settings import Settings, settings_of, unfit

T = TypeVar("T")


class Access:
    """A store, the queues on it, and what only tools ask of them. A context manager."""

    def __init__(self, address: StoreAddress) -> None:
        self.store = open_store(address)
        if isinstance(address, str):
            check_place(address, self.store.name)
        self._runner = runner_for(self.store)
        self.queue = self.producer(DEFAULT_MAX_DEPTH)

    def producer(self, max_depth: int) -> AsyncQueue:
        """A queue that lets jobs enqueue jobs so deep."""
        return AsyncQueue(
            self.store, max_depth=max_depth, _blocking=self.store.blocking, _owner="queuectl"
        )

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Await it: `access.run(access.queue.stats())`."""
        return self._runner.run(call)

    def jobs(self, wanted: JobFilter, *, limit: int, after: int = 0) -> list[Job]:
        return self.run(self.store.jobs(wanted, limit=limit, after=after))

    def records(self, kind: str) -> list[Record]:
        return self.run(self.store.records(kind))

    def submit(self, operation: Operation) -> Any:
        """Commit one operation; its result, or its refusal raised."""

        async def submitted() -> Any:  # a committer is of the event loop that it is asked on
            return await self.queue._session.submit(operation)  # noqa: SLF001 - of one house

        return self.run(submitted())

    def submit_all(self, operations: Sequence[Operation]) -> list[Any]:
        """Commit several together; per operation its result, or its refusal."""

        async def submitted() -> list[Any]:
            return await self.queue._session.submit_all(operations)  # noqa: SLF001 - of one house

        return self.run(submitted())

    def settings(self) -> Settings:
        records = self.records(CONFIG)
        for key in unfit(records):
            complain(f"note: the setting {key} makes no sense, and is not minded; set it anew.")
        return settings_of(records)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.run(self.queue.close())
        self.run(self.store.close())
        self._runner.close()


def look_into(address: str) -> Access:
    """Access for whoever only looks: where nothing is stored yet, nothing is made either."""
    store = open_store(address)
    check_place(address, store.name)
    if is_empty(store.name):
        from casque.stores.memory import MemoryStore

        name = store.name
        if sys.stderr.isatty():  # a person may have mistyped it
            complain(f"note: nothing is stored at {name} yet.")
        store = MemoryStore()
        store.name = name
    return Access(store)
