"""The event loop of a worker: it outlives what tasks do to it, and ends when it is to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from casque.worker.report import LOGGER

T = TypeVar("T")

_LAST_SECONDS = 1.0
"""How long tasks that were cancelled at the very end are waited for."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, but nobody else can interrupt it, and it waits for nobody at the end."""
    loop = asyncio.new_event_loop()
    _loops.add(loop)
    asyncio.set_event_loop(loop)
    try:
        return _run_on(loop, main)
    finally:
        _close(loop)


def _run_on(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    work = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(work)
        except BaseException as error:
            if work.done():
                raise
            # A task's own asyncio task raised SystemExit, or somebody stopped the loop: that is
            # for the one job to bear, and not for all the others.
            with suppress(Exception):
                LOGGER.warning("a task has interrupted its event loop, which goes on: %r", error)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            _run_through(loop, asyncio.wait(left, timeout=_LAST_SECONDS))
        closing = loop.create_task(loop.shutdown_asyncgens())
        _run_through(loop, asyncio.wait([closing], timeout=_LAST_SECONDS))
    finally:
        asyncio.set_event_loop(None)
        loop.close()  # which lets go of the threads of `asyncio.to_thread` without waiting for them


def _run_through(loop: asyncio.AbstractEventLoop, waiting: Coroutine[Any, Any, object]) -> None:
    work = loop.create_task(waiting)
    while not work.done():
        with suppress(BaseException):  # of what is cancelled, each may answer as it likes
            loop.run_until_complete(work)


class _NoMore:
    """A selector of which every use ends the process."""

    def __getattr__(self, name: str) -> NoReturn:
        os._exit(0)


_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def _silence_loops() -> None:
    """In the child of a fork: the task that forked may go on, but the loop's others may not.

    At its first `await` the child would run the jobs of all the others, and take
    from the parent what its loop is to be woken by.
    """
    for loop in _loops:
        if hasattr(loop, "_ready") and hasattr(loop, "_selector"):
            loop._ready.clear()  # noqa: SLF001 - there is no other way to hold it up
            loop._selector = _NoMore()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_silence_loops)
