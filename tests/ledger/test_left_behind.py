"""A call leaves nothing behind, in a process that lives long or has children."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from pathlib import Path

from casque import BrokerQueue, Queue, StorageError
from casque.buckets.memory import MemoryBucket
from casque.stores.ledger.replica import RECENT
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SystemClock


def test_a_read_that_is_given_up_before_its_turn_leaves_no_warning(tmp_path: Path) -> None:
    async def main() -> None:
        async with BrokerQueue(tmp_path) as q:
            await q.enqueue("e")
            for _ in range(20):
                looks = [asyncio.create_task(q.stats()) for _ in range(5)]
                await SystemClock().sleep(0, blocking=False)
                for look in looks:
                    look.cancel()
                await asyncio.gather(*looks, return_exceptions=True)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert not [str(one.message) for one in told if "never awaited" in str(one.message)]


def test_a_bucket_in_memory_is_refused_in_a_fork_where_jobs_would_be_lost() -> None:
    q = Queue(MemoryBucket())
    q.enqueue("e")
    child = os.fork()
    if not child:
        try:
            q.enqueue("e")
        except StorageError as error:
            os._exit(0 if "lives in the process that made it" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert q.stats().pending == 1


def test_a_process_that_opens_a_queue_for_each_job_does_not_remember_them_all() -> None:
    store = LedgerStore(MemoryBucket())
    for _ in range(2 * RECENT):
        with Queue(store) as q:
            q.enqueue("e")
    assert len(store._pacing._own) == RECENT
