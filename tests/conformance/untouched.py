"""What the tests of bad input share: each kind of queue, and all that a folder holds."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from casque import BrokerQueue, DirectQueue, Queue

SECOND = timedelta(seconds=1)
KINDS = (DirectQueue, BrokerQueue, Queue)


def disk(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder: the bytes of files, None for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }
