"""News: what passes between the deck and the thread that runs the tasks."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from casque.errors import InvalidError, JobNotFoundError, LeaseLostError
from casque.rules.operations import Dequeue, Heartbeat, Operation, PutRecord
from casque.worker.attempt import Attempt, Outcome


class Settlement:
    """What became of a job, to be stored."""

    __slots__ = ("attempt", "is_unsure", "operation", "outcome")

    def __init__(self, attempt: Attempt, outcome: Outcome, operation: Operation) -> None:
        self.attempt = attempt
        self.outcome = outcome
        self.operation = operation
        self.is_unsure = False
        """Whether it may be stored already, only its answer having been lost."""


class News(NamedTuple):
    """What a commit brought, for the thread that runs the tasks."""

    claimed: list[Attempt]
    answered: list[tuple[Settlement, object]]
    lost: list[tuple[Attempt, str]]


class Listener(Protocol):
    """Who is told, on the deck's thread."""

    def bring(self, news: News) -> None: ...

    def registered(self) -> None:
        """The worker's entry is stored: said once."""
        ...

    def storage_failed(self, error: Exception, *, is_final: bool) -> None:
        """Said once, when it begins."""
        ...

    def storage_answers(self, silent_us: int) -> None: ...

    def dismissed(self) -> None:
        """Its entry tells it to stop. Said once."""
        ...

    def deck_ended(self, error: BaseException | None, *, is_stuck: bool) -> None:
        """Nothing is due, it was told to end, or something is wrong with it.

        `is_stuck`: it was told to end long ago, and the other thread did nothing about it.
        """
        ...


def is_no_answer(operation: Operation, outcome: object) -> bool:
    """Whether this is no answer, so that it is to be asked again.

    Whatever else a store of the user's own raises is no answer either.
    """
    if not isinstance(outcome, Exception):
        return False
    if isinstance(operation, PutRecord | Dequeue | Heartbeat):
        return True
    return not isinstance(outcome, LeaseLostError | JobNotFoundError | InvalidError)


def answered(one: Settlement, outcome: object) -> tuple[Settlement, object]:
    """A settlement with its answer, as it is to be understood."""
    if one.is_unsure and isinstance(outcome, JobNotFoundError | LeaseLostError):
        outcome = None  # it had been stored, and only the answer was lost
    return one, outcome
