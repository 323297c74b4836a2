"""Report: which jobs a transfer added, had taken before, or could not take."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Progress = Callable[[int, int | None], None]
"""Called with the number of jobs handled so far, and the number of all jobs or None."""


class NotTaken(msgspec.Struct, frozen=True):
    """A job that was not taken, and why."""

    name: str
    reason: str


class TransferReport(msgspec.Struct):
    """The result of a transfer. Nothing was removed from its source."""

    source: str
    """The format of the file, or the name of the store."""
    added: int = 0
    known: int = 0
    """Jobs that an earlier transfer has taken. They are not added again."""
    not_taken: list[NotTaken] = []
    paused: list[str] = []
    """The queues that are paused in the target."""
    notes: list[str] = []
    """What else the caller should know."""

    @property
    def seen(self) -> int:
        """The jobs handled so far."""
        return self.added + self.known + len(self.not_taken)
