"""Reentry: calls by a signal handler or a finalizer during another call on the same thread.

The outer call cannot continue before the inner call returns, so the inner call must not wait for
locks of the outer one. Stores and committers use RLocks, which record their owner, and call
`refuse` before they take one. `refuse` is not part of a lock's `__enter__`: that would be Python
code, and Ctrl-C could end it after the lock is taken.
"""

from __future__ import annotations

from typing import Any

from casque.errors import InvalidError


def is_mine(lock: Any) -> bool:
    """True if this thread holds the lock."""
    mine: bool = lock._is_owned()  # noqa: SLF001 - as threading.Condition does
    return mine


def refuse(lock: Any) -> None:
    """Raise InvalidError if this thread holds the lock: the call would wait for ever."""
    if lock._is_owned():  # noqa: SLF001 - as above
        raise InvalidError(
            "the queue was called from a signal handler or a finalizer while another call to it "
            "was running on the same thread. Set a flag there instead, and check it outside."
        )
