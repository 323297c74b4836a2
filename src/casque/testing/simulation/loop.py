"""ProcessLoop: the event loop of one simulated process, run on virtual time.

It can stand still while time goes on, like a stopped process. And it can be
dropped at any callback, like a killed process: then no `finally` runs, because
none of its code ever runs again.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

from casque.system.clock import SECOND_US
from casque.testing.simulation.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MILLION = 1_000_000
_SPINNING = 100_000
"""This many callbacks at one instant mean an endless loop."""


class ProcessLoop(asyncio.BaseEventLoop):
    """One process's tasks. `drift` is how fast its monotonic clock runs, in ppm."""

    _is_running = False
    is_dead = False

    def __init__(self, world: World, drift: int = 0, started_us: int = 0) -> None:
        super().__init__()
        self._world = world
        self._rate = _MILLION + drift
        self._offset = started_us
        self._ready: deque[asyncio.Handle] = deque()
        self._expired: list[asyncio.Handle] = []
        """Timers that expired while it stood still."""
        self.is_stopped = False
        self.asleep_us = 0
        """How long it has stood still in total."""
        self._stopped_at = 0
        self.fuse: int | None = None
        """After this many callbacks the loop calls `fate`."""
        self.fate: Callable[[], None] | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self.troubles: list[BaseException] = []
        """Errors that no task raised."""

    # -- time ------------------------------------------------------------------

    def steady_us(self) -> int:
        """The process's monotonic clock."""
        return self._offset + self._world.elapsed_us * self._rate // _MILLION

    def awake_us(self) -> int:
        """Return how long it has been awake, in virtual time."""
        now = self._stopped_at if self.is_stopped else self._world.elapsed_us
        return now - self.asleep_us

    def time(self) -> float:
        return self.steady_us() / SECOND_US

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        steady = when * SECOND_US - self._offset
        self._world.after(
            math.ceil(steady * _MILLION / self._rate) - self._world.elapsed_us,
            lambda: self._expire(handle),
        )
        return handle

    def _expire(self, handle: asyncio.Handle) -> None:
        if handle.cancelled() or self.is_dead:
            return
        (self._expired if self.is_stopped else self._ready).append(handle)
        self.run_ready()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it among the world's events, where it does nothing."""

    # -- callbacks -------------------------------------------------------------

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_dead:
            self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def wake(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Run a callback from outside the process, for an answer that arrives."""
        self.call_soon(callback, *args)
        self.run_ready()

    def run_ready(self) -> None:
        """Run all callbacks that are ready at this instant."""
        if self._is_running:
            return
        self._is_running = True
        asyncio._set_running_loop(self)
        try:
            count = 0
            while self._ready and not self.is_stopped and not self.is_dead:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
                    self._burn()
                count += 1
                assert count < _SPINNING, "tasks wake each other endlessly, and no time passes"
        finally:
            asyncio._set_running_loop(None)
            self._is_running = False

    def _burn(self) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if not self.fuse:
                self.fuse = None
                assert self.fate is not None
                self.fate()

    # -- standing still, and death ---------------------------------------------

    def stop_for(self, span_us: int, *, answers_first: bool) -> None:
        """Run nothing for this long; then run first the answers that came, or first the timers."""
        if self.is_stopped or self.is_dead:
            return
        self.is_stopped, self._stopped_at = True, self._world.elapsed_us
        self._world.after(span_us, lambda: self.go_on(answers_first=answers_first))

    def go_on(self, *, answers_first: bool = True) -> None:
        if not self.is_stopped or self.is_dead:
            return
        self.is_stopped = False
        self.asleep_us += self._world.elapsed_us - self._stopped_at
        if answers_first:
            self._ready.extend(self._expired)
        else:
            self._ready.extendleft(reversed(self._expired))
        self._expired = []
        self.run_ready()

    def die(self) -> None:
        """Stop running its code permanently. Its sent requests are still under way."""
        self.is_dead = True
        self._ready.clear()
        self._expired.clear()

    def bury(self) -> None:
        """Drop its tasks, without a warning about unfinished ones."""
        self.is_dead = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that never started
            for task in self.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                if not task.done():
                    _close(task)
            self.tasks.clear()

    # -- the rest of asyncio's loop interface ----------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self.tasks.append(task)
        return task

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work in the process, from outside it."""
        task = self.create_task(work)
        self.run_ready()
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.troubles.append(context.get("exception") or AssertionError(context["message"]))


def _close(task: asyncio.Task[Any]) -> None:
    coroutine = task.get_coro()
    assert coroutine is not None
    try:
        coroutine.close()
    except (RuntimeError, ValueError):
        return  # it tried to continue, which a dead process must not
