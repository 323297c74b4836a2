"""Runtime: the event loop, thread switching, memory use and exit of a worker's process."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar
from weakref import WeakSet

from casque.system.clock import SECOND_US
from casque.system.forks import in_child
from casque.worker.logging.events import LOGGER

T = TypeVar("T")

_LAST_SECONDS = 1.0
"""How long the worker waits at the very end for asyncio tasks that it cancelled."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` like asyncio.run, except that no task can interrupt it or delay its end.

    Raises OSError if a task has closed the descriptors of the event loop.
    """
    loop = asyncio.new_event_loop()
    _loops.add(loop)
    asyncio.set_event_loop(loop)
    work = loop.create_task(main)
    _run_through(loop, work, _warn)  # a broken loop stays open: others may have its descriptors now
    _close(loop)
    return work.result()


def _warn(error: BaseException) -> None:
    # An asyncio task of a job raised SystemExit, or stopped the loop. The other jobs continue.
    with suppress(Exception):
        LOGGER.warning("a task interrupted the event loop, which keeps running: %r", error)


def _run_through(
    loop: asyncio.AbstractEventLoop,
    work: asyncio.Task[Any],
    when_interrupted: Callable[[BaseException], None],
) -> None:
    """Run the loop until `work` is done, even if something interrupts the loop."""
    while not work.done():
        try:
            loop.run_until_complete(work)
        except BaseException as error:
            if work.done():
                break  # the caller gets it from `work.result()`
            # Exceptions of tasks do not leave the loop, so its own selector raised this one.
            if isinstance(error, OSError):
                error.add_note(
                    "A task has broken the event loop of its worker by closing descriptors that "
                    "it did not open. The running jobs are due again when their leases end."
                )
                raise
            when_interrupted(error)


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
        loop.close()  # without waiting for the threads of `asyncio.to_thread`


def _run_last(loop: asyncio.AbstractEventLoop, waiting: Coroutine[Any, Any, object]) -> None:
    with suppress(OSError):
        # Cancelled tasks may raise anything.
        _run_through(loop, loop.create_task(waiting), lambda _: None)


class _NoMore:
    """A selector that ends the process when it is used."""

    def __getattr__(self, name: str) -> NoReturn:
        os._exit(0)


_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def _silence_loops() -> None:
    """In the child of a fork, let only the task that forked continue.

    Otherwise the child, at its first `await`, would run the jobs of all other
    tasks and take wake-ups from the parent's loop.
    """
    for loop in _loops:
        if hasattr(loop, "_ready") and hasattr(loop, "_selector"):
            loop._ready.clear()  # noqa: SLF001 - there is no public API for this
            loop._selector = _NoMore()  # noqa: SLF001


in_child(_silence_loops)


# -- thread switching ----------------------------------------------------------

_TURN_SECONDS = 0.000_1
_LONG_US = SECOND_US // 2


class Switching:
    """The thread switch interval that one worker needs, until it is closed.

    With Python's default of 5 ms and 32 plain functions that compute, the store thread waits a
    sixth of a second for each turn. A heartbeat needs dozens of turns, which can take longer than a
    lease. So turns are short, unless the plain functions are short themselves. Short turns would
    cost short functions a quarter of their rate, and these functions end soon anyway.
    """

    _lock = threading.Lock()
    _workers: ClassVar[dict[Switching, bool]] = {}
    """The workers of this process; True for those that need short turns."""
    _own_seconds = 0.0
    """The interval before the first worker changed it."""

    def __init__(self) -> None:
        self._is_often: bool | None = None
        self._is_long = False
        """True if a plain function had been running for long at the last check."""
        self._has_ended = False
        """True if a plain function has ended since the last check."""
        self._is_closed = False

    def look(self, ages_us: Iterable[int]) -> None:
        """Choose the switch interval from how long each non-async function has been running."""
        self._is_long = any(age > _LONG_US for age in ages_us)
        self._want(often=self._is_long or not self._has_ended)
        self._has_ended = False

    def ended(self) -> None:
        """Note that a plain function has ended."""
        self._has_ended = True
        if not self._is_long:
            self._want(often=False)

    def close(self) -> None:
        """Give up this interval. The last worker to close restores the original one."""
        self._is_closed = True
        with Switching._lock:
            if self._workers.pop(self, None) is not None:
                self._set()

    def _want(self, *, often: bool) -> None:
        if often is self._is_often or self._is_closed:
            return
        self._is_often = often
        with Switching._lock:
            if not self._workers:
                Switching._own_seconds = sys.getswitchinterval()
            self._workers[self] = often
            self._set()

    def _set(self) -> None:
        seconds = Switching._own_seconds
        is_short = any(self._workers.values())
        sys.setswitchinterval(min(seconds, _TURN_SECONDS) if is_short else seconds)


# -- memory --------------------------------------------------------------------

_MIB = 1024 * 1024
_STATM = Path("/proc/self/statm")


def resident_mib() -> int:
    """Return the MiB of memory in use now, or the peak if the system does not report the former."""
    try:
        pages = int(_STATM.read_text("ascii").split()[1])
    except OSError:
        import resource  # noqa: PLC0415 - not on every system

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // (_MIB if sys.platform == "darwin" else 1024)
    return pages * os.sysconf("SC_PAGE_SIZE") // _MIB


# -- leaving -------------------------------------------------------------------

_PATIENCE_SECONDS = 2.0
"""How long threads that tasks left running may take to end by themselves."""


def leave(code: int) -> int:
    """Return the exit code, and end the process soon after, even if threads still run.

    At exit Python joins every thread that is not a daemon. Most threads end by then, for example
    those of an idle executor. A thread that a task left in an endless loop would keep the process
    for ever. So this logs the thread's name and ends the process.
    """
    main = threading.current_thread()

    def see_to_it() -> None:
        threading.Event().wait(_PATIENCE_SECONDS)
        others = [one for one in threading.enumerate() if one is not main and not one.daemon]
        left = ", ".join(one.name for one in others)
        LOGGER.warning(
            "a task left something running that keeps the process from ending (%s); "
            "ending the process anyway",
            f"threads: {left}" if left else "an exit handler",
        )
        leave_at_once(code)

    threading.Thread(target=see_to_it, name="casque-leaving", daemon=True).start()
    return code


def leave_at_once(code: int) -> NoReturn:
    """End the process at once, without waiting for its threads."""
    logging.shutdown()
    flush_output()
    os._exit(code)


def flush_output() -> None:
    """Flush the output that tasks have printed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # nobody reads it any more, or the user replaced it
            stream.flush()
