"""Verification: checks a whole document."""

from __future__ import annotations

from casque.errors import CorruptError
from casque.rules.comparison import inconsistency
from casque.stores.document.codec import decode
from casque.stores.maintenance import FILE_PAGE, Verification, damaged


def verify(content: bytes, name: str, now: int) -> Verification:
    """Check the bytes of a document. Raises CorruptError if they are damaged."""
    try:
        state = decode(content, name)
    except CorruptError as error:
        raise damaged(error, FILE_PAGE) from error
    # A document of jqueue has no counters.
    wrong = inconsistency(state) if state.identity else None
    if wrong is not None:
        raise damaged(f"{name} is inconsistent: {wrong}", FILE_PAGE)
    return Verification(name, "document", state.stats(None, now), len(content))
