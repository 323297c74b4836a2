"""Fleet: the workers of a store as a command sees them, and how they are told and shown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from casque.cli.output import complain, utc_time
from casque.cli.store import Access
from casque.record import DISMISSAL, MANAGER, WORKER, Record
from casque.rules.views import JobFilter
from casque.system.clock import SECOND_US, to_us
from casque.system.terminal_text import plain
from casque.worker.registry.entries import (
    ManagerEntry,
    ProcessEntry,
    WorkerEntry,
    ends_us,
    entry_of,
    manager_of,
)

_JOBS_LOOKED_AT = 10_000


class Member(NamedTuple):
    """A worker, and the record that tells of it."""

    record: Record
    entry: WorkerEntry


class Post(NamedTuple):
    """A manager, and the record that tells of it."""

    record: Record
    entry: ManagerEntry


class WorkerView(msgspec.Struct, frozen=True):
    """A worker as `--json` has it: these keys stay."""

    name: str
    host: str
    pid: int
    manager: int | None
    queues: list[str] | None
    entrypoints: list[str]
    concurrency: int
    running: list[str]
    started_at: str
    beat_at: str
    lease_seconds: float
    state: Literal["working", "stopping", "gone"]


def members(access: Access) -> list[Member]:
    """All that are registered, those of one host and manager beside each other."""
    found: list[Member] = []
    dismissed = {one.name for one in access.records(DISMISSAL)}
    for record in access.records(WORKER):
        entry = entry_of(record)
        if entry is None:
            _tell_of_unreadable(record.name)
        elif _is_ours(access, entry):
            is_dismissed = entry.is_dismissed or entry.name in dismissed
            found.append(Member(record, replace(entry, is_dismissed=is_dismissed)))
    return sorted(found, key=lambda one: (one.entry.host, one.entry.manager or 0, one.entry.pid))


def posts(access: Access) -> list[Post]:
    """The managers that are registered, with workers or without.

    One on this host is there while its process is, be it heard of or not.
    """
    now = access.store.clock.now()
    found = ((record, manager_of(record)) for record in access.records(MANAGER))
    return [
        Post(record, entry)
        for record, entry in found
        if entry is not None
        and _is_ours(access, entry)
        and (entry.is_here or ends_us(record) > now)
    ]


def warn_of_silent_supervisors(access: Access) -> None:
    """Of the managers here that run, though they have not renewed their entries in time."""
    now = access.store.clock.now()
    managers = [
        one.entry for one in posts(access) if ends_us(one.record) <= now and not one.entry.is_gone
    ]
    if managers:
        complain(
            f"note: on this host runs a manager ({named(managers)}) that was not heard of for two "
            "leases, nor were its workers: the storage takes no writes from them. See their log; "
            "`queuectl worker stop` stops them."
        )


def _is_ours(access: Access, entry: ProcessEntry) -> bool:
    if entry.is_of(access.store.name):
        return True
    _tell_of_copied(entry.pid, entry.store)
    return False


@lru_cache
def _tell_of_copied(pid: int, store: str) -> None:
    complain(
        f"note: {pid} belongs to a worker of {plain(store)}, and not of this store, which holds a "
        "copy of its entry. Name that store to see it or to stop it."
    )


@lru_cache
def _tell_of_unreadable(name: str) -> None:
    """Once, however often it is found."""
    complain(f"note: the entry of worker {name} cannot be read, and is left out.")


def state_of(entry: WorkerEntry) -> Literal["working", "stopping", "gone"]:
    if entry.is_gone:
        return "gone"
    return "stopping" if entry.is_dismissed or entry.is_stopping else "working"


def running_by(access: Access) -> dict[str, list[str]]:
    """By the name of a worker, what it has claimed and not ended: its entry would be older."""
    found: dict[str, list[str]] = {}
    for job in access.jobs(JobFilter("processing"), limit=_JOBS_LOOKED_AT):
        found.setdefault(job.worker or "", []).append(job.id)
    return found


def view_of(entry: WorkerEntry, running: Sequence[str]) -> WorkerView:
    return WorkerView(
        name=entry.name,
        host=entry.host,
        pid=entry.pid,
        manager=entry.manager,
        queues=None if entry.queues is None else list(entry.queues),
        entrypoints=list(entry.entrypoints),
        concurrency=entry.concurrency,
        running=list(running),
        started_at=str(utc_time(to_us(entry.started_at))),
        beat_at=str(utc_time(to_us(entry.beat_at))),
        lease_seconds=entry.lease_us / SECOND_US,
        state=state_of(entry),
    )


def age_us(entry: WorkerEntry, now: int) -> int:
    """How long ago it was last heard of."""
    return max(now - to_us(entry.beat_at), 0)


def ago(us: int) -> str:
    """A span for people, in one unit."""
    seconds = us // SECOND_US
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit} ago"
    return f"{seconds}s ago"


def named(entries: Sequence[ProcessEntry]) -> str:
    """Their PIDs, with the host of those that are elsewhere."""
    return ", ".join(
        str(entry.pid) if entry.is_here else f"{entry.pid} on {plain(entry.host)}"
        for entry in entries
    )
