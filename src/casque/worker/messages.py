"""Messages from the store thread to the event loop, through one queue.

The event loop calls the store thread (`settle`, `finish` …). The store thread never calls back: it
posts one of these messages, and the event loop takes them in order.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from casque.errors import CASConflictError, InvalidError, JobNotFoundError, LeaseLostError
from casque.rules.operations import Dequeue, Heartbeat, Operation, PutRecord, Tick
from casque.worker.attempt import Outcome, RunningAttempt


class Settlement(msgspec.Struct, eq=False):
    """The outcome of an attempt, to be stored."""

    attempt: RunningAttempt
    outcome: Outcome
    operation: Operation
    is_unsure: bool = False
    """True if it may be stored already, and only the answer was lost."""


class Committed(NamedTuple):
    """The answers of one commit."""

    claimed: list[RunningAttempt]
    answered: list[tuple[Settlement, object]]
    lost: list[tuple[RunningAttempt, str]]


class Registered(msgspec.Struct, frozen=True):
    """The worker's entry is stored. Sent once."""


class StoreReplaced(msgspec.Struct, frozen=True):
    """The store was replaced: it will never accept another write."""

    error: Exception


class Dismissed(msgspec.Struct, frozen=True):
    """The worker's entry asks it to stop. Sent once."""


class StoreThreadEnded(msgspec.Struct, frozen=True):
    """The last message: no job is due, the thread was asked to end, or the thread has failed."""

    error: BaseException | None
    is_stuck: bool
    """True if the worker was asked to stop and its event loop did not react in time."""


Message = Committed | Registered | StoreReplaced | Dismissed | StoreThreadEnded


def is_no_answer(operation: Operation, outcome: object) -> bool:
    """True if the store gave no answer, so that the operation must be sent again.

    Any unknown error of a third-party store counts as no answer.
    """
    if not isinstance(outcome, Exception):
        return False
    if isinstance(operation, PutRecord | Dequeue | Heartbeat):
        return True
    if isinstance(operation, Tick):
        return not isinstance(outcome, CASConflictError | InvalidError)
    return not isinstance(outcome, LeaseLostError | JobNotFoundError | InvalidError)


def answered(one: Settlement, outcome: object) -> tuple[Settlement, object]:
    """Return the settlement and its answer: success (None) if only a repeat was refused."""
    if one.is_unsure and isinstance(outcome, JobNotFoundError | LeaseLostError):
        outcome = None
    return one, outcome
