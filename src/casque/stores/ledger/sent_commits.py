"""Sent commits: the commits whose outcome is unknown, and the answers to stored commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from casque.rules.operations import Batch, BatchStamp
from casque.stores.last_answers import LastAnswers
from casque.stores.ledger.entry import Guest
from casque.stores.ledger.pacing import Pacing


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

    def answers(self) -> dict[str, list[Any]]:
        """Return the outcomes by writer."""
        writers = (batch.writer for batch in self.batches)
        return dict(zip(writers, self.outcomes, strict=True))


class SentCommits:
    """The commits whose outcome is unknown, by writer."""

    def __init__(self, pacing: Pacing) -> None:
        self.answers = LastAnswers()
        self._pacing = pacing
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
        self.answers.keep_stored(sent.batches, sent.outcomes, sent.stamps, sent.decided_us)
        self._pacing.wrote(sent.stamps[0].writer, sent.number)

    def settle(self, number: int, content: bytes) -> None:
        """Settle the commits that were sent as entry `number`, which has now been read."""
        for sent in {id(one): one for one in self._unsettled.values()}.values():
            if sent.content == content:
                self.stored(sent)
            elif sent.number <= number:
                self.forget(sent)  # its number is taken: it will never be stored
