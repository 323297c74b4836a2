"""The event loop of a worker: it outlives what tasks do to it, and ends when it is to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from casque.errors import CasqueError
from casque.system.forks import in_child
from casque.worker.logging.events import LOGGER

T = TypeVar("T")

_LAST_SECONDS = 1.0
"""How long tasks that were cancelled at the very end are waited for."""
_FAILURES = 3
"""So many in a row, with nothing done in between, and a loop is broken."""


class BrokenLoopError(CasqueError):
    """A task has closed what the loop waits by. It can neither go on nor end what it runs."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, but nobody else can interrupt it, and it waits for nobody at the end."""
    loop = asyncio.new_event_loop()
    _loops.add(loop)
    asyncio.set_event_loop(loop)
    work = loop.create_task(main)
    try:
        _run_through(loop, work, _warn)
    except BrokenLoopError:
        asyncio.set_event_loop(None)
        raise  # it is not closed: its descriptors may be somebody else's by now
    _close(loop)
    return work.result()


def _warn(error: BaseException) -> None:
    # A task's own asyncio task raised SystemExit, or somebody stopped the loop: that is
    # for the one job to bear, and not for all the others.
    with suppress(Exception):
        LOGGER.warning("a task has interrupted its event loop, which goes on: %r", error)


def _run_through(
    loop: asyncio.AbstractEventLoop,
    work: asyncio.Task[Any],
    when_interrupted: Callable[[BaseException], None],
) -> None:
    """Until it is done, whatever interrupts the loop. BrokenLoopError when that turns no more."""
    failures = 0
    while not work.done():
        turned = asyncio.Event()
        mark = loop.call_soon(turned.set)
        try:
            loop.run_until_complete(work)
        except BaseException as error:
            if work.done():
                break  # it has its own, for whoever asks it for its result
            # What tasks raise comes out of it only if it is no Exception.
            is_its_own = isinstance(error, Exception) and not turned.is_set()
            failures = failures + 1 if is_its_own else 0
            if failures == _FAILURES:
                raise BrokenLoopError(
                    f"a task has broken the event loop of its worker, by closing descriptors that "
                    f"are not its own: {error!r}. Jobs that ran are due again when their leases "
                    "end."
                ) from error
            when_interrupted(error)
        mark.cancel()


def _close(loop: asyncio.AbstractEventLoop) -> None:
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            _run_last(loop, asyncio.wait(left, timeout=_LAST_SECONDS))
        closing = loop.create_task(loop.shutdown_asyncgens())
        _run_last(loop, asyncio.wait([closing], timeout=_LAST_SECONDS))
    finally:
        asyncio.set_event_loop(None)
        loop.close()  # which lets go of the threads of `asyncio.to_thread` without waiting for them


def _run_last(loop: asyncio.AbstractEventLoop, waiting: Coroutine[Any, Any, object]) -> None:
    with suppress(BrokenLoopError):
        # Of what is cancelled, each may answer as it likes.
        _run_through(loop, loop.create_task(waiting), lambda _: None)


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


in_child(_silence_loops)
