"""Sent commits: those whose fate is not known yet, and the answers to those that are stored."""

from __future__ import annotations

from typing import Any, NamedTuple

from casque.stores.last_answers import LastAnswers
from casque.stores.ledger.entry import Guest
from casque.stores.ledger.pacing import Pacing


class Sent(NamedTuple):
    """A decided commit: `content` may be, or become, entry `number`. Empty: nothing to store."""

    number: int
    content: bytes
    commit: int
    outcomes: list[Any]
    decided_us: int
    guest: Guest | None
    rings: bool


class SentCommits:
    """By writer, the commit that it sent and does not know the fate of."""

    def __init__(self, pacing: Pacing) -> None:
        self.answers = LastAnswers()
        self._pacing = pacing
        self._unsettled: dict[str, Sent] = {}

    def of(self, writer: str, number: int) -> Sent | None:
        """What was sent for this commit; None if nothing was, or if its fate is known."""
        sent = self._unsettled.get(writer)
        return None if sent is None or sent.commit != number else sent

    def add(self, writer: str, sent: Sent) -> bool:
        """Note a commit before it is sent; False if the same one was sent before."""
        is_new = self._unsettled.get(writer) is not sent
        self._unsettled[writer] = sent
        return is_new

    def forget(self, writer: str) -> None:
        """The commit was refused, and is certain not to be stored."""
        self._unsettled.pop(writer, None)

    def stored(self, writer: str, sent: Sent) -> None:
        """The commit is stored: a repeated call gets the same answer."""
        del self._unsettled[writer]
        self.answers.keep(writer, sent.commit, sent.outcomes, sent.decided_us)
        self._pacing.wrote(writer, sent.number)

    def settle(self, number: int, content: bytes) -> None:
        """Entry `number` was read: settle the commits that were sent to its place."""
        for writer, sent in list(self._unsettled.items()):
            if sent.content == content:
                self.stored(writer, sent)
            elif sent.number <= number:
                del self._unsettled[writer]  # its place is taken: it never will be stored
