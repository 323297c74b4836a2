"""Keeper: renews a claim while a block of code runs, and ends the block if the claim is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from casque.errors import CASConflictError, CasqueError, StorageError
from casque.system import forks
from casque.system.clock import LOOK_US, Bell, Clock, StepWatch, Stopwatch, drive

_RETRIES_PER_LEASE = 10

Beat = Callable[[], Awaitable[bool]]
"""Renews the claim. False if its holder gave it up, so that there is nothing to renew."""


class Keeper:
    """Renews the claim every `every_us` until stopped, in a task or in a thread.

    A renewal is called a beat. If the storage does not answer, the claim is not lost yet. Beats
    follow at a shorter interval, until the lease has expired without a successful beat.
    """

    def __init__(
        self,
        beat: Beat,
        every_us: int,
        lease_us: int | None,
        clock: Clock,
        taken_us: int | None = None,
    ) -> None:
        self._beat = beat
        self._every_us = every_us
        self._lease_us = lease_us
        self._clock = clock
        # A lease starts with its claim, however late the work begins.
        self._renewed = Stopwatch(clock, taken_us)
        self._steps = StepWatch(clock)
        self._beat_us = 0
        """When the next beat is due, by the monotonic clock."""
        self.loss: Exception | None = None
        """Why the claim is lost; None while it is not."""
        self._cancelling = 0
        self._stop: Bell | None = None
        self._is_stopping = False
        self._has_cancelled = False
        self._is_beating = False
        self._is_given_up = False
        self._trouble: Exception | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._generation = 0

    @property
    def is_lost(self) -> bool:
        """True if the claim is lost, or counts as lost: no beat succeeded for a whole lease."""
        return self.loss is not None or (
            not self._is_given_up
            and self._lease_us is not None
            and self._renewed.elapsed_us() >= self._lease_us
        )

    @property
    def reason(self) -> Exception:
        """Why the claim is lost."""
        return self.loss or self._trouble or StorageError("no heartbeat got through for a lease")

    def start(self) -> None:
        """Beat in a new task; cancel the current task when the claim is lost."""
        body = asyncio.current_task()
        assert body is not None
        self._cancelling = body.cancelling()
        self._stop = self._clock.bell(blocking=False)
        self._task = asyncio.create_task(self._watch_over(body))

    async def stop(self, *, raised: BaseException | None) -> bool:
        """Stop beating. True if the body ended, or should have ended, because the claim was lost.

        It waits for a running beat, because only the renewed claim can be given up.
        """
        assert self._task is not None
        assert self._stop is not None
        self._is_stopping = True
        self._stop.ring()
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        self._task.result()
        if self.loss is None:
            return False
        was_ours = False
        if self._has_cancelled:
            body = asyncio.current_task()
            assert body is not None
            was_ours = body.uncancel() <= self._cancelling
        return raised is None or (isinstance(raised, asyncio.CancelledError) and was_ours)

    def start_thread(self) -> None:
        """Beat in a thread, which cannot stop the caller's code: that code checks `is_lost`."""
        self._stop = self._clock.bell(blocking=True)
        self._thread = threading.Thread(
            target=lambda: drive(self._keep()), name="casque-keeper", daemon=True
        )
        self._thread.start()
        self._generation = forks.generation()

    def stop_thread(self, *, raised: BaseException | None) -> bool:
        assert self._stop is not None
        assert self._thread is not None
        if self._generation != forks.generation():
            return False  # the thread and the claim belong to the parent process
        self._stop.ring()
        self._thread.join()
        return self.is_lost and raised is None

    async def _watch_over(self, body: asyncio.Task[Any]) -> None:
        await self._keep()
        if self.loss is not None and not self._is_stopping:
            self._has_cancelled = True
            body.cancel()

    async def _keep(self) -> None:
        assert self._stop is not None
        pause = max(self._every_us - self._renewed.elapsed_us(), 0)
        while not await self._is_stopped_within(pause):
            sent = Stopwatch(self._clock)
            self._is_beating = True
            try:
                if not await self._beat_within_lease():
                    self._is_given_up = True
                    return
            except (StorageError, CASConflictError) as error:
                # No answer, or others kept winning the write: the claim may still be ours.
                self._trouble = error
                if self._lease_us is not None and self._renewed.elapsed_us() >= self._lease_us:
                    self.loss = error
                    return
                pause = (self._lease_us or self._every_us) // _RETRIES_PER_LEASE
            except CasqueError as loss:
                self.loss = loss
                return
            else:
                # From before it was sent: the store counts from its arrival, which is later.
                self._renewed, pause = sent, self._every_us
            finally:
                self._is_beating = False

    async def _is_stopped_within(self, span_us: int) -> bool:
        """Wait until stopped (True), or until the time is over or the clock jumps (False)."""
        assert self._stop is not None
        self._beat_us = self._clock.monotonic() + span_us
        while not await self._stop.wait(min(span_us, LOOK_US)):
            span_us = self._beat_us - self._clock.monotonic()
            if self._steps.has_stepped() or span_us <= 0:
                return False
        return True

    async def _beat_within_lease(self) -> bool:
        """Make one beat. In a task, a beat that hangs is abandoned when the lease ends."""
        if self._task is None or self._lease_us is None:
            return await self._beat()
        bell = self._clock.bell(blocking=False)
        beat = asyncio.ensure_future(self._beat())
        beat.add_done_callback(lambda _: bell.ring())
        left = self._lease_us - self._renewed.elapsed_us()
        try:
            if not await bell.wait(max(left, self._lease_us // _RETRIES_PER_LEASE)):
                raise StorageError("a heartbeat had no answer before the lease was over")
            return beat.result()
        finally:
            beat.cancel()
