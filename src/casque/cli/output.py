"""Exits: how a command ends: its exit code, and one line on stderr that says what to do."""

from __future__ import annotations

import sys

from casque.errors import (
    CASConflictError,
    CasqueError,
    CorruptError,
    InvalidError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
)
from casque.system.terminal_text import plain

DONE = 0
NOT_SO = 1
"""What was asked for is not the case, as by `worker check`."""
INVALID = 2
NOT_FOUND = 3
NOT_OURS = 6
INTERRUPTED = 130
NOWHERE = 141
"""Whoever read the output has gone, as `head` does: 128 and the number of SIGPIPE."""

_CODES: dict[type[CasqueError], int] = {
    InvalidError: INVALID,
    JobNotFoundError: NOT_FOUND,
    CASConflictError: 4,
    LeaseLostError: 4,
    StorageError: 5,
    CorruptError: NOT_OURS,
}


class InterruptedAtError(Exception):
    """Ctrl-C, at a moment of which there is something to say."""


def code_of(error: CasqueError) -> int:
    from casque.stores.place_errors import ForeignError

    if isinstance(error, ForeignError):  # as for a file of another program
        return NOT_OURS
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), NOT_SO)


def complain(message: str) -> None:
    """One line on stderr."""
    told = plain(" ".join(str(message).split()))
    try:
        print(f"queuectl: {told}", file=sys.stderr)
    except OSError:
        return  # nobody listens
