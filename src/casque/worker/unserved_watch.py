"""Unserved watch: warns of due jobs whose entrypoint no running worker has.

Such a job waits in silence: its name may be mistyped, or the workers that have its task are down.
Only the store thread calls this.
"""

from __future__ import annotations

from casque.queues.session import Session
from casque.record import WORKER
from casque.system.clock import MINUTE_US, SECOND_US
from casque.system.terminal_text import counted
from casque.worker.logging.events import Report, WorkerEvent
from casque.worker.registry.entries import WorkerEntry, worker_entries
from casque.worker.registry.unserved import COUNTED, listed, served_by

LOOK_EVERY_US = MINUTE_US
FIRST_LOOK_US = 5 * SECOND_US
"""How long after its start a worker looks first: others that start with it then have entries."""


class UnservedWatch:
    """Looks once a minute for due jobs that no running worker takes, and logs their number."""

    def __init__(self, session: Session, entrypoints: tuple[str, ...], report: Report) -> None:
        self._session = session
        self._entrypoints = entrypoints
        self._report = report
        self._look_us = session.clock.monotonic() + FIRST_LOOK_US

    @property
    def is_to_look(self) -> bool:
        return self._session.clock.monotonic() >= self._look_us

    async def look(self) -> None:
        """Read what is due, and warn. If the storage does not answer, the next look is as usual."""
        self._look_us = self._session.clock.monotonic() + LOOK_EVERY_US
        try:
            found = await self._find()
        except Exception:  # noqa: BLE001 - the commits of the worker report the storage
            return
        if found:
            jobs = sum(found.values())
            verb = "is" if jobs == 1 else "are"
            most = "at least " if max(found.values()) >= COUNTED else ""
            self._report.own(
                WorkerEvent.UNSERVED, f"{most}{counted(jobs, 'job')} {verb} due", listed(found)
            )

    async def _find(self) -> dict[str, int]:
        store = self._session.readable
        # Usually this worker serves all that is due, and one short read shows it.
        if not await store.unserved(self._entrypoints, limit=1):
            return {}
        workers = worker_entries(await store.records(WORKER))
        if not self._is_first(workers):
            return {}
        served = served_by(workers) | set(self._entrypoints)
        return await store.unserved(served, limit=COUNTED)

    def _is_first(self, workers: list[WorkerEntry]) -> bool:
        """True if no other worker of the same supervisor warns: they write one log."""
        own = next((one for one in workers if one.name == self._session.worker), None)
        if own is None or own.supervisor is None:
            return True
        same = [one for one in workers if one.supervisor_process == own.supervisor_process]
        return own.name == min(one.name for one in same if not one.is_gone)
