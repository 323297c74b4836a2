"""Several queues as the steps of one process: notification, then approval, then completion.

One commit acknowledges a step and enqueues the next, so an invoice is never
lost or doubled between two steps, whenever a crash comes. Ids made from the
invoice keep a message that was sent twice from counting twice.
"""

import asyncio
import json

from casque import BrokerQueue, Job, NewJob

INVOICES = {"inv-1": 120, "inv-2": 9_500, "inv-3": 40}
MOST_APPROVED = 5_000


def step(queue: str, entrypoint: str, invoice: str, amount: int) -> NewJob:
    payload = json.dumps({"invoice": invoice, "amount": amount}).encode()
    return NewJob(entrypoint, payload, queue=queue, id=f"{entrypoint}:{invoice}")


async def notify(q: BrokerQueue, job: Job, invoice: str, amount: int) -> None:
    print(f"notification  {invoice}: {amount} to be approved")
    await q.ack(job, enqueue=[step("approval", "approve", invoice, amount)])


async def approve(q: BrokerQueue, job: Job, invoice: str, amount: int) -> None:
    if amount > MOST_APPROVED:
        print(f"approval      {invoice}: refused")
        await q.discard(job, reason=f"{amount} is more than {MOST_APPROVED}")
        return
    print(f"approval      {invoice}: granted")
    # Two jobs may follow from one: the payment and a receipt for the files.
    following = [
        step("completion", "pay", invoice, amount),
        step("completion", "file_receipt", invoice, amount),
    ]
    await q.ack(job, enqueue=following)


async def complete(q: BrokerQueue, job: Job, invoice: str, amount: int) -> None:
    # `chain` holds the entrypoints of the jobs that led to this one, outermost first.
    print(f"completion    {invoice}: {' -> '.join((*job.chain, job.entrypoint))} {amount}")
    await q.ack(job)


STEPS = {"notify": notify, "approve": approve, "pay": complete, "file_receipt": complete}


async def main() -> None:
    async with BrokerQueue("memory://") as q:
        for invoice, amount in INVOICES.items():
            new = step("notification", "notify", invoice, amount)
            await q.enqueue_many([new])
            [second] = await q.enqueue_many([new])
            assert second.duplicate  # a sender that is not sure may send it again

        for queue in ("notification", "approval", "completion"):
            while jobs := await q.dequeue(queue=queue, batch_size=10):
                for job in jobs:
                    await STEPS[job.entrypoint](q, job, **json.loads(job.payload))
            stats = await q.stats(queue)
            print(f"{queue}: {stats.pending} pending, {stats.cancelled} cancelled")

        refused = await q.get("approve:inv-2")
        assert refused is not None
        print(f"{refused.id} was {refused.status}: {refused.error}")


asyncio.run(main())
