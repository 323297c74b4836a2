"""Stop: which workers are meant, how each is told to stop, and the report on them.

A process on this host gets SIGTERM. Any other finds an order (a dismissal) in
the store when it renews its entry. `wait` then finds out which have ended.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator, Sequence

import msgspec

from casque.cli.output import DONE, NOT_SO, JsonObject, complain, print_json
from casque.cli.store import Access
from casque.cli.worker.fleet import named
from casque.errors import StorageError
from casque.record import SUPERVISOR, WORKER
from casque.rules.operations import DeleteRecord
from casque.worker.registry import process_identity
from casque.worker.registry.entries import ProcessEntry, SupervisorEntry, WorkerEntry, dismissal


class Targets(msgspec.Struct, frozen=True):
    """The processes that are to stop."""

    workers: list[WorkerEntry]
    supervisors: list[SupervisorEntry]
    dead: list[ProcessEntry]
    """Those on this host that died, and whose entries are still there."""
    others: list[WorkerEntry]
    """The workers that are not meant."""
    unknown: list[int]
    """The PIDs that no worker and no supervisor has."""

    @property
    def named(self) -> list[ProcessEntry]:
        """The workers, and the supervisors that have none of them: the ones to report on."""
        kept = {(one.host, one.machine, one.supervisor) for one in self.workers}
        alone = [one for one in self.supervisors if (one.host, one.machine, one.pid) not in kept]
        return [*self.workers, *alone]


def choose(
    workers: Sequence[WorkerEntry],
    supervisors: Sequence[SupervisorEntry],
    pids: Collection[int],
    *,
    everywhere: bool,
) -> Targets:
    """Those with these PIDs, or all on this host, or all on every host."""
    meant = [one for one in workers if everywhere or one.is_here]
    above = [one for one in supervisors if everywhere or one.is_here]
    above += _unregistered(meant, above)
    unknown: list[int] = []
    if pids:
        known = {one.pid for one in (*meant, *above)} | {one.supervisor for one in meant}
        unknown = [pid for pid in pids if pid not in known]
        meant = [one for one in meant if one.pid in pids or one.supervisor in pids]
        above = [one for one in above if one.pid in pids]
    names = {one.name for one in meant}
    return Targets(
        workers=[one for one in meant if not one.is_gone],
        supervisors=[one for one in above if not one.is_gone],
        dead=[one for one in (*meant, *above) if one.is_gone],
        others=[one for one in workers if one.name not in names],
        unknown=unknown,
    )


def _unregistered(
    workers: Sequence[WorkerEntry], supervisors: Sequence[SupervisorEntry]
) -> list[SupervisorEntry]:
    """The supervisors on this host that have no entry, as that of `App.work(count=2)`.

    The entries of their workers name them; a dead worker's too, which would be replaced.
    """
    known = {(one.pid, one.birth) for one in supervisors if one.is_here}
    found: dict[tuple[int, int], SupervisorEntry] = {}
    for entry in workers:
        if entry.supervisor is None or entry.supervisor_birth is None or not entry.is_here:
            continue
        key = entry.supervisor, entry.supervisor_birth
        if key not in known:
            found[key] = SupervisorEntry(
                name=f"{entry.host}:{entry.supervisor}:{entry.supervisor_birth}",
                host=entry.host,
                pid=entry.supervisor,
                started_at=entry.started_at,
                lease_us=entry.lease_us,
                grace_us=entry.grace_us,
                machine=entry.machine,
                birth=entry.supervisor_birth,
                obeys_signals=True,
                count=0,
            )
    return [one for one in found.values() if not one.is_gone]


def unknown_message(unknown: Sequence[int], workers: Sequence[WorkerEntry]) -> str:
    """No worker has these PIDs; these are the ones that there are."""
    pids = ", ".join(map(str, unknown))
    here = [entry for entry in workers if entry.is_here]
    if not here:
        return f"no worker on this host has the PID {pids}; none is registered in this store."
    supervisors = sorted({entry.supervisor for entry in here if entry.supervisor is not None})
    under = f" (supervisors: {', '.join(map(str, supervisors))})" if supervisors else ""
    return f"no worker on this host has the PID {pids}; there are {named(here)}{under}."


def tell(access: Access, targets: Targets, pids: Collection[int]) -> list[ProcessEntry]:
    """Tell them to stop. Returns those that will find out from the store alone.

    Signals go first: they need no storage. A worker in `pids` is also dismissed:
    its supervisor would replace it otherwise.
    """
    signalled = {one.pid for one in targets.supervisors if _signal(one)}
    to_dismiss: list[ProcessEntry] = [
        one for one in targets.supervisors if not (one.is_here and one.pid in signalled)
    ]
    for worker in targets.workers:
        is_stopped_with_all = worker.is_here and worker.supervisor in signalled
        if is_stopped_with_all and worker.pid not in pids:
            continue
        if worker.supervisor is not None or not _signal(worker):
            to_dismiss.append(worker)
    for one in to_dismiss:
        access.submit(dismissal(one))
    return [one for one in to_dismiss if not _signal(one)]


def _signal(one: ProcessEntry) -> bool:
    """Send SIGTERM to a process on this host that it stops; False when it was not sent."""
    can_be = one.is_here and one.obeys_signals
    return can_be and process_identity.send(one.pid, one.birth, signal.SIGTERM)


def clear_away(access: Access, dead: Sequence[ProcessEntry]) -> None:
    """Remove the entries of dead processes, if the storage answers."""
    for one in dead:
        kind = WORKER if isinstance(one, WorkerEntry) else SUPERVISOR
        try:
            access.submit(DeleteRecord(kind, one.name, None))
        except StorageError as error:
            complain(f"note: what has ended is still registered, and will not be for long: {error}")
            return


def report(targets: Targets, left: Sequence[ProcessEntry] | None, *, as_json: bool) -> int:
    """Say of each that it has stopped, or name it as left. Returns the exit code.

    `left` are not known to have ended; None: the command did not wait.
    """
    dead = [one for one in targets.dead if isinstance(one, WorkerEntry)]
    names = {one.name for one in left or ()}
    stopped = [one for one in targets.named if left is not None and one.name not in names]
    told = targets.named if left is None else []
    code = NOT_SO if left else DONE
    if as_json:
        groups: dict[str, Sequence[ProcessEntry]] = {
            "stopped": stopped,
            "gone": dead,
            "left": [*told, *(left or ())],
        }
        print_json({group: [_object(one) for one in ones] for group, ones in groups.items()})
        return code
    if not targets.named and not dead:
        print("No workers are running.")
        if targets.others:
            print(f"Elsewhere there are {named(targets.others)}: stop those with --all.")
    if dead:
        print(f"Removed {len(dead)} worker(s) that had died: {named(dead)}.")
    for how_many, pids in _grouped(stopped):
        print(f"Stopped {how_many}: {pids}.")
    for how_many, pids in _grouped(told):
        print(f"Told {how_many} to stop: {pids}.")
    for how_many, pids in _grouped(left or ()):
        complain(
            f"{how_many} are not known to have ended: {pids}. They stop when their jobs end or "
            "their grace is over, unless they have died; see `queuectl worker list`."
        )
    return code


def _object(one: ProcessEntry) -> JsonObject:
    return {"name": one.name, "host": one.host, "pid": one.pid}


def _grouped(entries: Sequence[ProcessEntry]) -> Iterator[tuple[str, str]]:
    """Workers and supervisors apart: how many, and their PIDs."""
    workers = [one for one in entries if isinstance(one, WorkerEntry)]
    supervisors = [one for one in entries if isinstance(one, SupervisorEntry)]
    if workers:
        yield f"{len(workers)} worker(s)", named(workers)
    if supervisors:
        yield f"{len(supervisors)} supervisor(s) without workers", named(supervisors)
