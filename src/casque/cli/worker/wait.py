"""Wait: until the processes that were told to stop have ended, as the store and the system say."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

from casque.cli.output import live_note
from casque.cli.store import Access
from casque.cli.worker.fleet import registered_workers
from casque.cli.worker.stop import Targets
from casque.errors import StorageError
from casque.queues.lineage import JOB_ID_VARIABLE
from casque.record import SUPERVISOR, WORKER
from casque.system.clock import SECOND_US, SystemClock
from casque.worker.registry import process_identity
from casque.worker.registry.entries import (
    ENTRY_LEASES,
    ProcessEntry,
    WorkerEntry,
    dismissal,
    ends_us,
)

_LOOK_SECONDS = 0.1
_BEYOND_GRACE_US = 20 * SECOND_US
"""The time besides the grace to give back jobs, and for the supervisor to notice the end."""


class Waited(NamedTuple):
    """How the wait ended."""

    left: list[ProcessEntry]
    """Those that are not known to have ended."""
    dead: list[ProcessEntry]
    """Those that have ended, and whose entries are still there."""


def is_inside_job(targets: Targets) -> bool:
    """True when one of the workers runs the job that this command is a part of."""
    job = os.environ.get(JOB_ID_VARIABLE)
    if not job:
        return False
    above: set[int] = set()
    pid = os.getpid()
    while pid not in above and (vitals := process_identity.vitals(pid)) is not None:
        above.add(pid)
        pid = vitals.parent
    return any(job in one.running or (one.is_here and one.pid in above) for one in targets.workers)


def wait(
    access: Access,
    targets: Targets,
    by_store: Sequence[ProcessEntry],
    timeout_us: int | None,
    *,
    everywhere: bool,
) -> Waited:
    """Wait until all have ended, at most `timeout_us`, else as long as they may take.

    With `everywhere`, a worker that replaces one on another host meanwhile is dismissed too.
    """
    clock = SystemClock()
    if timeout_us is None:
        graces = [one.grace_us for one in (*targets.workers, *targets.supervisors)]
        # The entry of one that died on another host is there until it runs out.
        leases = [ENTRY_LEASES * one.lease_us for one in by_store]
        timeout_us = max(graces, default=0) + max(leases, default=0) + _BEYOND_GRACE_US
    deadline = clock.monotonic() + timeout_us
    watch = _Watch(access, targets, by_store if everywhere else ())
    with live_note() as note:
        while (left := watch.look()) and clock.monotonic() < deadline:
            note(f"Stopping: {len(left)} process(es) left…")
            threading.Event().wait(_LOOK_SECONDS)
    # A supervisor ends after its workers: once it is known to have ended, so are they.
    unsure = {*watch.left, *(one.name for one in watch.silent)}
    ended = {(s.host, s.machine, s.pid) for s in targets.supervisors if s.name not in unsure}
    silent = [one for one in watch.silent if _supervisor_of(one) not in ended]
    return Waited([*left, *silent], watch.dead())


def _supervisor_of(one: ProcessEntry) -> tuple[str, str, int | None]:
    return one.host, one.machine, one.supervisor if isinstance(one, WorkerEntry) else None


class _Watch:
    """Looks which processes are left.

    A process has ended when it has taken its entry away, which it does last, or
    when the system of this host says so. If the entry of one on another host ran
    out, nobody knows whether it has ended: it is `silent`.
    """

    def __init__(
        self, access: Access, targets: Targets, replaceable: Sequence[ProcessEntry]
    ) -> None:
        self.silent: list[ProcessEntry] = []
        self._access = access
        self._targets: dict[str, ProcessEntry] = {
            one.name: one for one in (*targets.workers, *targets.supervisors)
        }
        self.left = dict(self._targets)
        self._ends_us: dict[str, int] = {}
        """When each entry runs out unless it is renewed, as of the last look."""
        self._replaceable = {
            _supervisor_of(one)
            for one in replaceable
            if isinstance(one, WorkerEntry) and one.supervisor is not None
        }

    def look(self) -> list[ProcessEntry]:
        """The workers that are left; when there are none, the supervisors."""
        try:
            self._read_entries()
        except StorageError:  # the system alone tells, until the storage answers again
            self.left = {name: one for name, one in self.left.items() if not one.is_gone}
        left = list(self.left.values())
        return [one for one in left if isinstance(one, WorkerEntry)] or left

    def dead(self) -> list[ProcessEntry]:
        """Those whose processes have ended, and whose entries were there at the last look."""
        return [one for name, one in self._targets.items() if name in self._ends_us and one.is_gone]

    def _read_entries(self) -> None:
        self._dismiss_replacements()
        records = [one for kind in (WORKER, SUPERVISOR) for one in self._access.records(kind)]
        now = self._access.store.clock.now()
        before = self._ends_us
        self._ends_us = {one.name: ends_us(one) for one in records if one.name in self._targets}
        for name, one in list(self.left.items()):
            if one.is_gone:
                del self.left[name]
            elif self._ends_us.get(name, 0) <= now and not _is_own_process(one):
                del self.left[name]
                # A process that is well renews its entry long before it runs out.
                if before.get(name, now + one.lease_us) - one.lease_us // 2 <= now:
                    self.silent.append(one)

    def _dismiss_replacements(self) -> None:
        for worker in registered_workers(self._access) if self._replaceable else ():
            if worker.name not in self._targets and _supervisor_of(worker) in self._replaceable:
                self._access.submit(dismissal(worker))
                self._targets[worker.name] = self.left[worker.name] = worker


def _is_own_process(one: ProcessEntry) -> bool:
    """True for a supervisor on this host in its own process, which ends after its entry."""
    return not isinstance(one, WorkerEntry) and one.is_here and one.obeys_signals
