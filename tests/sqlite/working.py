"""Working: a worker that speaks to a store in commits of its own making."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from casque import Job
from casque.clock import drive, span_us
from casque.operations import Ack, Dequeue, Operation
from casque.stores.port import Store

LEASE = timedelta(minutes=1)


class Worker:
    """A store, and the commits of one writer to it."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.number = 0

    def commit(self, *operations: Operation) -> list[Any]:
        self.number += 1
        return drive(self.store.commit(self.name, self.number, operations))

    def work(
        self, done: Sequence[Job], limit: int, *, result: bytes | None = None, **ask: Any
    ) -> list[Job]:
        """Ack these and claim so many more."""
        *acks, leased = self.commit(*acks_of(done, result), ask_for(limit, **ask))
        assert acks == [None] * len(done)
        jobs: list[Job] = leased.jobs
        return jobs


def acks_of(jobs: Sequence[Job], result: bytes | None = None) -> list[Ack]:
    return [Ack(job.id, job.token, result) for job in jobs]


def ask_for(
    limit: int,
    entrypoints: tuple[str, ...] | None = ("e", "f"),
    worker: str = "worker",
    **ask: Any,
) -> Dequeue:
    return Dequeue(worker, span_us(LEASE), limit, entrypoints, **ask)
