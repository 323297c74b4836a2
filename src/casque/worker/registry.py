"""Registry: the workers of a store, each an entry that goes away by itself when it is not renewed.

An entry is a record, so it is there on every store, and is written by the same
commits as everything else.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import datetime

import msgspec

from casque.clock import Clock, to_datetime
from casque.errors import CASConflictError
from casque.job import Job
from casque.operations import DeleteRecord, Operation, PutRecord
from casque.record import ABSENT, WORKER, Record
from casque.worker.options import WorkerOptions

ENTRY_LEASES = 2
"""For how many leases an entry is there without being renewed."""
_JOBS_NAMED = 100


class WorkerEntry(msgspec.Struct, frozen=True):
    """One worker as its entry has it; it is at most a third of a lease old."""

    name: str
    host: str
    pid: int
    started_at: datetime
    beat_at: datetime
    concurrency: int
    queues: tuple[str, ...] | None
    """None: all of them."""
    entrypoints: tuple[str, ...]
    running: tuple[str, ...]
    """The ids of the jobs in hand, or the first hundred of them."""


def worker_entries(records: Sequence[Record]) -> list[WorkerEntry]:
    """The workers that the records of kind `worker` tell of."""
    return [msgspec.json.decode(record.value, type=WorkerEntry) for record in records]


class Entry:
    """A worker's own entry, as it is kept up to date."""

    def __init__(
        self, name: str, options: WorkerOptions, entrypoints: tuple[str, ...], clock: Clock
    ) -> None:
        self.name = name
        self.entrypoints = entrypoints
        self._options = options
        self._clock = clock
        self._started_at = to_datetime(clock.now())
        self._version = ABSENT

    def renewal(self, running: Sequence[Job]) -> PutRecord:
        value = WorkerEntry(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            beat_at=to_datetime(self._clock.now()),
            concurrency=self._options.concurrency,
            queues=self._options.queues,
            entrypoints=self.entrypoints,
            running=tuple(job.id for job in running[:_JOBS_NAMED]),
        )
        ttl = ENTRY_LEASES * self._options.lease_us
        return PutRecord(WORKER, self.name, msgspec.json.encode(value), self._version, ttl)

    def was_put(self, outcome: Record | CASConflictError) -> None:
        # Nobody else writes it: when it is not as it was left, it went by time, or by a person.
        self._version = outcome.version if isinstance(outcome, Record) else ABSENT

    def removal(self) -> list[Operation]:
        """What takes it away, if it is there."""
        if self._version == ABSENT:
            return []
        return [DeleteRecord(WORKER, self.name, self._version)]
