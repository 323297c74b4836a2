"""Entries: the workers and supervisors of a store; an entry expires unless it is renewed.

An entry is an ephemeral record, which only its owner writes. Orders to a worker
are records of another kind, which the worker reads after each renewal.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from casque.job import Job
from casque.record import DISMISSAL, SUPERVISOR, WORKER, Record
from casque.rules.operations import DeleteRecord, Operation, PutRecord
from casque.stores.port import Store
from casque.system.clock import DAY_US, SECOND_US, Clock, to_datetime
from casque.worker.options import DEFAULT_GRACE_US, DEFAULT_LEASE_US, WorkerOptions
from casque.worker.registry import process_identity

ENTRY_LEASES = 2
"""How many leases an entry lives without being renewed."""
_UNHEARD_US = DAY_US
"""How much longer a supervisor's is: on its own host its process tells that it is there, and by the
entry it is found even if the storage has taken no write for a while."""
_LATE_US = 10 * SECOND_US
"""How long a dismissal waits besides, for a worker that was held up and beats late."""
_JOBS_NAMED = 100


class ProcessEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One process that an entry tells of."""

    name: str
    host: str
    pid: int
    started_at: datetime
    lease_us: int = DEFAULT_LEASE_US
    """It is renewed every third of it."""
    grace_us: int = DEFAULT_GRACE_US
    machine: str = ""
    birth: int | None = None
    """These two say which process `pid` is: see `process_identity`."""
    obeys_signals: bool = False
    """True if SIGTERM stops it; a worker on a thread would end with its whole program."""
    is_dismissed: bool = False
    """True if it was asked to stop, and is not replaced."""
    store: str = ""
    """The name of the store that it was written to."""
    place: str = ""
    """The `place_of` that store."""

    def is_of(self, store: str) -> bool:
        """False if it came into this store with a copy, and its process works on another.

        A process elsewhere may see the same store under another name.
        """
        return not self.is_here or self.store == store or self.place == place_of(store)

    @property
    def is_here(self) -> bool:
        """True if `pid` is a process that this process can see."""
        return self.host == socket.gethostname() and self.machine == process_identity.machine()

    @property
    def is_gone(self) -> bool:
        """True if its process has ended. On other hosts, only an expired entry tells."""
        return self.is_here and process_identity.has_ended(self.pid, self.birth)


class WorkerEntry(ProcessEntry, frozen=True, kw_only=True):
    """One worker as its entry has it; it is at most a third of a lease old."""

    beat_at: datetime
    concurrency: int
    queues: tuple[str, ...] | None
    """None: all of them."""
    entrypoints: tuple[str, ...]
    running: tuple[str, ...]
    """The ids of the jobs in hand, or the first hundred of them."""
    supervisor: int | None = None
    """The process that keeps it running; None: nobody does."""
    supervisor_birth: int | None = None
    """When that process started; None if nobody may send it signals."""
    is_stopping: bool = False
    """True if it claims no more, and ends with the jobs in hand."""


class SupervisorEntry(ProcessEntry, frozen=True, kw_only=True):
    """One supervisor as its entry has it: whoever starts the next worker, if there is none now."""

    count: int


def place_of(store: str) -> str:
    """The place of the store of that name, which a bind mount shows under other paths too."""
    if "://" in store and not store.startswith("file://"):
        return store
    path = Path(store.removeprefix("file://"))
    folder, name = (path, "") if path.is_dir() else (path.parent, path.name)
    try:
        found = folder.stat()
    except OSError:
        return store
    return f"{found.st_dev}:{found.st_ino}:{name}"


def live_workers(entries: Sequence[WorkerEntry], store: str) -> list[WorkerEntry]:
    """The workers that work on the store of this name, as far as this host can tell."""
    return [entry for entry in entries if entry.is_of(store) and not entry.is_gone]


def worker_entries(records: Sequence[Record]) -> list[WorkerEntry]:
    """The workers that the records of kind `worker` tell of, as far as they can be read."""
    return [entry for record in records if (entry := entry_of(record)) is not None]


def entry_of(record: Record) -> WorkerEntry | None:
    """The worker that it tells of; None: it was written by another version, or by a stranger."""
    try:
        return msgspec.json.decode(record.value, type=WorkerEntry)
    except msgspec.DecodeError:
        return None


def supervisor_of(record: Record) -> SupervisorEntry | None:
    """The same for the records of kind `supervisor`."""
    try:
        return msgspec.json.decode(record.value, type=SupervisorEntry)
    except msgspec.DecodeError:
        return None


def supervisor_entry(pid: int, count: int, options: WorkerOptions, clock: Clock) -> SupervisorEntry:
    """The entry of a supervisor in a process of this machine, which stops at SIGTERM."""
    birth, host = process_identity.birth_of(pid), socket.gethostname()
    return SupervisorEntry(
        name=f"{host}:{pid}:{birth}",
        host=host,
        pid=pid,
        started_at=to_datetime(clock.now()),
        lease_us=options.lease_us,
        grace_us=options.grace_us,
        machine=process_identity.machine(),
        birth=birth,
        obeys_signals=True,
        count=count,
    )


def supervisor_put(entry: SupervisorEntry, store: str, expect: int | None = None) -> PutRecord:
    """The operation that writes it to the store of this name."""
    ttl = ENTRY_LEASES * entry.lease_us + _UNHEARD_US
    value = msgspec.json.encode(msgspec.structs.replace(entry, store=store, place=place_of(store)))
    return PutRecord(SUPERVISOR, entry.name, value, expect, ttl)


def ends_us(record: Record) -> int:
    """When an entry from another host counts as gone unless it is renewed."""
    assert record.expires_us is not None
    return record.expires_us - (_UNHEARD_US if record.kind == SUPERVISOR else 0)


def dismissal(one: ProcessEntry) -> PutRecord:
    """An order to a worker to stop; the process that keeps it running does not replace it.

    Or to a supervisor, with all its workers. They look for it when they renew
    their entries, which they do every third of a lease.
    """
    ttl = ENTRY_LEASES * one.lease_us + _LATE_US
    if isinstance(one, SupervisorEntry):
        ttl += _UNHEARD_US
    return PutRecord(DISMISSAL, one.name, b"", None, ttl)


class OwnEntry:
    """A worker's own entry, as it is kept up to date."""

    def __init__(
        self,
        name: str,
        options: WorkerOptions,
        entrypoints: tuple[str, ...],
        store: Store,
        *,
        supervisor: int | None = None,
        supervisor_birth: int | None = None,
        obeys_signals: bool = False,
    ) -> None:
        self.name = name
        self.entrypoints = entrypoints
        self.is_dismissed = False
        self.is_stopping = False
        self._options = options
        self._store = store
        self._supervisor = supervisor
        self._supervisor_birth = supervisor_birth
        self._obeys_signals = obeys_signals
        self._started_at = to_datetime(store.clock.now())

    def renewal(self, running: Sequence[Job]) -> PutRecord:
        value = WorkerEntry(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            beat_at=to_datetime(self._store.clock.now()),
            concurrency=self._options.concurrency,
            queues=self._options.queues,
            entrypoints=self.entrypoints,
            running=tuple(job.id for job in running[:_JOBS_NAMED]),
            supervisor=self._supervisor,
            supervisor_birth=self._supervisor_birth,
            lease_us=self._options.lease_us,
            grace_us=self._options.grace_us,
            machine=process_identity.machine(),
            birth=process_identity.birth_of(os.getpid()),
            obeys_signals=self._obeys_signals,
            is_dismissed=self.is_dismissed,
            is_stopping=self.is_stopping,
            store=self._store.name,
            place=place_of(self._store.name),
        )
        ttl = ENTRY_LEASES * self._options.lease_us
        return PutRecord(WORKER, self.name, msgspec.json.encode(value), None, ttl)

    def removal(self) -> list[Operation]:
        """The operations that remove it, and the order that was carried out."""
        order = [DeleteRecord(DISMISSAL, self.name, None)] if self.is_dismissed else []
        return [DeleteRecord(WORKER, self.name, None), *order]
