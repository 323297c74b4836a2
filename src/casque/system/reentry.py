"""Reentry: calls by a signal handler or a finalizer, in the middle of another on the same thread.

The outer call cannot go on before the inner one returns, so the inner one must not
wait for its locks. Stores and committers use RLocks, which know their owner, and
call `refuse` before they enter one. `refuse` is not part of a lock's `__enter__`:
that would be Python code, and Ctrl-C could end it after the lock is taken.
"""

from __future__ import annotations

from typing import Any

from casque.errors import InvalidError


def is_mine(lock: Any) -> bool:
    """True if this thread holds the lock."""
    mine: bool = lock._is_owned()  # noqa: SLF001 - as threading.Condition asks
    return mine


def refuse(lock: Any) -> None:
    """Raise InvalidError if this thread holds the lock: the call would wait for ever."""
    if lock._is_owned():  # noqa: SLF001 - as above
        raise InvalidError(
            "the queue was called from a signal handler or a finalizer, in the middle of a call to "
            "it on the same thread, which cannot go on meanwhile. Set a flag there, and look at it "
            "outside."
        )
