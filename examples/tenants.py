"""A queue per tenant in one store: nobody waits behind a busy neighbour.

Queues need no setup: naming one creates it, and it is gone with its last job.
A dequeue that names no queue takes turns between the queues with a job due.
"""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

from casque import BrokerQueue, NewJob

SMALL = ("ada", "ben", "cleo")


async def fairness(q: BrokerQueue) -> None:
    """One tenant has a thousand jobs, and three come after it with one each."""
    await q.enqueue_many([NewJob("render", queue="bigcorp") for _ in range(1_000)])
    for tenant in SMALL:
        await q.enqueue("render", queue=tenant)

    claimed: Counter[str] = Counter()
    while not all(claimed[tenant] for tenant in SMALL):
        [job] = await q.dequeue("render")
        claimed[job.queue] += 1
        await q.ack(job)
    print(f"bigcorp had {claimed['bigcorp']} of {claimed.total()} turns until all three had one")


async def pausing(q: BrokerQueue) -> None:
    """A paused queue accepts jobs and hands out none."""
    await q.enqueue("render", queue="ada")
    await q.pause("ada")
    print(f"ada paused: {len(await q.dequeue(queue='ada'))} jobs")
    await q.resume("ada")
    [job] = await q.dequeue(queue="ada")
    await q.ack(job)
    print("ada resumed: 1 job")


async def whole_queue(q: BrokerQueue, other: BrokerQueue) -> None:
    """A program that needs a tenant's queue to itself for a moment leases it."""
    async with (
        q.lease_queue("bigcorp", lease=timedelta(seconds=5)) as mine,
        other.lease_queue("bigcorp") as theirs,
    ):
        assert mine is not None
        print(f"bigcorp is leased to {mine.worker}; to the other: {theirs}")
    async with other.lease_queue("bigcorp") as theirs:
        assert theirs is not None
        print(f"and then to {theirs.worker}")


async def looking_ahead(q: BrokerQueue) -> None:
    """Which tenants have something due, and when a tenant's next job is."""
    await q.enqueue("report", queue="ben", delay=timedelta(hours=6))
    next_at = await q.next_run_at("ben")
    assert next_at is not None
    hours = round((next_at - datetime.now(UTC)) / timedelta(hours=1))
    print(f"ben has {(await q.stats('ben')).scheduled} job scheduled, due in {hours} h")
    print(f"with jobs: {await q.queues()}; with one due: {await q.queues(due=True)}")
    gone = await q.drop("bigcorp")
    print(f"bigcorp left, and took {gone} jobs along; next: {await q.next_run_at('bigcorp')}")


async def main() -> None:
    async with BrokerQueue("memory://", worker="first") as q:
        async with BrokerQueue(q.store, worker="second") as other:
            await fairness(q)
            await pausing(q)
            await whole_queue(q, other)
        await looking_ahead(q)


asyncio.run(main())
