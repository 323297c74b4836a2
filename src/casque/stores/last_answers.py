"""Last answers: the last answer to each writer, so that a repeated commit gets the same one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from casque.errors import InvalidError, StorageError

_WRITERS_KEPT = 128


class Answer:
    """The last answer to one writer."""

    __slots__ = ("decided_us", "number", "outcomes", "writer")

    def __init__(self, writer: str, number: int, outcomes: list[Any], decided_us: int) -> None:
        self.writer = writer
        self.number = number
        self.outcomes = outcomes
        self.decided_us = decided_us


class LastAnswers:
    """The outcomes of the last commit of each writer that this process served."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, Answer] = OrderedDict()
        self.newest = Answer("", 0, [], 0)
        """The last of them all."""

    def keep(self, writer: str, number: int, outcomes: list[Any], decided_us: int) -> None:
        newest = self.newest
        if newest.writer == writer:
            newest.number, newest.outcomes, newest.decided_us = number, outcomes, decided_us
            return
        self.newest = self._last[writer] = Answer(writer, number, outcomes, decided_us)
        self._last.move_to_end(writer)
        if len(self._last) > _WRITERS_KEPT:
            self._last.popitem(last=False)

    def last_number(self, writer: str) -> int:
        """The number of the last commit of a writer that was answered here; 0 when none was."""
        kept = self._last.get(writer)
        return 0 if kept is None else kept.number

    def decided_us(self, writer: str, number: int) -> int | None:
        """When this commit was last decided; None if it never was."""
        kept = self._last.get(writer)
        return None if kept is None or kept.number != number else kept.decided_us

    def recall(self, stored: int, writer: str, number: int) -> list[Any] | None:
        """The outcomes of that commit if it is done already; None if it is still to do.

        `stored` is the last commit of the writer that the store has; 0 when it has none.
        """
        if stored < number:
            return None
        if stored > number:
            raise InvalidError(
                f"commit {number} of writer {writer} comes after its commit {stored}: a writer "
                "counts upwards and has one commit in flight."
            )
        kept = self._last.get(writer)
        if kept is None or kept.number != number:
            raise StorageError(
                f"commit {number} of writer {writer} is stored, but its results are known only to "
                "the process that made it. Look the jobs up by id.",
                outcome_unknown=False,
            )
        return kept.outcomes
