"""Body: work under a HeartbeatManager or a Lock, on a clock that the test controls."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import pytest

from casque.errors import LeaseLostError
from casque.queues.heartbeat import HeartbeatManager
from casque.queues.lock import Lock
from casque.testing.rig import Rig

Context = TypeVar("Context", HeartbeatManager, Lock)


class Body(Generic[Context]):
    """Work inside a context that sends heartbeats and can be lost, until `finish` is called.

    It runs in a task under `async with`, or on a thread under `with`.
    """

    def __init__(self, context: Context, *, on_thread: bool) -> None:
        self.context: Context = context
        self.on_thread = on_thread
        self._loop = asyncio.get_running_loop()
        self._entered = asyncio.Event()
        self._finish_task, self._finish_thread = asyncio.Event(), threading.Event()
        self._was_cancelled = False

    async def __aenter__(self) -> Self:
        work = asyncio.to_thread(self._work_on_thread) if self.on_thread else self._work_in_task()
        self._over = asyncio.create_task(work)
        entered = asyncio.create_task(self._entered.wait())
        await asyncio.wait({self._over, entered}, return_when=asyncio.FIRST_COMPLETED)
        if self._over.done():
            entered.cancel()
            self._over.result()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._let_finish()
        await asyncio.wait({self._over})
        failure = None if self._over.cancelled() else self._over.exception()
        if failure is not None and error is None and not self.context.lost:
            raise failure

    async def _work_in_task(self) -> None:
        async with self.context:
            self._entered.set()
            try:
                await self._finish_task.wait()
            except asyncio.CancelledError:
                self._was_cancelled = True
                raise

    def _work_on_thread(self) -> None:
        with self.context:
            self._loop.call_soon_threadsafe(self._entered.set)
            self._finish_thread.wait()

    def _let_finish(self) -> None:
        self._finish_task.set()
        self._finish_thread.set()

    async def finish(self) -> None:
        """Let the work end. Raises its error if it has one."""
        self._let_finish()
        await self._over

    async def beat(self, rig: Rig) -> None:
        """Let time pass to the next heartbeat, and wait for its answer."""
        await self.asleep(rig)
        keeper: Any = self.context._keeper
        due_us = keeper._beat_us
        while self._is_kept() and rig.clock.monotonic() < due_us:
            rig.clock.advance_to_next()  # it reads the clock more often than it beats
            await self.asleep(rig)

    async def asleep(self, rig: Rig) -> None:
        """Wait until no heartbeat is under way: if time passed now, it would arrive too late."""
        for _ in range(5_000):
            keeper: Any = self.context._keeper
            waits = rig.clock._sleepers and not keeper._is_beating
            if waits or not self._is_kept():
                return
            await asyncio.wait({self._over}, timeout=0.001)
        raise AssertionError("the context sends no more heartbeats")

    def _is_kept(self) -> bool:
        """Whether heartbeats are still sent."""
        keeper: Any = self.context._keeper
        return keeper.loss is None and not self._over.done()

    async def until_lost(self, rig: Rig) -> LeaseLostError:
        """Let time pass until the context is lost, which ends the work. Returns the error."""
        for _ in range(100):
            if not self._is_kept():
                break
            await self.beat(rig)
        assert self.context.lost, "`lost` was never set"
        if self.on_thread:
            self._let_finish()  # nothing can stop a thread: its code has to check `lost`
        with pytest.raises(LeaseLostError) as loss:
            await rig.until_done(self._over)
        assert self._was_cancelled is not self.on_thread
        return loss.value
