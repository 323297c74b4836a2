"""Schedule ticks: the schedules of a store as a worker knows them, and their due ticks.

Only the store thread calls it, except for `ring`. It reads the schedules when the
worker starts, after `ring`, and after a refused tick. It never polls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casque.errors import CASConflictError, InvalidError, StorageError
from casque.queues.session import Session
from casque.record import SCHEDULE, Record
from casque.rules.operations import Tick
from casque.schedule import Schedule, decode
from casque.system.clock import SECOND_US, to_datetime
from casque.tasks.schedules import due_tick, synchronised
from casque.worker.logging.events import Report, WorkerEvent

NO_APP = "(no module)"
"""The app name of schedules whose App is in no module."""

_READ_EVERY_US = SECOND_US
_READ_REMOTELY_EVERY_US = 5 * SECOND_US
"""The shortest time between two reads after `ring`. A remote read costs more."""
_AFTER_REFUSAL_US = 100_000
"""The pause after a refused tick. Another worker can fire many ticks meanwhile."""
_SYNC_TRIES = 20


class ScheduleTicks:
    """Knows when the next tick is due, and offers it to the store."""

    def __init__(
        self, session: Session, declared: Mapping[str, Schedule], app: str, report: Report
    ) -> None:
        self._session = session
        self._clock = session.clock
        self._declared, self._app = declared, app
        self._report = report
        self._known: dict[str, tuple[Record, Schedule]] = {}
        self._next: dict[str, int] = {}
        """By name, when the next tick is due, by the clock of the store."""
        self._unusable: set[tuple[str, int]] = set()
        """Names and versions of schedules that this machine cannot use."""
        self._ahead_us = 0
        """How far the clock of the store is ahead of this machine's wall clock."""
        self._is_synchronised = False
        self._is_rung = True
        self._read_us = 0
        every_us = _READ_EVERY_US if session.store.blocking else _READ_REMOTELY_EVERY_US
        self._read_every_us = every_us

    # -- time ------------------------------------------------------------------

    def saw_time(self, store_us: int, sent_us: int, received_us: int) -> None:
        """Learn the store's time: it was `store_us` between these times of the wall clock."""
        self._ahead_us = min(max(store_us - received_us, 0), store_us - sent_us)

    def _now(self) -> int:
        return self._clock.now() + self._ahead_us

    @property
    def is_done(self) -> bool:
        """True if the schedules are read, and no tick is due."""
        now = self._now()
        return self._is_synchronised and all(tick > now for tick in self._next.values())

    def wait_us(self) -> int | None:
        """How long to wait unless `ring` is called; None: for ever."""
        times = []
        if self._next:
            times.append(min(self._next.values()) - self._now())
        if self._is_rung:
            times.append(self._read_us - self._clock.monotonic())
        return max(min(times), 0) if times else None

    # -- reading ---------------------------------------------------------------

    def ring(self) -> None:
        """Ask for a `read`: schedules may have changed. Thread-safe."""
        self._is_rung = True

    @property
    def is_to_read(self) -> bool:
        return self._is_rung and self._clock.monotonic() >= self._read_us

    async def read(self) -> None:
        """Read the schedules. The first call first stores the app's own."""
        self._read_us = self._clock.monotonic() + self._read_every_us
        self._is_rung = False
        try:
            if not self._is_synchronised:
                await self._synchronise()
            records = await self._session.records(SCHEDULE)
        except Exception:
            self._is_rung = True
            raise
        self._is_synchronised = True
        known, self._known = self._known, {}
        for record in records:
            old = known.get(record.name)
            if old is not None and old[0].version == record.version:
                self._known[record.name] = old
            else:
                self._take(record)
        self._next = {name: at for name, at in self._next.items() if name in self._known}

    async def _synchronise(self) -> None:
        if self._app == NO_APP and not self._declared:
            return
        for _ in range(_SYNC_TRIES):
            records = await self._session.records(SCHEDULE)
            # Other Apps without a name may have declared the schedules that this one lacks.
            stops = self._app != NO_APP
            sync = synchronised(self._declared, records, self._app, self._now(), stops=stops)
            outcomes = await self._session.submit_all(sync.puts) if sync.puts else []
            if any(isinstance(one, CASConflictError) for one in outcomes):
                continue  # another worker starts too
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
            for name in sync.stopped:
                self._report.own(WorkerEvent.SCHEDULE_STOPPED, name, self._app)
            for name, other in sync.taken:
                self._report.own(WorkerEvent.SCHEDULE_TAKEN, name, other)
            for name in sync.clashes:
                self._report.own(WorkerEvent.SCHEDULE_CLASHES, name)
            return
        raise StorageError("other workers keep changing the schedules", outcome_unknown=False)

    def _take(self, record: Record) -> None:
        """Note the schedule in a record, and when it is next due."""
        name = record.name
        self._known.pop(name, None)
        self._next.pop(name, None)
        try:
            schedule = decode(record)
            self._known[name] = record, schedule
            self._plan(name, schedule)
        except InvalidError as error:  # for example, this machine lacks the time zone
            self._next.pop(name, None)
            if (name, record.version) not in self._unusable:
                self._unusable.add((name, record.version))
                self._report.own(WorkerEvent.SCHEDULE_UNUSABLE, name, error)

    def _plan(self, name: str, schedule: Schedule) -> None:
        self._next.pop(name, None)
        if schedule.is_active:
            from casque.tasks import ticks  # noqa: PLC0415 - it loads cronsim

            now = self._now()
            due = ticks.due_ticks(schedule, now, 1) or ticks.next_ticks(schedule, now, 1)
            self._next.update((name, tick) for tick in due)

    # -- firing ----------------------------------------------------------------

    def due(self) -> list[Tick]:
        """The ticks to offer now, at most one of each schedule."""
        now = self._now()
        names = [name for name, at in self._next.items() if at <= now]
        found: list[Tick] = []
        for name in names:
            record, schedule = self._known[name]
            tick = due_tick(record, schedule, now, self._clock.mint)
            if tick is None:  # it was missed by now
                self._plan(name, schedule)
            else:
                found.append(tick)
        return found

    def answered(self, tick: Tick, outcome: Any) -> None:
        """Note the answer of the store to an offered tick."""
        if isinstance(outcome, Record):
            self._take(outcome)
            assert tick.tick_us is not None
            time = to_datetime(tick.tick_us).isoformat()
            if decode(outcome).last_job == tick.job.id:
                self._report.own(WorkerEvent.TICK, tick.name, time, tick.job.id)
            else:
                self._report.own(WorkerEvent.TICK_SKIPPED, tick.name, time)
            return
        # Another worker was first, the schedule changed, or the store's clock is behind.
        self._next[tick.name] = self._now() + _AFTER_REFUSAL_US
        self._is_rung, self._read_us = True, 0
