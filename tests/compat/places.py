"""A store with a clock that tests move; each queue object on it is another worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from casque import Store, open_store
from casque.compat.jqueue import (
    BrokerQueue,
    DirectQueue,
)
from casque.testing import FakeClock

AnyQueue = BrokerQueue | DirectQueue
MINUTE = timedelta(minutes=1)
TWO_QUEUES = [DirectQueue, BrokerQueue]


class Place:
    """A store and its clock."""

    def __init__(self, address: str) -> None:
        self.clock = FakeClock()
        self.store: Store = open_store(address, clock=self.clock)

    @asynccontextmanager
    async def open(self, kind: Callable[[Store], AnyQueue]) -> AsyncIterator[AnyQueue]:
        q = kind(self.store)
        if isinstance(q, BrokerQueue):
            async with q:
                yield q
        else:
            yield q
