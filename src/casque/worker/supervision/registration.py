"""Registration: a supervisor's own entry in the store, from before its first child until its end.

At times a supervisor has no worker. `queuectl worker stop` must find the supervisor even then,
because the supervisor would start another worker.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from casque.errors import CasqueError, CorruptError
from casque.queues.session import Session
from casque.record import DISMISSAL, SUPERVISOR
from casque.rules.operations import DeleteRecord
from casque.stores.port import Creatable, Store
from casque.stores.url import StoreAddress, open_store
from casque.system.clock import SECOND_US, Bell, drive
from casque.worker.logging.console import SUPERVISOR_LOGGER
from casque.worker.registry.entries import SupervisorEntry, presence_us_of, supervisor_put

_RENEWALS_PER_LEASE = 3
_PAUSE_US = SECOND_US
"""While the storage does not answer."""
_LAST_SECONDS = 5.0
"""How long a stopping supervisor waits until its entry is removed. If not, the entry expires."""

_log = logging.getLogger(SUPERVISOR_LOGGER)


class Registration:
    """Renews the entry on a separate thread, so that a hanging storage delays nothing else.

    `when_answered` is called once, when the storage has taken the entry or has
    failed; `when_dismissed` when a record orders the supervisor to stop.
    """

    def __init__(
        self,
        address: StoreAddress,
        entry: SupervisorEntry,
        when_answered: Callable[[], None],
        when_dismissed: Callable[[], None],
    ) -> None:
        self.is_answered = False
        self._address = address
        self._entry = entry
        self._is_there = False
        self._when_answered = when_answered
        self._when_dismissed = when_dismissed
        self._bell: Bell | None = None
        self._is_ending = False
        self._thread = threading.Thread(target=self._serve, name="casque-registration", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Remove the entry, if the storage answers."""
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
        except Exception as error:  # noqa: BLE001 - a supervisor without an entry still runs workers
            _log.warning("`queuectl worker stop` may not find this supervisor: %s", error)
        self._note_answer()

    async def _work(self, store: Store) -> None:
        session = Session(store, owner="Supervisor", blocking=store.blocking)
        self._bell = session.clock.bell(blocking=store.blocking)
        while not self._is_ending:
            is_kept = await self._renew(session)
            self._note_answer()
            every_us = presence_us_of(store) or self._entry.lease_us // _RENEWALS_PER_LEASE
            await self._bell.wait(every_us if is_kept else _PAUSE_US)
        await self._remove(session)
        await session.close()
        await store.close()

    def _note_answer(self) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._when_answered()

    async def _renew(self, session: Session) -> bool:
        """True if the entry is stored."""
        try:
            await session.submit(supervisor_put(self._entry, session.store))
            self._is_there = True
            if isinstance(session.store, Creatable):
                session.store.require_existing()
            orders = await session.records(DISMISSAL)
        except Exception as error:  # noqa: BLE001 - no answer, from any store: it tries again
            if isinstance(error, CorruptError) and error.is_replaced:
                await session.store.close()  # the next try opens what is there by then
            return False
        if not self._entry.is_dismissed and any(one.name == self._entry.name for one in orders):
            self._entry = msgspec.structs.replace(self._entry, is_dismissed=True)
            self._when_dismissed()
        return True

    async def _remove(self, session: Session) -> None:
        if self._is_there:
            name = self._entry.name
            order = [DeleteRecord(DISMISSAL, name, None)] if self._entry.is_dismissed else []
            with suppress(CasqueError):
                await session.submit_all([DeleteRecord(SUPERVISOR, name, None), *order])
