"""Fleet: the workers of a store as a command sees them, and how they are told and shown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from casque.cli.access import Access
from casque.cli.asjson import instant
from casque.cli.exits import complain
from casque.clock import SECOND_US, to_us
from casque.record import MANAGER, WORKER, Record
from casque.wording import plain
from casque.worker.registry import ManagerEntry, ProcessEntry, WorkerEntry, entry_of, manager_of


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
    for record in access.records(WORKER):
        entry = entry_of(record)
        if entry is None:
            _tell_of_unreadable(record.name)
        else:
            found.append(Member(record, entry))
    return sorted(found, key=lambda one: (one.entry.host, one.entry.manager or 0, one.entry.pid))


def posts(access: Access) -> list[Post]:
    """The managers that are registered, with workers or without."""
    found = ((record, manager_of(record)) for record in access.records(MANAGER))
    return [Post(record, entry) for record, entry in found if entry is not None]


@lru_cache
def _tell_of_unreadable(name: str) -> None:
    """Once, however often it is found."""
    complain(f"note: the entry of worker {name} cannot be read, and is left out.")


def state_of(entry: WorkerEntry) -> Literal["working", "stopping", "gone"]:
    if entry.is_gone:
        return "gone"
    return "stopping" if entry.is_dismissed else "working"


def view_of(entry: WorkerEntry) -> WorkerView:
    return WorkerView(
        name=entry.name,
        host=entry.host,
        pid=entry.pid,
        manager=entry.manager,
        queues=None if entry.queues is None else list(entry.queues),
        entrypoints=list(entry.entrypoints),
        concurrency=entry.concurrency,
        running=list(entry.running),
        started_at=str(instant(to_us(entry.started_at))),
        beat_at=str(instant(to_us(entry.beat_at))),
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
