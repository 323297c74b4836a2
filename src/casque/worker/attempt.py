"""Attempt: one run of a job, start to finish. Begin reading at `run_attempt`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from casque import checks
from casque.checks import describe
from casque.errors import InvalidError
from casque.job import Failure, Job
from casque.queues.running_job import RunningJob
from casque.retry import Discard, Retry, Snooze, delay_of, reason_of
from casque.rules import operations
from casque.rules.operations import Ack, Fail, Nack, Operation, Release
from casque.system.clock import LONGEST_SPAN_US, Clock
from casque.tasks.calls import ArgumentMismatchError
from casque.tasks.results import note_of
from casque.tasks.task import Task
from casque.worker import mismatches

_OUR_FOLDER = str(Path(__file__).parent)


class Returned(msgspec.Struct, frozen=True):
    """The function did its work."""

    result: bytes | None
    unstored: str | None = None
    """Why the result cannot be stored. Then `result` is a note that says so."""


class Raised(msgspec.Struct, frozen=True):
    """The function failed, or raised Retry, Snooze or Discard."""

    error: BaseException


class Unfit(msgspec.Struct, frozen=True):
    """The payload is invalid, so another attempt cannot help."""

    error: BaseException


class Mismatched(msgspec.Struct, frozen=True):
    """The arguments do not fit this worker's version of the task; they may fit another's."""

    error: ArgumentMismatchError


class TimedOut(msgspec.Struct, frozen=True):
    """The attempt took longer than its timeout."""

    error: TimeoutError


class Stopped(msgspec.Struct, frozen=True):
    """The worker is stopping, and another worker will run the job."""


class LeaseLost(msgspec.Struct, frozen=True):
    """This worker no longer holds the job."""

    reason: str


Outcome = Returned | Raised | Unfit | Mismatched | TimedOut | Stopped | LeaseLost


class RunningAttempt:
    """A claimed job, and the state of its attempt."""

    running: RunningJob
    """The job as its function sees it."""

    def __init__(self, job: Job, task: Task[..., Any], clock: Clock) -> None:
        self.job = job
        self.hold = job.id, job.token
        """Job id and token: every operation that changes the job must name both."""
        self.task = task
        self.begun_us = clock.monotonic()
        self.deadline_us = None if job.timeout_us is None else clock.now() + job.timeout_us
        self.lease_end_us = 0
        """The lease is certain to hold until then, by the monotonic clock."""
        self.ending: Outcome | None = None
        """The outcome, if the worker decided it while the function ran."""
        self.is_settled = False
        """True once the outcome has been recorded."""
        self.is_over = False
        """True once its function has ended, so that its slot is free."""
        self.is_left = False
        """True if its job was settled while its function kept running."""
        self.work: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class Executor(Protocol):
    """Where functions run: the event loop, threads, processes."""

    async def call(
        self, attempt: RunningAttempt, args: list[Any], kwargs: dict[str, Any]
    ) -> bytes | None:
        """Run the function and return its result as JSON.

        Raises the function's own exceptions, or InvalidResult.
        """
        ...

    def interrupt(self, attempt: RunningAttempt) -> bool:
        """End the function. Returns False if that is impossible."""
        ...


class InvalidResult(Exception):  # noqa: N818 - only wraps an InvalidError
    """The function is done, and its result cannot be stored.

    Its argument is the InvalidError that says why.
    """


class TaskError(Exception):
    """Stands for the exception that a function raised in another process."""

    def __init__(self, failure: Failure, *, gives_up: bool) -> None:
        super().__init__(f"{failure.kind}: {failure.text}" if failure.kind else failure.text)
        self.failure = failure
        self.gives_up = gives_up


class GivenBack(Exception):  # noqa: N818 - not an error but an answer
    """Raised if the signal that stops the worker also ended the job's command: release the job."""


class AttemptContext(Protocol):
    """The parts of a worker that an attempt needs."""

    executors: Mapping[str, Executor]

    def chance(self) -> float: ...

    def save(self, attempt: RunningAttempt, outcome: Outcome, operation: Operation | None) -> None:
        """Store the outcome, then log it. If `operation` is None, there is nothing to store.

        If the function has ended, this also frees the slot.
        """
        ...

    def free(self, attempt: RunningAttempt) -> None:
        """Free the slot of a function that ended after its job was settled."""
        ...


async def run_attempt(attempt: RunningAttempt, context: AttemptContext) -> None:
    """Run one attempt: call the function, decide the outcome of the job, write it once."""
    outcome = await call_task(attempt, context)
    attempt.is_over = True
    if attempt.is_settled:
        context.free(attempt)
    else:
        settle(attempt, outcome, context)


async def call_task(attempt: RunningAttempt, context: AttemptContext) -> Outcome:
    """Run the function in its executor. Never raises."""
    task = attempt.task
    try:
        args, kwargs = task.call.decode(attempt.job.payload)
    except ArgumentMismatchError as error:
        return Mismatched(error)
    except BaseException as error:  # noqa: BLE001 - a user's type may raise anything
        return Unfit(error)
    try:
        result = await context.executors[task.run_in].call(attempt, args, kwargs)
    except InvalidResult as unfit:
        # The work is done: a dead job would be retried by hand, and the work done twice.
        [why] = unfit.args
        done = Returned(note_of(why), describe(why))
        return attempt.ending if isinstance(attempt.ending, LeaseLost) else done
    except GivenBack:
        return attempt.ending or Stopped()
    except BaseException as error:  # noqa: BLE001 - whatever a task does, the worker lives
        return attempt.ending or Raised(from_its_own_code(error))
    # A function that was interrupted but finished anyway is done, unless the lease is lost.
    return attempt.ending if isinstance(attempt.ending, LeaseLost) else Returned(result)


def from_its_own_code(error: BaseException) -> BaseException:
    """Return the error with a traceback that starts at the task's own code. Never raises."""
    # Not by the error's own methods: a user's class may override them and raise anything.
    with suppress(BaseException):
        part = error.__traceback__
        while part is not None and part.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
            part = part.tb_next
        if part is not None:
            BaseException.with_traceback(error, part)
    return error


def settle(attempt: RunningAttempt, outcome: Outcome, context: AttemptContext) -> None:
    """Store the outcome: the only write of an attempt."""
    attempt.is_settled = True
    # A success needs no backoff, and drawing a random number releases the GIL.
    chance = 0.0 if type(outcome) is Returned else context.chance()
    try:
        operation = settlement(outcome, attempt.job, attempt.task, chance)
    except BaseException as error:  # noqa: BLE001 - a user's backoff may raise anything
        outcome = Unfit(error)
        operation = Fail(*attempt.hold, failure_of(error))
    context.save(attempt, outcome, operation)


def settlement(outcome: Outcome, job: Job, task: Task[..., Any], chance: float) -> Operation | None:
    """Return the operation that stores an outcome; None if this worker lost the job."""
    match outcome:
        case Returned(result=result):
            return Ack(job.id, job.token, result)
        case Raised(error) | TimedOut(error):
            return _of_error(error, job, task, chance)
        case Unfit(error):
            return Fail(job.id, job.token, _without_traceback(error))
        case Mismatched(error):
            return mismatches.settlement(job, error)
        case Stopped():
            return Release(job.id, job.token)
        case LeaseLost():
            return None


def _of_error(error: BaseException, job: Job, task: Task[..., Any], chance: float) -> Operation:
    """Return the operation for an error: by Retry, Snooze or Discard, or by the task's options."""
    hold = job.id, job.token
    error = sound(error)
    if isinstance(error, Snooze):
        return Release(*hold, delay_of(error) or 0)
    if isinstance(error, Discard):
        return operations.Discard(*hold, reason_of(error))
    delay = None
    if isinstance(error, Retry):
        delay = delay_of(error)
    elif gives_up(error, task):
        return Fail(*hold, failure_of(error))
    if delay is None:
        delay = _backoff(task, job.attempts, chance)
    return Nack(*hold, delay, failure_of(error))


def sound(error: BaseException) -> BaseException:
    """Return the error; for an invalid Retry, Snooze or Discard, the error about that."""
    try:
        if isinstance(error, Retry | Snooze):
            delay_of(error)
        if isinstance(error, Retry | Discard):
            reason_of(error)
    except BaseException as wrong:  # noqa: BLE001 - a user's class may raise anything
        return wrong
    return error


def _backoff(task: Task[..., Any], attempts: int, chance: float) -> int:
    """Return how long to wait before the next attempt. InvalidError if that time is invalid."""
    delay = int(task.backoff.delay_us(attempts, chance))
    if not 0 <= delay <= LONGEST_SPAN_US:
        raise InvalidError(
            f"{task.name}: expected a backoff from 0 s to 100 years, got {delay} µs."
        )
    return delay


def gives_up(error: BaseException, task: Task[..., Any]) -> bool:
    """True if the task is not tried again after this error."""
    if isinstance(error, TaskError):
        return error.gives_up
    if isinstance(error, InvalidError) and error.is_too_deep:
        return True  # the next attempt is as deep as this one
    if isinstance(error, task.give_up_on):
        return True
    # SystemExit and the like are not Exceptions, but from a task they are ordinary failures.
    return isinstance(error, Exception) and not isinstance(error, task.retry_on)


def failure_of(error: BaseException) -> Failure:
    """Return the error in the form that is stored with the job."""
    if isinstance(error, TaskError):
        return checks.kept(error.failure)
    return checks.failure(error)


def _without_traceback(error: BaseException) -> Failure:
    """Return the failure; without its traceback if our own checks raised the error."""
    failure = failure_of(error)
    is_ours = isinstance(error, InvalidError) and error.__cause__ is None
    return Failure(failure.kind, failure.text) if is_ours else failure
