"""Records: a change of a record names the version that it expects."""

from __future__ import annotations

from casque.errors import CASConflictError
from casque.record import ABSENT, Record
from casque.rules.state import RecordKey, State


def expected(state: State, key: RecordKey, expect: int | None, now: int) -> Record | None:
    """The record, if it is at version `expect` (None: any). Raises CASConflictError otherwise."""
    current = state.record(key, now)
    version = ABSENT if current is None else current.version
    if expect not in (None, version):
        found = "is not there" if version == ABSENT else f"is at version {version}"
        raise CASConflictError(
            f"{key[0]} {key[1]!r} {found}, expected version {expect}: another caller changed it. "
            "Read it again and decide again."
        )
    return current


def present(state: State, key: RecordKey, expect: int, now: int) -> Record:
    """Like `expected`, but an absent record is a CASConflictError."""
    record = expected(state, key, expect, now)
    if record is None:
        raise CASConflictError(f"there is no {key[0]} {key[1]!r}.")
    return record
