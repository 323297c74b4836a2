"""LoopRunner: an event loop on its own thread, for sync code on stores that need one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar
from weakref import finalize

from casque.errors import InvalidError
from casque.queues.session import Session
from casque.rules.operations import Operation
from casque.system import forks, reentry

T = TypeVar("T")


class LoopRunner:
    """An event loop on its own thread, shared by all calling threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = threading.RLock()
        self._is_closed = False
        self._generation = forks.generation()
        # A daemon: a queue that was not closed must not keep the process from ending.
        self._thread = threading.Thread(
            target=_serve, args=(self._loop,), name="casque-loop", daemon=True
        )
        self._thread.start()
        finalize(self, _stop, self._loop)  # nor leave a thread when it is garbage

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._generation != forks.generation():
            coroutine.close()
            raise InvalidError(
                "this was opened before a fork, and its thread exists only in the parent "
                "process; open a new one in the child."
            )
        if reentry.is_mine(self._closing):
            coroutine.close()
            reentry.refuse(self._closing)
        with self._closing:  # a call after the end of the loop would wait forever
            if self._is_closed:
                coroutine.close()
                raise InvalidError("this queue is closed; open a new one.")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise InvalidError("this queue was closed while the call was waiting.") from None
        except BaseException:
            # Ctrl-C, or an exception of a signal handler: a dequeue that continued to wait would
            # claim a job for no caller. For other errors the future is done already.
            future.cancel()
            raise

    def commit(self, session: Session, operation: Operation) -> Any:
        return self.run(session.submit(operation))

    def close(self) -> None:
        if self._generation != forks.generation():
            return
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                _stop(self._loop)
        self._thread.join()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
