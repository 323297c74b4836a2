"""Sent commits: the commits whose outcome is unknown, and the answers to stored commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from casque.rules.operations import Batch, BatchStamp
from casque.rules.state import WRITER_MEMORY_US, State
from casque.stores.last_answers import LastAnswers
from casque.stores.ledger.apart_payload import ApartPayload
from casque.stores.ledger.entry import Guest
from casque.stores.ledger.pacing import Pacing
from casque.stores.ledger.payload_objects import PayloadObjects
from casque.stores.ledger.summary import Summary
from casque.stores.port import Answer
from casque.system.clock import Stopwatch


class Sent(NamedTuple):
    """Decided batches, encoded as entry `number` in `content`; empty if nothing to store."""

    number: int
    content: bytes
    batches: Sequence[Batch]
    outcomes: list[list[Any]]
    stamps: Sequence[BatchStamp]
    decided_us: int
    guest: Guest | None
    rings: bool
    freed: Sequence[ApartPayload] = ()
    """Payloads that no job refers to any more once this commit is stored."""
    summary: Summary | None = None
    """The counts after it."""
    put: Stopwatch | None = None
    """The time since its large payloads were stored."""

    def answers(self) -> dict[str, list[Any]]:
        """Return the outcomes by writer."""
        writers = (batch.writer for batch in self.batches)
        return dict(zip(writers, self.outcomes, strict=True))


class SentCommits:
    """The commits whose outcome is unknown, by writer."""

    def __init__(self, pacing: Pacing, payloads: PayloadObjects) -> None:
        self.answers = LastAnswers()
        self._pacing = pacing
        self._payloads = payloads
        self._unsettled: dict[str, Sent] = {}

    def of(self, batches: Iterable[Batch]) -> Sent | None:
        """Return the unsettled commit that contains any of these batches, or None."""
        for batch in batches:
            sent = self._unsettled.get(batch.writer)
            if sent is not None and any(
                (one.writer, one.number) == (batch.writer, batch.number) for one in sent.batches
            ):
                return sent
        return None

    def answered(self, batches: Iterable[Batch]) -> dict[str, Answer]:
        """Return the answers to the batches that are known to be stored, by writer."""
        answers: dict[str, Answer] = {}
        for batch in batches:
            last = self.answers.last_number(batch.writer)
            if last >= batch.number and (answer := self.answers.recall(batch, last, None)):
                answers[batch.writer] = answer
        return answers

    def add(self, sent: Sent) -> bool:
        """Record a commit before it is sent. Returns False if this commit was sent before."""
        writers = [batch.writer for batch in sent.batches]
        if any(self._unsettled.get(writer) is sent for writer in writers):
            return False
        self._unsettled.update(dict.fromkeys(writers, sent))
        return True

    def forget(self, sent: Sent) -> None:
        """Drop a commit that will never be stored, or whose outcome is known."""
        for batch in sent.batches:
            if self._unsettled.get(batch.writer) is sent:
                del self._unsettled[batch.writer]

    def stored(self, sent: Sent) -> None:
        """Note that the commit is stored. A repeated call gets the same answer."""
        self.forget(sent)
        outcomes: Sequence[list[Any] | None] = sent.outcomes
        if self._payloads.may_be_gone(sent.put):  # the commit is stored; its jobs may not run
            outcomes = [None] * len(outcomes)
        self.answers.keep_stored(sent.batches, outcomes, sent.stamps, sent.decided_us)
        self._payloads.delete(sent.freed)
        self._pacing.wrote(sent.stamps[0].writer, sent.number)

    def settle(self, number: int, content: bytes) -> None:
        """Settle the commits that were sent as entry `number`, which is part of the log."""
        for sent in self._each():
            if sent.content == content:
                self.stored(sent)
            elif sent.number == number:
                self.forget(sent)  # its number is taken: it will never be stored

    def settle_covered(self, state: State, number: int) -> None:
        """Settle the commits that were sent as one of the entries that a snapshot replaces.

        The snapshot has a row for each writer that stored something in its last `WRITER_MEMORY_US`.
        So the outcome of an older commit cannot be found out: it stays unsettled.
        """
        for sent in self._each():
            if sent.number > number:
                continue
            rows = [(state.writers.get(one.writer), one.number) for one in sent.stamps]
            if all(row is not None and row.number >= stamp for row, stamp in rows):
                self.stored(sent)
            elif state.time_us - sent.decided_us < WRITER_MEMORY_US:
                self.forget(sent)

    def _each(self) -> list[Sent]:
        """Return the unsettled commits, each once."""
        return list({id(sent): sent for sent in self._unsettled.values()}.values())
