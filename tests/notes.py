"""Notes: lines on stderr that tell a person which queue was created, or does not exist.

`tests/acceptance/test_one_store.py` is about them. Most tests are about other lines.
"""

from __future__ import annotations

import re

_ABOUT_PLACES = re.compile(
    r"^(?:queuectl: note: )?(?:created a new queue: |there is no queue at ).*\n", re.MULTILINE
)


def without_notes(stderr: str) -> str:
    """Return the other lines."""
    return _ABOUT_PLACES.sub("", stderr)
