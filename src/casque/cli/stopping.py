"""Stopping: workers told to stop: by a signal when they are here, else through the store."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Sequence

import msgspec

from casque.cli.access import Access
from casque.cli.exits import complain
from casque.cli.fleet import Member, members, named
from casque.cli.note import live_note
from casque.clock import SECOND_US, SystemClock
from casque.errors import CASConflictError
from casque.operations import DeleteRecord
from casque.record import WORKER, Record
from casque.worker import presence
from casque.worker.registry import ENTRY_LEASES, WorkerEntry, dismissal

_LOOK_SECONDS = 0.1
_BEYOND_GRACE_US = 20 * SECOND_US
"""What a worker may take besides to give back its jobs, and its manager to notice."""
_TRIES = 50


class Told(msgspec.Struct, frozen=True):
    """Who was told to stop, and how."""

    entries: list[WorkerEntry]
    managers: list[tuple[int, int]]
    """Those that were sent a signal: the number and the birth of each."""
    remote: list[WorkerEntry]
    """Those that find out from the store."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of it."""

    told: list[WorkerEntry]
    gone: list[WorkerEntry]
    """Those that had died before."""
    left: list[WorkerEntry] | None
    """Of those that were told to stop, who has not ended; None: nobody has waited for it."""
    others: list[WorkerEntry]
    """Who was not meant."""

    @property
    def stopped(self) -> list[WorkerEntry]:
        names = {entry.name for entry in self.left or ()}
        return [] if self.left is None else [one for one in self.told if one.name not in names]

    def as_json(self) -> dict[str, list[dict[str, object]]]:
        def plain(entries: Sequence[WorkerEntry]) -> list[dict[str, object]]:
            return [{"name": one.name, "host": one.host, "pid": one.pid} for one in entries]

        told = self.told if self.left is None else self.left
        return {"stopped": plain(self.stopped), "gone": plain(self.gone), "left": plain(told)}

    def tell(self) -> None:
        """On stdout what was done, and on stderr what was not."""
        if not self.told and not self.gone:
            print("No workers are running.")
            if self.others:
                print(f"Elsewhere there are {named(self.others)}: stop those with --all.")
        if self.gone:
            print(f"Removed {len(self.gone)} worker(s) that had died: {named(self.gone)}.")
        if self.stopped:
            print(f"Stopped {len(self.stopped)} worker(s): {named(self.stopped)}.")
        if self.left is None and self.told:
            print(f"Told {len(self.told)} worker(s) to stop: {named(self.told)}.")
        if self.left:
            complain(
                f"{len(self.left)} worker(s) have not ended yet: {named(self.left)}. They still "
                "stop when their jobs end or their grace is over; see `queuectl worker list`."
            )


def chosen(
    found: Sequence[Member], pids: Collection[int], *, everywhere: bool
) -> tuple[list[Member], list[int]]:
    """Which are meant: those of these numbers, or all; and the numbers that nobody has."""
    if everywhere:
        return list(found), []
    here = [one for one in found if one.entry.is_here]
    if not pids:
        return here, []
    known = {pid for one in here for pid in pids_of(one.entry)}
    meant = [one for one in here if pids_of(one.entry) & set(pids)]
    return meant, [pid for pid in pids if pid not in known]


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


def clear_away(access: Access, gone: Sequence[Member]) -> None:
    """Remove the entries of workers that died without a word."""
    for one in gone:
        try:
            access.submit(DeleteRecord(WORKER, one.record.name, one.record.version))
        except CASConflictError:
            continue  # removed meanwhile


def tell(access: Access, meant: Sequence[Member], singly: Collection[int] = ()) -> Told:
    """Have them stop; those in `singly` by themselves, and not be replaced."""
    entries = [one.entry for one in meant]
    managers: dict[int, int] = {}
    remote: list[WorkerEntry] = []
    for entry in entries:
        vitals = presence.vitals(entry.pid) if entry.is_here else None
        # Who is a worker's parent is its manager still, and not another of the same number.
        manager = entry.manager if vitals and vitals.parent == entry.manager else None
        if entry.pid in singly or vitals is None or vitals.birth != entry.birth:
            dismiss(access, entry.name)
            if not (vitals and presence.send(entry.pid, entry.birth, signal.SIGTERM)):
                remote.append(entry)
        elif manager in managers:
            continue
        elif manager is not None and (birth := _sent(manager)) is not None:
            managers[manager] = birth
        elif manager is not None or not presence.send(entry.pid, entry.birth, signal.SIGTERM):
            dismiss(access, entry.name)
            remote.append(entry)
    return Told(entries, list(managers.items()), remote)


def _sent(manager: int) -> int | None:
    """The birth of a manager that was sent a signal; None when it could not be."""
    vitals = presence.vitals(manager)
    if vitals is None or not presence.send(manager, vitals.birth, signal.SIGTERM):
        return None
    return vitals.birth


def dismiss(access: Access, name: str) -> None:
    """Write into a worker's entry that it is to stop, while the worker itself writes there too."""
    for _ in range(_TRIES):
        record = _record(access, name)
        if record is None or msgspec.json.decode(record.value, type=WorkerEntry).is_dismissed:
            return
        try:
            access.submit(dismissal(record))
        except CASConflictError:
            continue
        return
    raise CASConflictError(f"the entry of worker {name} changes all the time; try again.")


def _record(access: Access, name: str) -> Record | None:
    return next((one for one in access.records(WORKER) if one.name == name), None)


def patience_us(told: Told) -> int:
    """How long it can take until all of them have ended, if all is well."""
    graces = [entry.grace_us for entry in told.entries]
    # One that died elsewhere is there until its entry ends.
    leases = [ENTRY_LEASES * entry.lease_us for entry in told.remote]
    return max(graces, default=0) + max(leases, default=0) + _BEYOND_GRACE_US


def wait(
    access: Access, told: Told, timeout_us: int | None, *, newcomers: bool
) -> list[WorkerEntry]:
    """Until their entries are gone, and the managers. Gives those that are left after `timeout_us`.

    `newcomers`: whoever takes the place of one of them meanwhile is dismissed, too.
    """
    clock = SystemClock()
    deadline = clock.monotonic() + (patience_us(told) if timeout_us is None else timeout_us)
    names = {entry.name for entry in told.entries}
    posts = {(one.host, one.machine, one.manager) for one in told.remote if one.manager is not None}
    with live_note() as note:
        while True:
            found = members(access)
            for one in found if newcomers else ():
                entry = one.entry
                if (entry.host, entry.machine, entry.manager) in posts and entry.name not in names:
                    names.add(entry.name)
                    dismiss(access, entry.name)
            left = [one for one in found if one.entry.name in names]
            clear_away(access, [one for one in left if one.entry.is_gone])
            left = [one for one in left if not one.entry.is_gone]
            if not left and all(presence.has_ended(*one) for one in told.managers):
                return []
            if clock.monotonic() >= deadline:
                return [one.entry for one in left]
            _tell_of(note, [one.entry for one in left])
            threading.Event().wait(_LOOK_SECONDS)


def _tell_of(note: Callable[[str], None], left: list[WorkerEntry]) -> None:
    jobs = sum(len(entry.running) for entry in left)
    note(f"Stopping: {len(left)} worker(s) left, with {jobs} job(s) to finish…")
