"""Events: what a worker logs, with the job's id, entrypoint and attempt as fields."""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from casque.errors import CasqueError
from casque.job import Job, JobStatus
from casque.rules.transitions import describe
from casque.system.clock import SECOND_US, Clock
from casque.worker.attempt import (
    LeaseLost,
    Outcome,
    Raised,
    Returned,
    RunningAttempt,
    Stopped,
    TaskError,
    TimedOut,
    Unfit,
    failure_of,
)
from casque.worker.logging.setup import WORKER_LOGGER, LineHandler
from casque.worker.shell.job import command_of

LOGGER = logging.getLogger(WORKER_LOGGER)


class WorkerEvent(enum.Enum):
    """What happens to a worker itself: the level and the message; the name is the field `event`."""

    STARTING = logging.INFO, "works on %s, %d at a time"
    REGISTERED = logging.DEBUG, "its entry is in the store"
    STOPPING = logging.INFO, "stops; %d jobs have %g s to end"
    ENDING = logging.INFO, "claims no more, and ends with the %d jobs it has"
    DISMISSED = logging.INFO, "is dismissed: it stops, and is not replaced"
    STOPPED = logging.DEBUG, "has ended, and its entry is gone"
    GROWN = logging.INFO, "has grown beyond %d MiB, and ends"
    SIGNALS_TAKEN = (
        logging.WARNING,
        "a task has changed what %s does; it stops this worker again",
    )
    STORAGE_FAILED = (
        logging.WARNING,
        "the storage is in trouble; this worker tries again until it answers. (%s)",
    )
    STORAGE_ANSWERS = logging.WARNING, "the storage answers again, after %.1f s"
    STUCK = (
        logging.ERROR,
        "a task holds up the event loop beyond the grace; its jobs were given back",
    )
    UNHEARD = (
        logging.WARNING,
        (
            "ends without an answer of the storage; jobs whose end was not stored: %d. "
            "They are run again when their leases end"
        ),
    )


class Report:
    """Logs what happens to one worker and its jobs."""

    def __init__(self, worker: str, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock

    def _log(
        self,
        level: int,
        attempt: RunningAttempt,
        event: str,
        message: str,
        *args: object,
        error: BaseException | None = None,
        **fields: object,
    ) -> None:
        if not LOGGER.isEnabledFor(level):
            return
        job = attempt.job
        place = (job.entrypoint, job.id, job.attempts, job.max_attempts)
        pattern = f"%s (job %s, attempt %d of %d): {message}"
        self._say(level, pattern, (*place, *args), self._fields(job, event) | fields, error)

    def _say(
        self,
        level: int,
        pattern: str,
        args: tuple[object, ...],
        fields: dict[str, Any],
        error: BaseException | None = None,
    ) -> None:
        """Log, whatever a handler or filter of the user raises: no job may fail for it."""
        try:
            exc_info = None if error is None else (type(error), error, error.__traceback__)
            if LOGGER.isEnabledFor(level):
                # Made here: to look up the caller, which is always this, takes as long as the rest.
                record = LOGGER.makeRecord(
                    LOGGER.name, level, __file__, 0, pattern, args, exc_info, extra=fields
                )
                LOGGER.handle(record)
        except (Exception, SystemExit):  # noqa: BLE001 - that of an error which is formatted, too
            with suppress(Exception):  # a field of that name may be taken: without them, then
                LOGGER.log(level, pattern, *args)

    def _fields(self, job: Job, event: str) -> dict[str, Any]:
        return {
            "event": event,
            "job_id": job.id,
            "entrypoint": job.entrypoint,
            "attempt": job.attempts,
            "queue": job.queue,
            "worker": self._worker,
        }

    def begun(self, attempts: Iterable[RunningAttempt]) -> None:
        if not LOGGER.isEnabledFor(logging.DEBUG):
            return  # before the payload is read of those that are shell jobs
        for attempt in attempts:
            what = command_of(attempt.job) or attempt.job.entrypoint
            self._log(logging.DEBUG, attempt, "begun", "begun", what=what)

    def settled(
        self,
        attempt: RunningAttempt,
        outcome: Outcome,
        answer: object,
        lines: LineHandler | None = None,
    ) -> None:
        """Log the outcome of an attempt, once it is stored or refused.

        With `lines`, a plain success goes there without becoming a record.
        """
        if lines is not None and type(outcome) is Returned and answer is None:
            job, took_us = attempt.job, self._clock.monotonic() - attempt.begun_us
            lines.say(
                f"{job.entrypoint} (job {job.id}, attempt {job.attempts} of {job.max_attempts}): "
                f"done in {took_us / SECOND_US:.3f} s",
                self._fields(job, "done"),
            )
        elif isinstance(answer, CasqueError):
            self._log(
                logging.WARNING,
                attempt,
                "refused",
                "it ended, but the job is not this worker's any more, and nothing was written: %s",
                answer,
            )
        elif isinstance(outcome, Returned):
            took = (self._clock.monotonic() - attempt.begun_us) / SECOND_US
            self._log(logging.INFO, attempt, "done", "done in %.3f s", took)
        elif isinstance(outcome, Raised | TimedOut | Unfit):
            self._failed(attempt, outcome.error, answer)
        elif isinstance(outcome, Stopped):
            message = "given back, since the worker ends; not counted"
            self._log(logging.INFO, attempt, "released", message)

    def _failed(self, attempt: RunningAttempt, error: BaseException, answer: object) -> None:
        what = describe(failure_of(error))
        if not isinstance(answer, Job):  # stored, though its answer was lost
            self._log(logging.WARNING, attempt, "failed", "ended by %s", what, what=what)
        elif answer.status is JobStatus.DEAD:
            # The traceback of an error from another process shows our own code alone.
            shown = None if isinstance(error, TaskError) else error
            self._log(logging.ERROR, attempt, "dead", "dead: %s", what, error=shown, what=what)
        elif answer.status is JobStatus.CANCELLED:
            self._log(logging.INFO, attempt, "discarded", "discarded: %s", answer.error or what)
        else:
            again = f"again at {answer.run_at:%H:%M:%S}Z"
            if answer.attempts < attempt.job.attempts:
                self._log(logging.INFO, attempt, "snoozed", "snoozed, %s; not counted", again)
            else:
                message = "failed, %s: %s"
                self._log(logging.WARNING, attempt, "failed", message, again, what, what=what)

    def lost(self, attempt: RunningAttempt, loss: LeaseLost, *, goes_on: bool) -> None:
        end = (
            "its thread goes on, and has its slot until it ends" if goes_on else "it was cancelled"
        )
        message = "the lease was lost; %s. (%s)"
        self._log(logging.WARNING, attempt, "lost", message, end, loss.reason)

    def goes_on(self, attempt: RunningAttempt, why: str) -> None:
        """A function does not end though its attempt has."""
        self._log(
            logging.ERROR,
            attempt,
            "left",
            "%s, but its code cannot be ended and goes on; its slot is not used until it ends",
            why,
        )

    def ended_late(self, attempt: RunningAttempt) -> None:
        took = (self._clock.monotonic() - attempt.begun_us) / SECOND_US
        message = "its code has ended after all, after %.1f s"
        self._log(logging.INFO, attempt, "ended_late", message, took)

    def middleware_failed(
        self, attempt: RunningAttempt, middleware: object, error: BaseException
    ) -> None:
        self._log(
            logging.ERROR,
            attempt,
            "middleware_failed",
            "%s of the middleware failed, which changes nothing: %s",
            type(middleware).__name__,
            error,
            error=error,
        )

    def own(self, event: WorkerEvent, *args: object, is_quiet: bool = False) -> None:
        """Log an event of the worker itself."""
        level, message = event.value
        level = logging.DEBUG if is_quiet else level
        self._say(level, message, args, {"event": event.name.lower(), "worker": self._worker})
