"""Live settings: what an operator has set for the store, as of a moment ago."""

from __future__ import annotations

import asyncio
import logging

from casque.errors import CasqueError
from casque.record import CONFIG
from casque.system.clock import SECOND_US
from casque.tasks.app import TaskApp
from casque.worker.shell.settings import Settings, settings_of, unfit

_FRESH_US = SECOND_US
_WAIT_SECONDS = 2.0
"""How long to wait for a storage that may be away."""

_log = logging.getLogger("casque.worker")


class LiveSettings:
    """The settings of an app's store, read again when they are needed and older than a second."""

    def __init__(self, app: TaskApp) -> None:
        self._app = app
        self.known = Settings()
        """The latest that were read; those that hold by default before that."""
        self._read_us: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._trouble = ""
        """What was wrong with them the last time, which is said once."""

    async def refresh(self) -> None:
        """Have them fresh; when the storage does not answer, it stays with those that were."""
        now = self._app.store.clock.monotonic()
        if self._read_us is not None and now - self._read_us < _FRESH_US:
            return
        reading, loop = self._reading, asyncio.get_running_loop()
        if reading is None or reading.done() or reading.get_loop() is not loop:
            reading = self._reading = asyncio.create_task(self._read(now))
        await asyncio.wait([reading], timeout=_WAIT_SECONDS)

    async def _read(self, now: int) -> None:
        try:
            records = await self._app.async_queue._session.records(CONFIG)  # noqa: SLF001
        except CasqueError:
            return  # the storage is away; the worker says so
        self._read_us, self.known = now, settings_of(records)
        trouble = ", ".join(unfit(records))
        if trouble and trouble != self._trouble:
            _log.warning(
                "settings in the store make no sense, and are not minded: %s; set them anew by "
                "`queuectl config set`",
                trouble,
            )
        self._trouble = trouble
