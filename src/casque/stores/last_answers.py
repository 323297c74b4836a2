"""Last answers: the last answer to each writer, so that a repeated commit gets the same one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from casque.errors import InvalidError, StorageError
from casque.rules import views
from casque.rules.answers import JobReads, answer_again
from casque.rules.operations import Batch, BatchStamp
from casque.rules.state import State, WriterRow
from casque.stores.port import Answer

_WRITERS_KEPT = 128


class KeptAnswer(NamedTuple):
    """The stored row of a writer's last commit, and functions that read the jobs for its answer."""

    row: WriterRow
    reads: JobReads


class _Last:
    """The last answer to one writer."""

    __slots__ = ("decided_us", "number", "outcomes", "writer")

    def __init__(
        self, writer: str, number: int, outcomes: list[Any] | None, decided_us: int
    ) -> None:
        self.writer = writer
        self.number = number
        self.outcomes = outcomes
        """None if the commit was sent, but another process may have stored it first."""
        self.decided_us = decided_us


class LastAnswers:
    """The outcomes of the last commit of each writer that this process served."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, _Last] = OrderedDict()
        self.newest = _Last("", 0, None, 0)
        """The last answer to any writer."""

    def keep_stored(
        self,
        batches: Sequence[Batch],
        outcomes: Sequence[list[Any] | None],
        stamps: Iterable[BatchStamp],
        decided_us: int,
    ) -> None:
        """Keep the outcomes of the stamped batches. The other batches may be decided again."""
        stored = {stamp.writer for stamp in stamps}
        for batch, one in zip(batches, outcomes, strict=True):
            if batch.writer in stored:
                self.keep(batch.writer, batch.number, one, decided_us)

    def keep(self, writer: str, number: int, outcomes: list[Any] | None, decided_us: int) -> None:
        newest = self.newest
        if newest.writer == writer:
            newest.number, newest.outcomes, newest.decided_us = number, outcomes, decided_us
            return
        self.newest = self._last[writer] = _Last(writer, number, outcomes, decided_us)
        self._last.move_to_end(writer)
        if len(self._last) > _WRITERS_KEPT:
            self._last.popitem(last=False)

    def last_number(self, writer: str) -> int:
        """The number of the writer's last commit that was answered here; 0 if none was."""
        kept = self._last.get(writer)
        return 0 if kept is None else kept.number

    def decided_us(self, writer: str, number: int) -> int | None:
        """Return when this process last decided this commit; None if it did not."""
        kept = self._last.get(writer)
        return None if kept is None or kept.number != number else kept.decided_us

    def recall(self, batch: Batch, stored: int, kept: KeptAnswer | None) -> Answer | None:
        """Return the answer to a batch that is already stored; None if the batch is new.

        `stored` is the number of the writer's last stored commit; 0 if there is none. `kept` is
        the stored answer to that commit.
        """
        writer, number = batch.writer, batch.number
        if stored < number:
            return None
        if stored > number:
            return InvalidError(
                f"commit {number} of writer {writer} came after its commit {stored}: a writer must "
                "count upwards and have one commit in flight."
            )
        last = self._last.get(writer)
        if last is not None and last.number == number and last.outcomes is not None:
            return last.outcomes
        if kept is not None and kept.row.answers:
            try:
                return answer_again(batch, kept.row.answers, kept.row.seen_us, kept.reads)
            except StorageError as error:
                return error
        return StorageError(
            f"commit {number} of writer {writer} is stored, but only the process that made it has "
            "its results. Look the jobs up by id.",
            outcome_unknown=True,
            is_stored=True,
        )

    def recall_all(
        self, batches: Iterable[Batch], state: State, now: Callable[[], int]
    ) -> dict[str, Answer]:
        """Return the answers to the batches that the state already contains, by writer."""
        answers: dict[str, Answer] = {}
        for batch in batches:
            row = state.writers.get(batch.writer)
            if row is not None and row.number >= batch.number:
                kept = KeptAnswer(row, views.reads(state, now()))
                answer = self.recall(batch, row.number, kept)
                assert answer is not None
                answers[batch.writer] = answer
        return answers


def check_writers(batches: Sequence[Batch]) -> None:
    """Raise InvalidError if two batches have the same writer.

    With two batches of one writer, a repeat could not be recognised.
    """
    if len(batches) != len({batch.writer for batch in batches}):
        raise InvalidError("a commit takes at most one batch from each writer.")
