"""Reentry: calls by a signal handler or a finalizer, in the middle of another on the same thread.

The other cannot go on before they return, so what it holds they can never get.
Locks of ours are RLocks, which know whose they are, and nobody enters one twice.
"""

from __future__ import annotations

from typing import Any

from casque.errors import InvalidError


def is_mine(lock: Any) -> bool:
    """Whether this very thread holds the lock."""
    mine: bool = lock._is_owned()  # noqa: SLF001 - as threading.Condition asks
    return mine


def refuse(lock: Any) -> None:
    """Raise InvalidError if this very thread holds the lock: it would wait for ever."""
    if lock._is_owned():  # noqa: SLF001 - as above
        raise called_within()


def called_within() -> InvalidError:
    return InvalidError(
        "the queue was called from a signal handler or a finalizer, in the middle of a call to it "
        "on the same thread, which cannot go on meanwhile. Set a flag there, and look at it "
        "outside."
    )
