"""LoopBell: a wake-up signal (`Bell`) that a task of an event loop waits for."""

from __future__ import annotations

import asyncio

from casque.system.clock import SECOND_US


class LoopBell:
    """A Bell that suspends its task. Create and wait in one event loop; ring from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the waiter's loop is closed: there is no task left to wake
            return

    async def wait(self, timeout_us: int | None) -> bool:
        try:
            async with asyncio.timeout(None if timeout_us is None else timeout_us / SECOND_US):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
