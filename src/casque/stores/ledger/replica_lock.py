"""ReplicaLock: a lock on a ledger's memory, for threads or for tasks of several event loops.

Tasks get the lock in the order in which they asked. An asyncio.Lock works in one loop only, and a
threading.Lock would block the loop. In the child of a fork the lock is free, because its holder is
in the parent.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import AbstractAsyncContextManager

from casque.system import forks, reentry

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


def new_lock(*, blocking: bool) -> AbstractAsyncContextManager[None]:
    return _ThreadLock() if blocking else _TaskLock()


class _ThreadLock:
    """A lock for threads. Its coroutines never suspend."""

    def __init__(self) -> None:
        self.renew()
        forks.renew_in_child(self)

    def renew(self) -> None:
        self._lock = threading.RLock()

    async def __aenter__(self) -> None:
        forks.generation()  # a child gets a new lock
        reentry.refuse(self._lock)
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            return  # the holder forked inside, and this is the child: nobody holds it


class _TaskLock:
    """A lock for tasks of any loop. A release passes it to the task that waited longest."""

    def __init__(self) -> None:
        self.renew()
        forks.renew_in_child(self)

    def renew(self) -> None:
        self._mutex = threading.Lock()
        self._is_taken = False
        self._waiting: deque[_Waiter] = deque()

    async def __aenter__(self) -> None:
        forks.generation()  # in a child, nobody holds it
        loop = asyncio.get_running_loop()
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return
            waiter: _Waiter = (loop, loop.create_future())
            self._waiting.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            with self._mutex:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                    raise
            if waiter[1].done() and not waiter[1].cancelled():
                self._hand_over()  # the lock was already handed to this task
            raise

    async def __aexit__(self, *_: object) -> None:
        self._hand_over()

    def _hand_over(self) -> None:
        with self._mutex:
            while self._waiting:
                loop, future = self._waiting.popleft()
                try:
                    loop.call_soon_threadsafe(self._take, future)
                except RuntimeError:  # its loop is closed: the waiter no longer exists
                    continue
                return
            self._is_taken = False

    def _take(self, future: asyncio.Future[None]) -> None:
        if future.cancelled():
            self._hand_over()
        else:
            future.set_result(None)
