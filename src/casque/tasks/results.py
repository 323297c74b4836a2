"""Results: the note that a finished job keeps instead of a result that cannot be stored."""

from __future__ import annotations

from casque.checks import RESULT_BYTES, describe

_MARK = b"(no result) "
"""How a note begins. It is not JSON, so no result of a task is the same."""


def note_of(error: Exception) -> bytes:
    """Return what is stored instead of a result that the error refuses."""
    text = describe(error).encode(errors="replace")
    return (_MARK + text)[:RESULT_BYTES]


def why_missing(result: bytes | None) -> str | None:
    """Return why a finished job has no result, if `result` is such a note."""
    if result is None or not result.startswith(_MARK):
        return None
    return result.removeprefix(_MARK).decode(errors="replace")
