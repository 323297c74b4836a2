"""Runner: runs our coroutines for code without an event loop.

On a `blocking` store, no coroutine suspends, so the caller's thread runs it like a function.
On any other store, a thread with its own event loop runs it.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from casque.queues.session import Session
from casque.rules.operations import Operation
from casque.stores.port import Store
from casque.system.clock import drive

T = TypeVar("T")


class Runner(Protocol):
    def run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...

    def commit(self, session: Session, operation: Operation) -> Any:
        """Commit one operation. Returns its result or raises its error."""
        ...

    def close(self) -> None: ...


class InlineRunner:
    """Runs coroutines on the caller's thread, for `blocking` stores."""

    run = staticmethod(drive)
    commit = staticmethod(Session.commit)

    def close(self) -> None:
        """Nothing to close."""


def runner_for(store: Store) -> Runner:
    if store.blocking:
        return InlineRunner()
    from casque.queues.runner_asyncio import LoopRunner

    return LoopRunner()


_warned = threading.Event()


def warn_inside_loop(what: str, instead: str) -> None:
    """Warn, once per process, that a sync call blocks an event loop."""
    if _warned.is_set() or not _has_running_loop():
        return
    _warned.set()
    warnings.warn(
        f"{what} blocks the event loop that runs on this thread; use {instead} there.",
        RuntimeWarning,
        stacklevel=4,
    )


def _has_running_loop() -> bool:
    # Without asyncio loaded there is none; importing it would be slow.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 - quick
