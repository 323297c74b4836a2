"""All kinds of queues on one ledger in one process: in threads, in event loops, together."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from casque import BrokerQueue, DirectQueue, Queue, Store, open_store
from casque.queues.async_queue import AsyncQueue
from tests.ledger.places import Place

EACH = 12
"""How many jobs each producer adds."""
WAIT = timedelta(milliseconds=200)
PATIENCE_SECONDS = 60


class Work:
    """Producers and workers; the run ends when all planned jobs are done."""

    def __init__(self, producers: int) -> None:
        self.brought: list[str] = []
        self.done: Counter[str] = Counter()
        self._left = producers * EACH
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        with self._lock:
            return self._left <= 0

    def did(self, *ids: str) -> None:
        with self._lock:
            self.done.update(ids)
            self._left -= len(ids)

    # -- in threads ------------------------------------------------------------

    def bring(self, q: Queue) -> None:
        for number in range(EACH):
            self.brought.append(q.enqueue("e", id=f"{id(q)}-{number}" if number % 3 else None).id)

    def do(self, q: Queue) -> None:
        while not self.is_over:
            jobs = q.dequeue(batch_size=3, wait=WAIT)
            q.ack_many(jobs)
            self.did(*(job.id for job in jobs))

    # -- in event loops --------------------------------------------------------

    async def bring_async(self, q: AsyncQueue) -> None:
        jobs = await asyncio.gather(*(q.enqueue("e", b"%d" % number) for number in range(EACH)))
        self.brought += [job.id for job in jobs]

    async def do_async(self, q: AsyncQueue) -> None:
        while not self.is_over:
            jobs = await q.dequeue(batch_size=3, wait=WAIT)
            await asyncio.gather(*(q.ack(job) for job in jobs))
            self.did(*(job.id for job in jobs))


def run_all(*threads: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(threads)) as pool:
        for done in [pool.submit(thread) for thread in threads]:
            done.result(PATIENCE_SECONDS)


def in_a_loop(work: Work, address: str | Store, kind: type[AsyncQueue]) -> None:
    """An event loop with its own queue, and tasks that add jobs and do them."""

    async def main() -> None:
        async with kind(address) as q, asyncio.TaskGroup() as tasks:
            tasks.create_task(work.bring_async(q))
            tasks.create_task(work.do_async(q))
            tasks.create_task(_give_up(q))

    asyncio.run(main())


async def _give_up(q: AsyncQueue) -> None:
    """Wait for jobs, and be cancelled: others get the jobs that it was about to get."""
    for place in range(4):
        waiting = asyncio.create_task(q.dequeue("e", wait=WAIT))
        await asyncio.wait([waiting], timeout=place / 100)
        if not waiting.cancel():
            for job in waiting.result():
                await q.release(job)
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("shares", [False, True], ids=["each its own", "one store for all"])
def test_threads_and_event_loops_do_every_job_once(place: Place, shares: bool) -> None:
    shared = open_store(place.url) if shares else None
    address: str | Store = shared or place.url
    work = Work(producers=4)
    with Queue(address) as q, Queue(place.url) as other:
        run_all(
            lambda: work.bring(q),
            lambda: work.do(q),
            lambda: work.do(q),
            lambda: work.bring(other),
            lambda: work.do(other),
            lambda: in_a_loop(work, address, BrokerQueue),
            lambda: in_a_loop(work, address, DirectQueue),
        )
        assert len(work.brought) == len(set(work.brought)) == 4 * EACH
        assert work.done == Counter(work.brought)
        assert q.stats().total == other.stats().total == 0
    if shared is not None:
        with Queue(place.url) as fresh:
            assert fresh.stats().total == 0
        asyncio.run(shared.close())
