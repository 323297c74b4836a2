"""Runner: how code without an event loop runs our coroutines.

On a store that never suspends they are simply stepped through, at the cost of
a function call. On any other a thread with an event loop of its own runs them.
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
        """Commit one operation; its result, or its refusal raised."""
        ...

    def close(self) -> None: ...


class InlineRunner:
    """For stores that never suspend."""

    run = staticmethod(drive)
    commit = staticmethod(Session.commit)

    def close(self) -> None:
        """Nothing to let go of."""


def runner_for(store: Store) -> Runner:
    if store.blocking:
        return InlineRunner()
    from casque.queues.runner_asyncio import LoopRunner

    return LoopRunner()


_warned = threading.Event()


def warn_inside_loop(what: str, instead: str) -> None:
    """Say, once per process, that a sync call is holding up an event loop."""
    if _warned.is_set() or not _has_running_loop():
        return
    _warned.set()
    warnings.warn(
        f"{what} blocks the event loop that runs on this thread; use {instead} there.",
        RuntimeWarning,
        stacklevel=4,
    )


def _has_running_loop() -> bool:
    # Without asyncio loaded there is none; loading it to ask would take long.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 - quick
