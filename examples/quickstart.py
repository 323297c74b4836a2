"""The shortest example: enqueue two jobs, dequeue them, do them, ack them."""

import asyncio

from casque import BrokerQueue, HeartbeatManager, InMemoryStorage


async def main() -> None:
    async with BrokerQueue(InMemoryStorage()) as q:
        # A producer. When enqueue returns, the job is stored.
        await q.enqueue("send_email", b'{"to": "alice@example.com"}')
        await q.enqueue("send_email", b'{"to": "bob@example.com"}')

        # A worker. It leases each job, and the heartbeat keeps the lease from ending.
        jobs = await q.dequeue("send_email", batch_size=2)
        for job in jobs:
            async with HeartbeatManager(q, job.id):
                print(f"Sending email: {job.payload!r}")
            await q.ack(job.id)

        state = await q.read_state()
        print(f"Jobs left: {len(state.jobs)}")


asyncio.run(main())
