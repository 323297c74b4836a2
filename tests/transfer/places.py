"""The four kinds of store that the tests copy from and to, and comparable jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from casque import Job, NewJob, Queue, Store, open_store
from casque.stores.memory import MemoryStore

KINDS = ("memory", "document", "ledger", "sqlite")

_PLACES = {"document": "queue.json", "ledger": "ledger/", "sqlite": "jobs.db"}


def place(kind: str, folder: Path) -> str | Store:
    """A store of this kind. Memory is the store itself: nothing else could open it again."""
    if kind == "memory":
        return MemoryStore()
    folder.mkdir(exist_ok=True)
    return f"{folder}/{_PLACES[kind]}"


def jobs_in(address: str | Store) -> list[Job]:
    """The jobs in enqueue order, without their place in it: each store numbers by itself."""
    with Queue(open_store(address)) as queue:
        jobs = sorted(queue.read_state().jobs, key=lambda job: job.seq)
    return [replace(job, seq=0) for job in jobs]


def fill(address: str | Store, count: int = 0) -> None:
    """Add jobs in every state, with history, headers, delays; then `count` plain jobs."""
    with Queue(open_store(address), worker="first") as queue:
        day = timedelta(days=1)
        ids = ["done", "dead", "again", "given-back", "cancelled"]
        queue.enqueue_many(
            [NewJob("send", id.encode(), id=id, retain=day, headers={"trace": id}) for id in ids]
        )
        by_id = {job.id: job for job in queue.dequeue("send", batch_size=5)}
        queue.ack(by_id["done"], result=b'"fine"')
        queue.fail(by_id["dead"], error=ValueError("no"))
        queue.nack(by_id["again"], error="not now", delay=day)
        queue.release(by_id["given-back"])
        queue.cancel("cancelled")
        queue.enqueue("later", b"\x00\xff", -7, queue="tenant/1", id="later", delay=day)
        queue.enqueue("timed", b"", 9, queue="ünï", timeout=timedelta(seconds=3), max_attempts=2)
        if count:
            queue.enqueue_many([NewJob("many", b"%d" % n) for n in range(count)])


def pause_all(address: str | Store) -> None:
    with Queue(open_store(address)) as queue:
        for name in queue.queues():
            queue.pause(name)


def ids_of(jobs: Sequence[Job]) -> list[str]:
    return [job.id for job in jobs]
