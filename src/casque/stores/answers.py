"""Answers: what each writer was last told, so that a repeated commit is told the same."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from casque.errors import InvalidError, StorageError
from casque.state import State

_WRITERS_KEPT = 1024


class Answers:
    """The outcomes of the last commit of each writer that this process served."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[int, list[Any]]] = OrderedDict()

    def keep(self, writer: str, number: int, outcomes: list[Any]) -> None:
        self._last[writer] = (number, outcomes)
        self._last.move_to_end(writer)
        if len(self._last) > _WRITERS_KEPT:
            self._last.popitem(last=False)

    def recall(self, state: State, writer: str, number: int) -> list[Any] | None:
        """The outcomes of that commit if it is in `state` already; None if it is still to do."""
        stored, _ = state.writers.get(writer, (0, 0))
        if stored < number:
            return None
        if stored > number:
            raise InvalidError(
                f"commit {number} of writer {writer} comes after its commit {stored}: a writer "
                "counts upwards and has one commit in flight."
            )
        kept = self._last.get(writer)
        if kept is None or kept[0] != number:
            raise StorageError(
                f"commit {number} of writer {writer} is stored, but its results are known only to "
                "the process that made it. Look the jobs up by id.",
                outcome_unknown=False,
            )
        return kept[1]
