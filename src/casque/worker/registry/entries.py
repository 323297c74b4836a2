"""Entries: the registered workers and supervisors of a store. An entry expires unless renewed.

An entry is an ephemeral record, which only its owner writes. Orders to a worker
are records of another kind, which the worker reads after each renewal and when the store rings.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from casque.job import Job
from casque.record import DISMISSAL, SUPERVISOR, WORKER, Record
from casque.rules.operations import DeleteRecord, Operation, PutRecord
from casque.stores.port import Priced, Store
from casque.system.clock import DAY_US, SECOND_US, Clock, to_datetime
from casque.worker.options import DEFAULT_GRACE_US, DEFAULT_LEASE_US, WorkerOptions
from casque.worker.registry import process_identity

_ENTRY_SPANS = 2
"""After how many times its `fresh_us` an entry expires if it is not renewed."""
_UNHEARD_US = DAY_US
"""How much later the entry of a supervisor expires: on its own host, `worker stop` finds it even if
the storage has taken no write for a while."""
_LATE_US = 10 * SECOND_US
"""How much later than an entry a dismissal expires, for a worker that was delayed."""
_JOBS_NAMED = 100


class ProcessEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A registered process."""

    name: str
    host: str
    pid: int
    started_at: datetime
    lease_us: int = DEFAULT_LEASE_US
    presence_us: int | None = None
    """How often the entry is renewed; None: three times per lease."""
    grace_us: int = DEFAULT_GRACE_US
    machine: str = ""
    birth: int | None = None
    """`machine` and `birth` show which process `pid` is: see `process_identity`."""
    obeys_signals: bool = False
    """True if SIGTERM stops it; for a worker on a thread, it would end the whole program."""
    is_dismissed: bool = False
    """True if it was asked to stop, and is not replaced."""
    store: str = ""
    """The name of the store that it was written to."""
    place: str = ""
    """The `place_of` that store."""

    def is_of(self, store: str) -> bool:
        """False if this store is a copy, and the process of the entry uses the original.

        True for other hosts, where the same store may have another name.
        """
        return not self.is_here or self.store == store or self.place == place_of(store)

    @property
    def fresh_us(self) -> int:
        """How old the last renewal of a process is at most while it and its storage work."""
        return self.lease_us if self.presence_us is None else self.presence_us * 3 // 2

    @property
    def ttl_us(self) -> int:
        """How long after its last renewal the entry expires."""
        return _ENTRY_SPANS * self.fresh_us

    @property
    def process(self) -> tuple[str, str, int]:
        """Identifies the process among those of all hosts."""
        return self.host, self.machine, self.pid

    @property
    def is_here(self) -> bool:
        """True if it runs on this host, in our PID namespace."""
        return self.host == socket.gethostname() and self.machine == process_identity.machine()

    @property
    def is_gone(self) -> bool:
        """True if its process, on this host, has ended. Always False for other hosts."""
        return self.is_here and process_identity.has_ended(self.pid, self.birth)


class WorkerEntry(ProcessEntry, frozen=True, kw_only=True):
    """One worker as of its last renewal."""

    beat_at: datetime
    concurrency: int
    queues: tuple[str, ...] | None
    """None: all of them."""
    entrypoints: tuple[str, ...]
    running: tuple[str, ...]
    """The ids of the jobs that it holds, or the first hundred of them."""
    supervisor: int | None = None
    """The process that keeps it running; None: there is none."""
    supervisor_birth: int | None = None
    """When that process started; None if nobody may send it signals."""
    is_stopping: bool = False
    """True if it claims no more jobs and ends after those that it holds."""

    @property
    def supervisor_process(self) -> tuple[str, str, int | None]:
        """The `process` of its supervisor."""
        return self.host, self.machine, self.supervisor


class SupervisorEntry(ProcessEntry, frozen=True, kw_only=True):
    """One supervisor. Even if it has no worker now, it may start one soon."""


E = TypeVar("E", bound=ProcessEntry)


def place_of(store: str) -> str:
    """Return an id of the storage, the same for all paths to it, such as bind mounts."""
    if "://" in store and not store.startswith("file://"):
        return store
    path = Path(store.removeprefix("file://"))
    folder, name = (path, "") if path.is_dir() else (path.parent, path.name)
    try:
        found = folder.stat()
    except OSError:
        return store
    return f"{found.st_dev}:{found.st_ino}:{name}"


def worker_entries(records: Sequence[Record]) -> list[WorkerEntry]:
    """The workers in records of kind `worker`; records that cannot be decoded are left out."""
    return [entry for one in records if (entry := entry_of(one, WorkerEntry)) is not None]


def entry_of(record: Record, kind: type[E]) -> E | None:
    """The entry in a record; None if another version or another program wrote it."""
    try:
        return msgspec.json.decode(record.value, type=kind)
    except msgspec.DecodeError:
        return None


def supervisor_entry(pid: int, options: WorkerOptions, clock: Clock) -> SupervisorEntry:
    """Return the entry of a supervisor process on this machine, which stops at SIGTERM."""
    process = _registered(pid, options, clock)
    name = f"{process['host']}:{pid}:{process['birth']}"
    return SupervisorEntry(name=name, obeys_signals=True, **process)


def _registered(pid: int, options: WorkerOptions, clock: Clock) -> dict[str, Any]:
    """The fields that every entry of a process on this machine has."""
    return {
        "host": socket.gethostname(),
        "pid": pid,
        "started_at": to_datetime(clock.now()),
        "lease_us": options.lease_us,
        "grace_us": options.grace_us,
        "machine": process_identity.machine(),
        "birth": process_identity.birth_of(pid),
    }


def supervisor_put(entry: SupervisorEntry, store: Store) -> PutRecord:
    """Return the operation that writes the entry to this store."""
    value = msgspec.structs.replace(
        entry,
        store=store.name,
        place=place_of(store.name),
        presence_us=presence_us_of(store),
    )
    ttl = value.ttl_us + _UNHEARD_US
    return PutRecord(SUPERVISOR, entry.name, msgspec.json.encode(value), None, ttl)


def presence_us_of(store: Store) -> int | None:
    """Return how often a process renews its entry there; None: three times per lease."""
    return store.presence_us if isinstance(store, Priced) else None


def ends_us(record: Record) -> int:
    """Return when a process on another host counts as gone, unless it renews its entry."""
    assert record.expires_us is not None
    return record.expires_us - (_UNHEARD_US if record.kind == SUPERVISOR else 0)


def dismissal(one: ProcessEntry) -> PutRecord:
    """Return an order to a worker to stop for good, or to a supervisor to stop with its workers.

    Both look for it when they have renewed their entries. A worker also looks when the store rings.
    """
    ttl = one.ttl_us + _LATE_US
    if isinstance(one, SupervisorEntry):
        ttl += _UNHEARD_US
    return PutRecord(DISMISSAL, one.name, b"", None, ttl)


class OwnEntry:
    """A worker's own entry, kept up to date."""

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
        self._store = store
        self.initial = WorkerEntry(
            name=name,
            beat_at=to_datetime(store.clock.now()),
            concurrency=options.concurrency,
            queues=options.queues,
            entrypoints=entrypoints,
            running=(),
            supervisor=supervisor,
            supervisor_birth=supervisor_birth,
            obeys_signals=obeys_signals,
            store=store.name,
            presence_us=presence_us_of(store),
            **_registered(os.getpid(), options, store.clock),
        )

    def renewal(self, running: Sequence[Job]) -> PutRecord:
        value = msgspec.structs.replace(
            self.initial,
            host=socket.gethostname(),
            beat_at=to_datetime(self._store.clock.now()),
            running=tuple(job.id for job in running[:_JOBS_NAMED]),
            is_dismissed=self.is_dismissed,
            is_stopping=self.is_stopping,
            place=place_of(self._store.name),
        )
        return PutRecord(WORKER, self.name, msgspec.json.encode(value), None, value.ttl_us)

    def removal(self) -> list[Operation]:
        """The operations that delete the entry, and the dismissal if it was obeyed."""
        order = [DeleteRecord(DISMISSAL, self.name, None)] if self.is_dismissed else []
        return [DeleteRecord(WORKER, self.name, None), *order]
