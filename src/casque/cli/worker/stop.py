"""Stopping: workers told to stop: by a signal when they are here, else through the store."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence

import msgspec

from casque.cli.output import complain
from casque.cli.store import Access
from casque.cli.worker.fleet import Member, Post, named
from casque.errors import StorageError
from casque.rules.operations import DeleteRecord
from casque.worker.registry import process_identity
from casque.worker.registry.entries import ManagerEntry, ProcessEntry, WorkerEntry, dismissal


class Meant(msgspec.Struct, frozen=True):
    """Who is to stop."""

    workers: list[Member]
    managers: list[ManagerEntry]
    gone: list[Member | Post]
    """Those that died without a word."""
    unknown: list[int]
    """The numbers that nobody has."""


class Told(msgspec.Struct, frozen=True):
    """Who was told to stop, and how."""

    workers: list[WorkerEntry]
    managers: list[ManagerEntry]
    remote: list[ProcessEntry]
    """Those that find out from the store."""

    @property
    def entries(self) -> list[ProcessEntry]:
        """The workers, and the managers that have none of them."""
        kept = {(one.host, one.machine, one.manager) for one in self.workers}
        alone = [one for one in self.managers if (one.host, one.machine, one.pid) not in kept]
        return [*self.workers, *alone]


def chosen(
    found: Sequence[Member], there: Sequence[Post], pids: Collection[int], *, everywhere: bool
) -> Meant:
    """Which are meant: those of these numbers, or all; and the numbers that nobody has."""
    workers = [one for one in found if everywhere or one.entry.is_here]
    managers = [one.entry for one in there if everywhere or one.entry.is_here]
    managers += _unregistered(workers, managers)
    unknown: list[int] = []
    if pids:
        known = {pid for one in workers for pid in pids_of(one.entry)}
        known |= {one.pid for one in managers}
        unknown = [pid for pid in pids if pid not in known]
        workers = [one for one in workers if pids_of(one.entry) & set(pids)]
        managers = [one for one in managers if one.pid in pids]
    gone: list[Member | Post] = [one for one in workers if one.entry.is_gone]
    gone += [one for one in there if one.entry in managers and one.entry.is_gone]
    return Meant(
        workers=[one for one in workers if one not in gone],
        managers=[one for one in managers if not one.is_gone],
        gone=gone,
        unknown=unknown,
    )


def _unregistered(
    workers: Sequence[Member], managers: Sequence[ManagerEntry]
) -> list[ManagerEntry]:
    """The managers here that only the entries of workers tell of, be these gone or not."""
    known = {(one.pid, one.birth) for one in managers if one.is_here}
    found: dict[tuple[int, int], ManagerEntry] = {}
    for entry in (one.entry for one in workers):
        if entry.manager is None or entry.manager_birth is None or not entry.is_here:
            continue
        key = entry.manager, entry.manager_birth
        if key not in known:
            found[key] = ManagerEntry(
                name=f"{entry.host}:{entry.manager}:{entry.manager_birth}",
                host=entry.host,
                pid=entry.manager,
                started_at=entry.started_at,
                lease_us=entry.lease_us,
                grace_us=entry.grace_us,
                machine=entry.machine,
                birth=entry.manager_birth,
                obeys_signals=True,
                count=0,
            )
    return list(found.values())


def unknown_told(unknown: Sequence[int], entries: Sequence[WorkerEntry]) -> str:
    """That nobody has these numbers, and who there is."""
    whose = ", ".join(map(str, unknown))
    here = [entry for entry in entries if entry.is_here]
    if not here:
        return f"no worker on this host has the PID {whose}; none is registered in this store."
    managers = sorted({entry.manager for entry in here if entry.manager is not None})
    under = f" (managers: {', '.join(map(str, managers))})" if managers else ""
    return f"no worker on this host has the PID {whose}; there are {named(here)}{under}."


def pids_of(entry: WorkerEntry) -> set[int]:
    """By which numbers it can be named: its own and its manager's."""
    return {entry.pid} if entry.manager is None else {entry.pid, entry.manager}


def clear_away(access: Access, gone: Sequence[Member | Post]) -> None:
    """Remove the entries of those that died without a word, if the storage lets us."""
    for one in gone:
        try:
            access.submit(DeleteRecord(one.record.kind, one.record.name, None))
        except StorageError as error:
            complain(f"note: what has ended is still registered, and will not be for long: {error}")
            return


def tell(access: Access, meant: Meant, singly: Collection[int] = ()) -> Told:
    """Have them stop; those in `singly` by themselves, and not be replaced.

    Signals first: they need no storage.
    """
    workers = [one.entry for one in meant.workers]
    signalled = {one.pid for one in meant.managers if _sent(one)}
    by_store: list[ProcessEntry] = [
        one for one in meant.managers if not (one.is_here and one.pid in signalled)
    ]
    for entry in workers:
        if entry.is_here and entry.manager in signalled and entry.pid not in singly:
            continue
        # Who is kept running by another would be replaced, unless it is dismissed.
        if entry.manager is None and _sent(entry):
            continue
        by_store.append(entry)
    remote: list[ProcessEntry] = []
    for one in by_store:
        dismiss(access, one)
        if not _sent(one):
            remote.append(one)
    return Told(workers, meant.managers, remote)


def _sent(one: ProcessEntry) -> bool:
    """Whether it was sent a signal, which stops it."""
    is_fit = one.is_here and one.obeys_signals
    return is_fit and process_identity.send(one.pid, one.birth, signal.SIGTERM)


def dismiss(access: Access, one: ProcessEntry) -> None:
    """Leave the order to stop in the store."""
    access.submit(dismissal(one))
