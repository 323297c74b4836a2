"""Enrolment: a supervisor's own entry in the store, from before its first child until its end.

Workers come and go, and at times there is none. Who stops them must find who
would start the next.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import msgspec

from casque.clock import SECOND_US, Bell, drive
from casque.errors import CASConflictError, CasqueError
from casque.operations import DeleteRecord
from casque.record import ABSENT, MANAGER, Record
from casque.session import Session
from casque.stores.port import Store
from casque.stores.url import StoreAddress, open_store
from casque.worker.console import SUPERVISOR
from casque.worker.registry import ManagerEntry, manager_of, manager_put

_RENEWALS_PER_LEASE = 3
_TRIES = 3
"""How often it is tried to change the entry, which somebody else may be changing."""
_PAUSE_US = SECOND_US
"""While the storage does not answer."""
_LAST_SECONDS = 5.0
"""How long a supervisor that ends waits for a storage to forget it; then time will see to it."""

_log = logging.getLogger(SUPERVISOR)


class Enrolment:
    """Keeps the entry, on a thread of its own: a storage that is away holds up nobody.

    `when_heard` is called once, when the storage has taken it or has not answered,
    and `when_dismissed` when somebody has written into it that all are to stop.
    """

    def __init__(
        self,
        address: StoreAddress,
        entry: ManagerEntry,
        when_heard: Callable[[], None],
        when_dismissed: Callable[[], None],
    ) -> None:
        self.is_heard = False
        self._address = address
        self._entry = entry
        self._version = ABSENT
        self._when_heard = when_heard
        self._when_dismissed = when_dismissed
        self._bell: Bell | None = None
        self._is_ending = False
        self._thread = threading.Thread(target=self._serve, name="casque-enrolment", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Take the entry away, if the storage answers."""
        self._is_ending = True
        if self._bell is not None:
            self._bell.ring()
        self._thread.join(_LAST_SECONDS)

    def _serve(self) -> None:
        try:
            store = open_store(self._address)
            work = self._work(store)
            if store.blocking:
                drive(work)
            else:
                asyncio.run(work)
        except Exception as error:  # noqa: BLE001 - the workers are worth more than this
            _log.warning("`queuectl worker stop` may not find this supervisor: %s", error)
        self._tell_heard()

    async def _work(self, store: Store) -> None:
        session = Session(store, owner="Supervisor", blocking=store.blocking)
        self._bell = session.clock.bell(blocking=store.blocking)
        while not self._is_ending:
            is_kept = await self._renew(session)
            self._tell_heard()
            lease_us = self._entry.lease_us
            await self._bell.wait(lease_us // _RENEWALS_PER_LEASE if is_kept else _PAUSE_US)
        await self._remove(session)
        await session.close()
        await store.close()

    def _tell_heard(self) -> None:
        if not self.is_heard:
            self.is_heard = True
            self._when_heard()

    async def _renew(self, session: Session) -> bool:
        """Whether the entry is as it should be."""
        try:
            for _ in range(_TRIES):
                [outcome] = await session.submit_all([manager_put(self._entry, self._version)])
                if isinstance(outcome, Record):
                    self._version = outcome.version
                    return True
                if not isinstance(outcome, CASConflictError):
                    return False
                await self._look(session)
        except CasqueError:
            return False
        return False

    async def _look(self, session: Session) -> None:
        """Somebody has changed it: whoever started this process, or who wants it to stop."""
        records = await session.records(MANAGER)
        own = next((one for one in records if one.name == self._entry.name), None)
        self._version = ABSENT if own is None else own.version
        found = None if own is None else manager_of(own)
        if found is not None and found.is_dismissed and not self._entry.is_dismissed:
            self._entry = msgspec.structs.replace(self._entry, is_dismissed=True)
            self._when_dismissed()

    async def _remove(self, session: Session) -> None:
        try:
            for _ in range(_TRIES):
                if self._version == ABSENT:
                    return
                removal = DeleteRecord(MANAGER, self._entry.name, self._version)
                [outcome] = await session.submit_all([removal])
                if not isinstance(outcome, CASConflictError):
                    return
                await self._look(session)
        except CasqueError:
            return
