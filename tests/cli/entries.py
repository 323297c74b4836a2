"""Helpers to write and read entries of workers."""

from __future__ import annotations

from collections.abc import Callable

from casque import Queue
from casque.cli.store import Access
from casque.cli.worker.fleet import registered_workers
from casque.worker.registry import process_identity
from casque.worker.registry.entries import WorkerEntry

MINUTE_US = 60_000_000

Write = Callable[..., WorkerEntry]


def birth_of(pid: int) -> int:
    vitals = process_identity.vitals(pid)
    assert vitals is not None
    return vitals.birth


def claim(store: str, worker: str) -> str:
    """Claim a job under this worker name. Returns the job's id."""
    with Queue(store, worker=worker) as q:
        q.enqueue("e", id="job1")
        [job] = q.dequeue("e")
        return job.id


def entries(store: str) -> list[WorkerEntry]:
    with Access(store) as access:
        return registered_workers(access)
