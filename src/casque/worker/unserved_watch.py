"""Unserved watch: warns of due jobs that no registered worker takes.

Such a job waits in silence: the name of its task or of its queue may be mistyped, or the workers
that take it are down. Only the store thread calls this.
"""

from __future__ import annotations

from casque.queues.session import Session
from casque.record import WORKER
from casque.rules.views import Served, Unserved
from casque.system.clock import MINUTE_US, SECOND_US
from casque.worker.logging.events import Report, WorkerEvent
from casque.worker.registry.entries import WorkerEntry, worker_entries
from casque.worker.registry.unserved import COUNTED, EXCUSED_US, listed, served_by, total

WARN_EVERY_US = MINUTE_US
FIRST_LOOK_US = 5 * SECOND_US
"""How long after its start a worker looks first: others that start with it then have entries."""


class UnservedWatch:
    """Looks once a minute for due jobs that no registered worker takes, and logs their number.

    If it finds some, it looks once more before it warns: a worker that is just being replaced is
    missing from the registry, but not for long.
    """

    def __init__(self, session: Session, own: WorkerEntry, report: Report) -> None:
        self._session = session
        self._own = own
        self._report = report
        self._look_us = session.clock.monotonic() + FIRST_LOOK_US
        self._before: Served | None = None
        """What workers took at the look that found jobs; None: the next look is the first."""

    @property
    def is_to_look(self) -> bool:
        return self._session.clock.monotonic() >= self._look_us

    async def look(self) -> None:
        """Read what is due, and warn. If the storage does not answer, the next look is as usual."""
        before, self._before = self._before, None
        self._look_us = self._session.clock.monotonic() + WARN_EVERY_US - EXCUSED_US
        try:
            found, served = await self._find(before)
        except Exception:  # noqa: BLE001 - the commits of the worker report the storage
            return
        if found and before is None:
            self._before = served
            self._look_us = self._session.clock.monotonic() + EXCUSED_US
        elif found:
            self._report.own(WorkerEvent.UNSERVED, total(found), listed(found, served))

    async def _find(self, before: Served | None) -> tuple[Unserved, Served]:
        """Return the jobs that no worker takes, now or `before`, and what workers take."""
        store, served = self._session.readable, served_by([self._own])
        # Usually this worker serves all that is due, and one short read shows it.
        if not await store.unserved(served, limit=1, waited_us=EXCUSED_US):
            return {}, served
        workers = worker_entries(await store.records(WORKER))
        if not self._is_first(workers):
            return {}, served
        served = served_by([self._own, *workers], before)
        return await store.unserved(served, limit=COUNTED, waited_us=EXCUSED_US), served

    def _is_first(self, workers: list[WorkerEntry]) -> bool:
        """True if no other worker of the same supervisor warns: they write one log."""
        own = next((one for one in workers if one.name == self._own.name), None)
        if own is None or own.supervisor is None:
            return True
        same = [one for one in workers if one.supervisor_process == own.supervisor_process]
        return own.name == min(one.name for one in same if not one.is_gone)
