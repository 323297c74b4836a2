"""DaemonThreads: runs blocking calls on threads that the end of the process does not wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar
from weakref import finalize

T = TypeVar("T")
_Calls = SimpleQueue[Callable[[], None] | None]


class DaemonThreads:
    """Like ThreadPoolExecutor, but with daemon threads, which Python does not join at exit."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._calls: _Calls = SimpleQueue()
        # Threads hold no reference to this object, so they end with it if nobody closes it.
        self.close = finalize(self, self._calls.put, None)
        """End the threads once they have made all submitted calls."""
        self.close.atexit = False  # an exit handler that runs later may have calls to make

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` on an idle thread or a new one; if `most` threads are busy, queue it."""
        done: Future[T] = Future()

        def call() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:  # noqa: BLE001 - raised in the waiting caller
                    done.set_exception(error)

        if self._idle.acquire(blocking=False) or self._count >= self._most:
            self._calls.put(call)
            return done
        serving = (call, self._calls, self._idle)
        try:
            threading.Thread(target=_serve, args=serving, name=self._name, daemon=True).start()
            self._count += 1
        except RuntimeError:  # the interpreter is ending and no thread can start: call it here
            call()
        return done


def _serve(call: Callable[[], None] | None, calls: _Calls, idle: threading.Semaphore) -> None:
    while call is not None:
        call()
        call = None  # release what it references before waiting for the next call
        idle.release()
        call = calls.get()
    calls.put(None)  # for the next thread
