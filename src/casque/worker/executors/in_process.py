"""Functions run on the event loop, or in a thread of the worker's process."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from types import CoroutineType
from typing import Any

from casque.errors import InvalidError
from casque.tasks.current import become
from casque.worker.attempt import InvalidResult, RunningAttempt
from casque.worker.executors.middleware import Middleware
from casque.worker.runtime import Switching, flush_output


def leave_if_forked(pid: int) -> None:
    """End this process if it is a fork of `pid`: only the worker may settle the job."""
    if os.getpid() != pid:
        flush_output()
        os._exit(0)


def encoded(attempt: RunningAttempt, value: object) -> bytes | None:
    try:
        return attempt.task.call.encode_result(value)
    except InvalidError as error:
        raise InvalidResult(error) from error


def _called(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = function(*args, **kwargs)
    # A plain wrapper around an async function returns a coroutine, which must still run.
    return asyncio.run(value) if type(value) is CoroutineType else value


def run_plain(
    attempt: RunningAttempt, middleware: Middleware | None, args: list[Any], kwargs: dict[str, Any]
) -> bytes | None:
    """Run a plain function on this thread and return its result as JSON."""
    function, pid = attempt.task.function, os.getpid()
    become(attempt.running)
    try:
        if middleware is None:
            value = _called(function, args, kwargs)
        else:
            value = middleware.call(attempt, lambda: _called(function, args, kwargs))
    finally:
        leave_if_forked(pid)
    return encoded(attempt, value)


class LoopExecutor:
    """Runs async functions, each in the asyncio task of its attempt."""

    def __init__(self, middleware: Middleware | None) -> None:
        self._middleware = middleware

    async def call(
        self, attempt: RunningAttempt, args: list[Any], kwargs: dict[str, Any]
    ) -> bytes | None:
        function, pid = attempt.task.function, os.getpid()
        become(attempt.running)
        try:
            if self._middleware is None:
                value = await function(*args, **kwargs)
            else:
                value = await self._middleware.acall(attempt, lambda: function(*args, **kwargs))
        finally:
            leave_if_forked(pid)
        return encoded(attempt, value)

    def interrupt(self, attempt: RunningAttempt) -> bool:
        assert attempt.work is not None
        attempt.work.cancel()
        return True


class ThreadExecutor:
    """Runs plain functions in threads, one thread per slot."""

    def __init__(self, middleware: Middleware | None, switching: Switching) -> None:
        self._middleware = middleware
        self._switching = switching
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = self._running = 0
        self._ended: deque[tuple[asyncio.Future[_Result], _Result]] = deque()
        self._is_coming = False
        """True while a call of `_take` is queued on the loop."""

    async def call(
        self, attempt: RunningAttempt, args: list[Any], kwargs: dict[str, Any]
    ) -> bytes | None:
        ending = _Ending(attempt, self._loop)
        context = contextvars.copy_context()

        def work() -> None:
            ended: _Result
            try:
                ended = context.run(run_plain, attempt, self._middleware, args, kwargs), None
            except BaseException as error:  # noqa: BLE001 - the attempt raises it
                ended = None, error
            attempt.is_over = True  # from now on it cannot time out, however late the loop is
            self._end(ending, ended)

        if self._running >= self._threads:
            self._start_thread()
        self._running += 1
        self._work.put(work)
        try:
            while not ending.done():
                with suppress(asyncio.CancelledError):  # by another task: keep waiting
                    await ending
        finally:
            self._running -= 1
            self._switching.ended()
        result, error = ending.result()
        if error is not None:
            raise error
        return result

    def _start_thread(self) -> None:
        # A daemon: a function that never ends must not keep the process from ending.
        name = f"casque-task-{self._threads + 1}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError:  # no more threads: the function waits for one that exists
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def close(self) -> None:
        """End the threads. A thread whose function still runs ends after that function."""
        for _ in range(self._threads):
            self._work.put(None)

    def _end(self, ending: asyncio.Future[_Result], ended: _Result) -> None:
        self._ended.append((ending, ended))
        if not self._is_coming:
            self._is_coming = True
            with suppress(RuntimeError):  # the loop is closed: the worker has ended
                self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._is_coming = False  # before reading: a later result queues another call
        while self._ended:
            ending, ended = self._ended.popleft()
            if not ending.done():
                ending.set_result(ended)

    def interrupt(self, attempt: RunningAttempt) -> bool:  # noqa: ARG002 - no thread can be ended
        return False


class _Ending(asyncio.Future["_Result"]):
    """A future for a thread's result. It cannot be cancelled before the attempt is settled."""

    def __init__(self, attempt: RunningAttempt, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._attempt = attempt

    def cancel(self, msg: Any = None) -> bool:
        return self._attempt.is_settled and super().cancel(msg)


_Result = tuple[bytes | None, BaseException | None]
"""The result of a function, or the exception that it raised."""
