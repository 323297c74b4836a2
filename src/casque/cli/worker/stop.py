"""Stop: chooses workers, orders them to stop, waits for them and reports.

A process on this host gets SIGTERM. Any other process finds an order (a
dismissal) in the store.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from casque.cli.output import DONE, NOT_SO, JsonObject, complain, print_json, progress_bar
from casque.cli.store import Access
from casque.cli.worker.fleet import named
from casque.errors import StorageError
from casque.queues.lineage import JOB_ID_VARIABLE
from casque.record import SUPERVISOR, WORKER
from casque.rules.operations import DeleteRecord
from casque.system.clock import SECOND_US, SystemClock
from casque.worker.registry import process_identity
from casque.worker.registry.entries import (
    ProcessEntry,
    SupervisorEntry,
    WorkerEntry,
    dismissal,
    ends_us,
)

_LOOK_SECONDS = 0.1
_BEYOND_GRACE_US = 20 * SECOND_US
"""Added to the grace: time to give back jobs, and for the supervisor to notice the end."""


class Targets(msgspec.Struct, frozen=True):
    """The processes to stop."""

    workers: list[WorkerEntry]
    supervisors: list[SupervisorEntry]
    dead: list[ProcessEntry]
    """Processes on this host that died but still have an entry."""
    others: list[WorkerEntry]
    """The workers to leave alone."""
    unknown: list[int]
    """PIDs that belong to no worker and no supervisor."""

    @property
    def running(self) -> list[ProcessEntry]:
        return [*self.workers, *self.supervisors]

    @property
    def named(self) -> list[ProcessEntry]:
        """Return the processes to report: workers, and supervisors without any of these workers."""
        kept = {one.supervisor_process for one in self.workers}
        return [*self.workers, *(one for one in self.supervisors if one.process not in kept)]


def choose(
    workers: Sequence[WorkerEntry],
    supervisors: Sequence[SupervisorEntry],
    pids: Collection[int],
    *,
    everywhere: bool,
) -> Targets:
    """Choose the processes with these PIDs, or all on this host, or all on every host."""
    meant = [one for one in workers if everywhere or one.is_here]
    above = [one for one in supervisors if everywhere or one.is_here]
    above += _unregistered(meant, above)
    known = {one.pid for one in (*meant, *above)} | {one.supervisor for one in meant}
    if pids:
        meant = [one for one in meant if one.pid in pids or one.supervisor in pids]
        above = [one for one in above if one.pid in pids]
    names = {one.name for one in meant}
    return Targets(
        workers=[one for one in meant if not one.is_gone],
        supervisors=[one for one in above if not one.is_gone],
        dead=[one for one in (*meant, *above) if one.is_gone],
        others=[one for one in workers if one.name not in names],
        unknown=[pid for pid in pids if pid not in known],
    )


def _unregistered(
    workers: Sequence[WorkerEntry], supervisors: Sequence[SupervisorEntry]
) -> list[SupervisorEntry]:
    """Return the supervisors on this host without an entry, such as that of `App.work(count=2)`.

    Found through the entries of their workers, even dead ones, which they would replace.
    """
    known = {one.process for one in supervisors}
    found: dict[int, SupervisorEntry] = {}
    for entry in workers:
        pid, birth = entry.supervisor, entry.supervisor_birth
        if pid is None or birth is None or not entry.is_here or entry.supervisor_process in known:
            continue
        name = f"{entry.host}:{pid}:{birth}"
        process = replace(entry, name=name, pid=pid, birth=birth, obeys_signals=True)
        found[pid] = msgspec.convert(process, SupervisorEntry, from_attributes=True)
    return [one for one in found.values() if not one.is_gone]


def unknown_message(unknown: Sequence[int], workers: Sequence[WorkerEntry]) -> str:
    """Return the error for PIDs that no worker has. It lists the workers of this host."""
    pids = ", ".join(map(str, unknown))
    here = [entry for entry in workers if entry.is_here]
    if not here:
        return f"no worker on this host has the PID {pids}; none is registered in this store."
    above = ", ".join(map(str, sorted({one.supervisor for one in here if one.supervisor})))
    under = f" (supervisors: {above})" if above else ""
    return f"no worker on this host has the PID {pids}; the workers are {named(here)}{under}."


def is_inside_job(targets: Targets) -> bool:
    """True if one of the workers runs the job that this command is part of."""
    job = os.environ.get(JOB_ID_VARIABLE)
    if not job:
        return False
    above: set[int] = set()
    pid = os.getpid()
    while pid not in above and (vitals := process_identity.vitals(pid)) is not None:
        above.add(pid)
        pid = vitals.parent
    return any(job in one.running or (one.is_here and one.pid in above) for one in targets.workers)


# -- their end ---------------------------------------------------------------------


def order(access: Access, targets: Targets, pids: Collection[int]) -> list[ProcessEntry]:
    """Order the targets to stop. Returns those that must find the order in the store.

    Signals go first: they need no storage. A worker in `pids` is also dismissed:
    otherwise its supervisor would replace it.
    """
    signalled = {one.process for one in targets.supervisors if _signal(one)}
    to_dismiss: list[ProcessEntry] = [
        one for one in targets.supervisors if one.process not in signalled
    ]
    for worker in targets.workers:
        if worker.supervisor_process in signalled and worker.pid not in pids:
            continue
        if worker.supervisor is not None or not _signal(worker):
            to_dismiss.append(worker)
    for one in to_dismiss:
        access.submit(dismissal(one))
    return [one for one in to_dismiss if not _signal(one)]


def _signal(one: ProcessEntry) -> bool:
    """Send SIGTERM to a process on this host that obeys signals. False if it was not sent."""
    can_be = one.is_here and one.obeys_signals
    return can_be and process_identity.send(one.pid, one.birth, signal.SIGTERM)


def wait(
    access: Access, targets: Targets, by_store: Sequence[ProcessEntry], timeout_us: int | None
) -> list[ProcessEntry]:
    """Wait for the targets to end, at most `timeout_us`; if None, as long as a stop may take.

    Returns the processes that may still be running.
    """
    clock = SystemClock()
    if timeout_us is None:
        graces = [one.grace_us for one in targets.running]
        # The entry of a process that died on another host stays until it expires.
        expiries = [one.ttl_us for one in by_store]
        timeout_us = max(graces, default=0) + max(expiries, default=0) + _BEYOND_GRACE_US
    deadline = clock.monotonic() + timeout_us
    watch = _Watch(access, targets.running)
    with progress_bar("Stopping") as bar:
        while (left := watch.look()) and clock.monotonic() < deadline:
            bar(0, None, f"{len(left)} process(es) left")
            threading.Event().wait(_LOOK_SECONDS)
    return [*left, *watch.unsure()]


class _Watch:
    """Checks which processes are left.

    A process has ended when it has deleted its entry, which is its last step. It has also ended
    when the operating system of this host reports its end.
    """

    def __init__(self, access: Access, targets: Sequence[ProcessEntry]) -> None:
        self._access = access
        self._left = {one.name: one for one in targets}
        self._ended: set[tuple[str, str, int]] = set()
        self._silent: list[ProcessEntry] = []
        """Processes on other hosts whose entry expired: they may still be running."""
        self._ends_us: dict[str, int] = {}
        """When each entry expires unless it is renewed, as of the last check."""

    def look(self) -> list[ProcessEntry]:
        """Return the workers that are left; if there are none, the supervisors."""
        for one in [one for one in self._left.values() if one.is_gone]:
            del self._left[one.name]
            self._ended.add(one.process)
        with suppress(StorageError):  # then only the operating system can report an end
            self._look_at_entries()
        left = list(self._left.values())
        return [one for one in left if isinstance(one, WorkerEntry)] or left

    def _look_at_entries(self) -> None:
        records = [one for kind in (WORKER, SUPERVISOR) for one in self._access.records(kind)]
        now = self._access.store.clock.now()
        before, self._ends_us = self._ends_us, {one.name: ends_us(one) for one in records}
        for name, one in list(self._left.items()):
            if self._ends_us.get(name, 0) > now or _is_own_process(one):
                continue
            del self._left[name]
            # A healthy process renews its entry long before it expires.
            if before.get(name, now + one.fresh_us) - one.fresh_us // 2 <= now:
                self._silent.append(one)
            else:
                self._ended.add(one.process)

    def unsure(self) -> list[ProcessEntry]:
        """Return processes that may still run. A supervisor ends its workers before itself."""
        return [
            one
            for one in self._silent
            if not (isinstance(one, WorkerEntry) and one.supervisor_process in self._ended)
        ]


def _is_own_process(one: ProcessEntry) -> bool:
    """True for a supervisor process on this host: it deletes its entry before it has ended."""
    return not isinstance(one, WorkerEntry) and one.is_here and one.obeys_signals


def clear_away(access: Access, targets: Targets) -> None:
    """Remove the entries of processes on this host that have ended, if the storage answers."""
    gone = {one.name for one in (*targets.dead, *targets.running) if one.is_gone}
    try:
        for kind in (WORKER, SUPERVISOR) if gone else ():
            for record in access.records(kind):
                if record.name in gone:
                    access.submit(DeleteRecord(kind, record.name, None))
    except StorageError as error:
        complain(f"note: ended processes are still registered, until their entries expire: {error}")


# -- the report --------------------------------------------------------------------


def report(targets: Targets, left: Sequence[ProcessEntry] | None, *, as_json: bool) -> int:
    """Print which processes have stopped and which are left. Returns the exit code.

    `left` may still be running; None if the command did not wait.
    """
    dead = [one for one in targets.dead if isinstance(one, WorkerEntry)]
    names = {one.name for one in left or ()}
    stopped = [one for one in targets.named if left is not None and one.name not in names]
    ordered = targets.named if left is None else []
    code = NOT_SO if left else DONE
    if as_json:
        groups: dict[str, Sequence[ProcessEntry]] = {
            "stopped": stopped,
            "gone": dead,
            "left": [*ordered, *(left or ())],
        }
        print_json({group: [_object(one) for one in ones] for group, ones in groups.items()})
        return code
    if not targets.named and not dead:
        print("No workers are running.")
        if targets.others:
            print(
                f"Other workers: {named(targets.others)}. To stop workers on every host, use --all."
            )
    if dead:
        print(f"Removed {len(dead)} worker(s) that had died: {named(dead)}.")
    for how_many, pids in _grouped(stopped):
        print(f"Stopped {how_many}: {pids}.")
    for how_many, pids in _grouped(ordered):
        print(f"Stopping {how_many}: {pids}.")
    for how_many, pids in _grouped(left or ()):
        complain(
            f"{how_many} may still be running: {pids}. Unless they have died, they stop when their "
            "jobs end or their grace is over; see `queuectl worker list`."
        )
    return code


def _object(one: ProcessEntry) -> JsonObject:
    return {"name": one.name, "host": one.host, "pid": one.pid}


def _grouped(entries: Sequence[ProcessEntry]) -> Iterator[tuple[str, str]]:
    """Return the number and the PIDs of the workers, then of the supervisors."""
    workers: list[ProcessEntry] = [one for one in entries if isinstance(one, WorkerEntry)]
    others = [one for one in entries if not isinstance(one, WorkerEntry)]
    for ones, what in ((workers, "worker(s)"), (others, "supervisor(s) without workers")):
        if ones:
            yield f"{len(ones)} {what}", named(ones)
