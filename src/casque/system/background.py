"""Background: work that runs beside the callers of a store, on their event loop or on a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from casque.system import forks
from casque.system.clock import drive

_YIELD_SECONDS = 0.0005
"""How long a thread leaves the interpreter to others between two steps."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Background(Protocol):
    """Runs one piece of work at a time."""

    @property
    def is_busy(self) -> bool: ...

    def start(self, work: Work) -> None:
        """Run `work`, which must not raise. Do not call it while another is running."""
        ...

    async def pause(self) -> None:
        """Called by the work between short steps: let others run. Raises once it must stop."""
        ...

    async def stop(self, seconds: float) -> None:
        """Wait until the work ends; after this time, make it stop."""
        ...


class StoppedError(Exception):
    """The work was asked to stop."""


class ThreadBackground:
    """Runs work on a daemon thread, for stores whose coroutines never suspend."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._generation = forks.generation()
        self._is_stopped = threading.Event()

    @property
    def is_busy(self) -> bool:
        is_here = self._generation == forks.generation()  # a child has no thread of its parent
        return is_here and self._thread is not None and self._thread.is_alive()

    def start(self, work: Work) -> None:
        self._generation, self._is_stopped = forks.generation(), threading.Event()
        self._thread = threading.Thread(
            target=lambda: drive(work()), name="casque-housekeeping", daemon=True
        )
        self._thread.start()

    async def pause(self) -> None:
        if self._is_stopped.wait(_YIELD_SECONDS):
            raise StoppedError

    async def stop(self, seconds: float) -> None:
        if self.is_busy and self._thread is not None:
            self._thread.join(seconds)
            self._is_stopped.set()


class TaskBackground:
    """Runs work as a task of the caller's event loop."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        task = self._task
        return task is not None and not task.done() and not task.get_loop().is_closed()

    def start(self, work: Work) -> None:
        self._task = asyncio.ensure_future(work())

    async def pause(self) -> None:
        await asyncio.sleep(0)  # noqa: TID251 - no time passes

    async def stop(self, seconds: float) -> None:
        task = self._task
        if task is None or not self.is_busy or task.get_loop() is not asyncio.get_running_loop():
            return
        await asyncio.wait({task}, timeout=seconds)
        task.cancel()
