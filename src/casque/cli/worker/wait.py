"""Waiting: until those that were told to stop have ended, as the store and the system say."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from casque.cli.output import live_note
from casque.cli.store import Access
from casque.cli.worker.fleet import Member, Post, members, posts
from casque.cli.worker.stop import Told, dismiss
from casque.errors import StorageError
from casque.queues.lineage import JOB_ID_VARIABLE
from casque.system.clock import SECOND_US, SystemClock
from casque.worker.registry import process_identity
from casque.worker.registry.entries import ENTRY_LEASES, ProcessEntry, WorkerEntry, ends_us

_LOOK_SECONDS = 0.1
_BEYOND_GRACE_US = 20 * SECOND_US
"""What a worker may take besides to give back its jobs, and its manager to notice."""


class Waited(msgspec.Struct, frozen=True):
    """Who has not ended, of those that were waited for."""

    left: list[ProcessEntry]
    silent: list[ProcessEntry]
    """Those elsewhere whose entries ran out, and were not taken away by them."""
    gone: list[Member | Post]
    """Whose entries are there though the processes are not."""


def is_waited_for(told: Told) -> bool:
    """Whether one of them waits for the job that this command is a part of."""
    job = os.environ.get(JOB_ID_VARIABLE)
    if not job:
        return False
    above = _ancestors()
    return any(job in one.running or (one.is_here and one.pid in above) for one in told.workers)


def _ancestors() -> set[int]:
    found: set[int] = set()
    pid = os.getpid()
    while pid not in found and (vitals := process_identity.vitals(pid)) is not None:
        found.add(pid)
        pid = vitals.parent
    return found


def patience_us(told: Told) -> int:
    """How long it can take until all of them have ended, if all is well."""
    graces = [entry.grace_us for entry in (*told.workers, *told.managers)]
    # One that died elsewhere is there until its entry ends.
    leases = [ENTRY_LEASES * entry.lease_us for entry in told.remote]
    return max(graces, default=0) + max(leases, default=0) + _BEYOND_GRACE_US


def wait(access: Access, told: Told, timeout_us: int | None, *, newcomers: bool) -> Waited:
    """Until their entries are gone, and the managers. Gives those that are left after `timeout_us`.

    `newcomers`: whoever takes the place of one of them meanwhile is dismissed, too.
    """
    clock = SystemClock()
    deadline = clock.monotonic() + (patience_us(told) if timeout_us is None else timeout_us)
    watch = _Watch(access, told, newcomers=newcomers)
    with live_note() as note:
        while (left := watch.look()) and clock.monotonic() < deadline:
            _tell_of(note, left)
            threading.Event().wait(_LOOK_SECONDS)
    unsure = {one.name for one in (*left, *watch.silent)}
    # A manager ends after its workers, so what it said at its end holds for them.
    ended = {(one.host, one.machine, one.pid) for one in told.managers if one.name not in unsure}
    silent = [one for one in watch.silent if _place(one) not in ended]
    return Waited(left, silent, watch.gone)


def _place(one: ProcessEntry) -> tuple[str, str, int | None]:
    """By whom it is kept running."""
    return one.host, one.machine, one.manager if isinstance(one, WorkerEntry) else None


class _Watch:
    """Looks who is still there. While the storage does not answer, the system says it."""

    def __init__(self, access: Access, told: Told, *, newcomers: bool) -> None:
        self._access = access
        self._processes = [one for one in told.managers if _is_process(one)]
        """Those that end with their processes; all others, when their entries are gone."""
        others = [one for one in told.managers if not _is_process(one)]
        self._known: dict[str, ProcessEntry] = {one.name: one for one in (*told.workers, *others)}
        """Of the others, who was there at the last look."""
        self._names = {one.name for one in (*told.workers, *told.managers)}
        self._ends_us: dict[str, int] = {}
        """When their entries run out, if they are not renewed."""
        self._places = {
            _place(one)
            for one in told.remote
            if newcomers and isinstance(one, WorkerEntry) and one.manager is not None
        }
        self._found: list[Member | Post] = []
        """Their entries, at the last look."""
        self.silent: list[ProcessEntry] = []

    @property
    def gone(self) -> list[Member | Post]:
        """Those whose entries were there at the last look though the processes are not, by now."""
        return [one for one in self._found if one.entry.is_gone]

    def look(self) -> list[ProcessEntry]:
        """The workers that are left; when there are none, the managers."""
        with suppress(StorageError):  # it may answer the next time
            self._ask()
        left = [one for one in self._known.values() if not one.is_gone]
        workers = [one for one in left if isinstance(one, WorkerEntry)]
        return [*workers] or [*left, *(one for one in self._processes if not one.is_gone)]

    def _ask(self) -> None:
        workers = members(self._access)
        for worker in (one.entry for one in workers if one.entry.name not in self._names):
            if _place(worker) in self._places:
                self._names.add(worker.name)
                dismiss(self._access, worker)
        found: list[Member | Post] = [*workers, *posts(self._access)]
        ours = {one.entry.name: one for one in found if one.entry.name in self._names}
        self._found = list(ours.values())
        now = self._access.store.clock.now()
        for name, entry in self._known.items():
            # One that is well renews its entry long before, and takes it away when it ends.
            has_run_out = name not in ours and self._ends_us.get(name, now + 1) <= now
            if has_run_out and not entry.is_gone:
                self.silent.append(entry)
        self._known = {name: one.entry for name, one in ours.items() if not _is_process(one.entry)}
        self._ends_us = {
            name: ends_us(one.record) - one.entry.lease_us // 2 for name, one in ours.items()
        }


def _is_process(one: ProcessEntry) -> bool:
    """Whether it is a manager here, in a process of its own."""
    return not isinstance(one, WorkerEntry) and one.is_here and one.obeys_signals


def _tell_of(note: Callable[[str], None], left: Sequence[ProcessEntry]) -> None:
    workers = [one for one in left if isinstance(one, WorkerEntry)]
    jobs = sum(len(entry.running) for entry in workers)
    note(f"Stopping: {len(workers)} worker(s) left, with {jobs} job(s) to finish…")
