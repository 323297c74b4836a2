"""Fleet: the workers and supervisors that are registered in a store, as commands show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec.structs import replace

from casque.cli.output import JsonObject, add_row, complain, names, print_table, table, utc_time
from casque.cli.store import Access
from casque.record import DISMISSAL, SUPERVISOR, WORKER
from casque.rules.views import JobFilter
from casque.system.clock import SECOND_US, SystemClock, to_us
from casque.system.terminal_text import plain
from casque.worker.registry.entries import (
    ProcessEntry,
    SupervisorEntry,
    WorkerEntry,
    ends_us,
    entry_of,
)

_JOBS_LOOKED_AT = 10_000


class Health(msgspec.Struct, frozen=True):
    """The result of `worker check`. Keep the field names: `--json` prints them."""

    is_healthy: bool
    workers: list[int]
    """The PIDs of the workers that are alive and beating."""
    message: str


# -- reading -----------------------------------------------------------------------


def registered_workers(access: Access) -> list[WorkerEntry]:
    """All workers with an entry, sorted by host, supervisor and PID."""
    found: list[WorkerEntry] = []
    dismissed = {one.name for one in access.records(DISMISSAL)}
    for record in access.records(WORKER):
        entry = entry_of(record, WorkerEntry)
        if entry is None:
            _warn_once(f"note: cannot read the entry of worker {record.name}; it is not shown.")
        elif _is_ours(access, entry):
            is_dismissed = entry.is_dismissed or entry.name in dismissed
            found.append(replace(entry, is_dismissed=is_dismissed))
    return sorted(found, key=lambda one: (one.host, one.supervisor or 0, one.pid))


def registered_supervisors(access: Access) -> list[SupervisorEntry]:
    """All supervisors with an entry, even those without workers.

    A supervisor on this host is included even if its entry has expired.
    """
    return [one for one, is_silent in _supervisors(access) if one.is_here or not is_silent]


def warn_of_silent_supervisors(access: Access) -> None:
    """Warn of the supervisors that run on this host but have not renewed their entries in time."""
    silent = [one for one, is_silent in _supervisors(access) if is_silent and one.is_here]
    if running := [one for one in silent if not one.is_gone]:
        complain(
            f"note: supervisor {named(running)} on this host has not renewed its entry in time, "
            "nor have its workers: the storage takes no writes from them. See their log; "
            "`queuectl worker stop` stops them."
        )


def _supervisors(access: Access) -> Iterator[tuple[SupervisorEntry, bool]]:
    """Yield each supervisor, and True if it has not renewed its entry in time."""
    now = access.store.clock.now()
    for record in access.records(SUPERVISOR):
        entry = entry_of(record, SupervisorEntry)
        if entry is not None and _is_ours(access, entry):
            yield entry, ends_us(record) <= now


def _is_ours(access: Access, entry: ProcessEntry) -> bool:
    if entry.is_of(access.store.name):
        return True
    _warn_once(
        f"note: process {entry.pid} works on {plain(entry.store)}, not on this store, which holds "
        "a copy of its entry. To list or stop it, pass that address with --store."
    )
    return False


@lru_cache
def _warn_once(message: str) -> None:
    complain(message)


def running_by(access: Access) -> dict[str, list[str]]:
    """Map worker names to ids of claimed jobs, read now: the entries of workers are older."""
    found: dict[str, list[str]] = {}
    for job in access.jobs(JobFilter("processing"), limit=_JOBS_LOOKED_AT):
        found.setdefault(job.worker or "", []).append(job.id)
    return found


# -- showing -----------------------------------------------------------------------


def worker_object(entry: WorkerEntry, running: Sequence[str]) -> JsonObject:
    """A worker in the output of `--json`: these keys do not change."""
    return {
        "name": entry.name,
        "host": entry.host,
        "pid": entry.pid,
        "manager": entry.supervisor,
        "queues": entry.queues,
        "entrypoints": entry.entrypoints,
        "concurrency": entry.concurrency,
        "running": running,
        "started_at": utc_time(to_us(entry.started_at)),
        "beat_at": utc_time(to_us(entry.beat_at)),
        "lease_seconds": entry.lease_us / SECOND_US,
        "state": _state_of(entry),
    }


def print_workers(entries: Sequence[WorkerEntry], running: Mapping[str, Sequence[str]]) -> None:
    """Print a table with a row for each worker. `running` holds job ids by worker name."""
    now = SystemClock().now()
    made = table(
        "Workers", "#PID", "Host", "#Supervisor", "Queues", "Running", "Started", "Last beat"
    )
    for entry in entries:
        state = _state_of(entry)
        add_row(
            made,
            entry.pid,
            entry.host,
            "-" if entry.supervisor is None else entry.supervisor,
            "all" if entry.queues is None else names(entry.queues),
            f"{len(running.get(entry.name, ()))} of {entry.concurrency}",
            ago(max(now - to_us(entry.started_at), 0)),
            ago(_age_us(entry, now)) if state == "working" else state,
        )
    print_table(made)


def health_of(access: Access, max_age_us: int | None) -> Health:
    """Check this host's workers. A last beat may be `max_age_us` old; by default, `fresh_us`."""
    now = SystemClock().now()
    entries = registered_workers(access)
    here = [entry for entry in entries if entry.is_here]
    alive = [entry for entry in here if not entry.is_gone]
    beating = [
        entry
        for entry in alive
        if _age_us(entry, now) <= (entry.fresh_us if max_age_us is None else max_age_us)
    ]
    last = ago(min((_age_us(entry, now) for entry in beating or alive), default=0))
    if beating:
        pids = [entry.pid for entry in beating]
        message = f"{len(beating)} worker(s) are healthy: {named(beating)}; last beat {last}."
        return Health(is_healthy=True, workers=pids, message=message)
    if alive:
        message = f"no worker is beating: {named(alive)}; last beat {last}."
    elif here:
        message = f"the workers of this host have died: {named(here)}."
    elif access.is_absent:
        message = f"there is no queue at {access.store.name}."
    else:
        others = f"; {len(entries)} elsewhere" if entries else ""
        message = f"no worker of this host is registered in this store{others}."
    return Health(is_healthy=False, workers=[], message=message)


def _state_of(entry: WorkerEntry) -> Literal["working", "stopping", "gone"]:
    if entry.is_gone:
        return "gone"
    return "stopping" if entry.is_dismissed or entry.is_stopping else "working"


def _age_us(entry: WorkerEntry, now: int) -> int:
    """Return the time since the worker's last heartbeat."""
    return max(now - to_us(entry.beat_at), 0)


def ago(us: int) -> str:
    """Return a duration in one unit, for people."""
    seconds = us // SECOND_US
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit} ago"
    return f"{seconds}s ago"


def named(entries: Sequence[ProcessEntry]) -> str:
    """Return the PIDs as text, such as `12, 34 on other-host`."""
    return ", ".join(
        str(entry.pid) if entry.is_here else f"{entry.pid} on {plain(entry.host)}"
        for entry in entries
    )
