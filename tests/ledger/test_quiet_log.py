"""A log that has become quiet: idle processes leave few objects, and then nothing more to do."""

from __future__ import annotations

from datetime import timedelta

from casque import BrokerQueue
from casque.stores.ledger.ledger_bucket import Upkeep, split_key
from casque.stores.ledger.log import number_in
from casque.stores.ledger.snapshot_listing import is_snapshot
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US
from casque.testing.simulation.clock import SimClock
from tests.ledger.virtual import Distant, in_virtual_time

AGE_SECONDS = 60
UPKEEP = Upkeep(AGE_SECONDS * SECOND_US, 10 * SECOND_US, 10_000)


def test_idle_processes_shorten_a_quiet_log_and_then_only_poll() -> None:
    async def main(clock: SimClock) -> None:
        bucket = Distant(clock)
        async with (
            BrokerQueue(LedgerStore(bucket, clock, upkeep=UPKEEP)) as first,
            BrokerQueue(LedgerStore(bucket, clock)) as second,
        ):
            for _ in range(100):
                await first.enqueue("e")
                [job] = await first.dequeue()
                await first.ack(job)

            async def idle(ages: float) -> int:
                """Wait as workers do; return how many requests were not polls."""
                asked = len(bucket.asked)
                end = clock.now() + int(ages * AGE_SECONDS * SECOND_US)
                while clock.now() < end:
                    for q in (first, second):
                        assert await q.dequeue(wait=timedelta(seconds=5)) == []
                return sum(not one.startswith("get log/") for one in bucket.asked[asked:])

            await idle(0.4)
            assert len(bucket._objects) > 300
            await idle(6)
            keys = [split_key(key)[1] for key in bucket._objects]
            assert len(keys) < 10
            assert [key for key in keys if is_snapshot(key)]
            assert len([key for key in keys if number_in(key)]) == 1
            assert await idle(4) < 100
            await second.enqueue("e")
            assert (await first.stats()).pending == 1

    in_virtual_time(main)
