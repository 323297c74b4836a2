"""A ledger that is closed while another thread, or another task, is in the middle of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

from casque import BrokerQueue
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Found, Listed
from casque.record import WORKER
from casque.rules.operations import Batch, DeleteRecord, Operation, PutRecord
from casque.stores.ledger.store import LedgerStore


class Closing(MemoryBucket):
    """A bucket that closes its ledger at the `at`th request."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.store = LedgerStore(self)
        self.left = at

    async def get(self, key: str) -> Found | None:
        await self._close_in_turn()
        return await super().get(key)

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        await self._close_in_turn()
        return await super().list(prefix, after=after)

    async def _close_in_turn(self) -> None:
        self.left -= 1
        if not self.left:
            await self.store.close()


def at_every_request(call: Callable[[Closing], Awaitable[None]]) -> None:
    """Run the call once for each of its requests, and close the ledger during that request."""

    async def calls() -> None:
        for place in count(1):
            bucket = Closing(place)
            await call(bucket)
            if bucket.left > 0:
                assert place > 5  # the call makes at least this many requests
                return

    asyncio.run(calls())


def test_a_job_that_is_enqueued_while_the_ledger_is_closed_is_stored() -> None:
    async def enqueue(bucket: Closing) -> None:
        async with BrokerQueue(bucket.store) as q:
            await q.enqueue("e", id="first")
            await q.dequeue(batch_size=1)
            await q.enqueue("e", id="second")
        async with BrokerQueue(LedgerStore(bucket)) as q:
            assert [job.id for job in (await q.read_state()).jobs] == ["first", "second"]

    at_every_request(enqueue)


def test_an_entry_that_is_removed_while_the_ledger_is_closed_is_gone() -> None:
    async def remove(bucket: Closing) -> None:
        async def commit(number: int, *operations: Operation) -> None:
            [answers] = await bucket.store.commit([Batch("writer", number, operations)])
            assert isinstance(answers, list)
            assert not any(isinstance(one, Exception) for one in answers)

        await commit(1, PutRecord(WORKER, "worker", b"{}", None, None))
        await commit(
            2, PutRecord("kind", "", b"", None, None), DeleteRecord(WORKER, "worker", None)
        )
        assert await LedgerStore(bucket).records(WORKER) == []

    at_every_request(remove)
