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
    Mismatched,
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
    """Events of the worker itself, with level and message. The name becomes the field `event`."""

    STARTING = logging.INFO, "works on %s, %d at a time; store: %s"
    REGISTERED = logging.DEBUG, "registered in the store"
    STOPPING = logging.INFO, "stopping; %d running jobs have %g s to finish"
    ENDING = logging.INFO, "claims no more jobs; stops when its %d jobs have finished"
    DISMISSED = logging.INFO, "dismissed: stopping, and will not be replaced"
    STOPPED = logging.DEBUG, "stopped, and removed from the store"
    SENT = logging.INFO, "sent %d requests to the bucket: %s"
    GROWN = logging.INFO, "uses more than %d MiB (max_mib): stopping"
    SIGNALS_TAKEN = (
        logging.WARNING,
        "a task replaced the handler of %s; the worker's own handler is back in place",
    )
    STORAGE_FAILED = (
        logging.WARNING,
        "the storage failed; this worker retries until it answers. (%s)",
    )
    STORAGE_ANSWERS = logging.WARNING, "the storage answers again, after %.1f s"
    STUCK = (
        logging.ERROR,
        "a task blocks the event loop, and the grace is over; the worker released its jobs",
    )
    TICK = logging.INFO, "schedule %s: the tick of %s added job %s"
    TICK_SKIPPED = (
        logging.INFO,
        "schedule %s: the tick of %s added no job, because the last one is not finished",
    )
    SCHEDULE_STOPPED = logging.INFO, "schedule %s is no longer in the code of %s: stopped"
    SCHEDULE_CLASHES = (
        logging.ERROR,
        (
            "schedule %s of this app is not stored: an operator's schedule has this name. Rename "
            "one of the two, or remove the other with `queuectl schedule remove`"
        ),
    )
    SCHEDULE_TAKEN = (
        logging.WARNING,
        (
            "schedule %s was in the code of %s; this app has taken its name. If both apps are in "
            "use, rename one of the two"
        ),
    )
    SCHEDULES_UNREAD = logging.DEBUG, "the schedules cannot be read; trying again. (%s)"
    SCHEDULE_UNUSABLE = logging.ERROR, "schedule %s does not fire from this worker: %s"
    UNSERVED = logging.WARNING, "%s that no registered worker serves: %s"
    UNHEARD = (
        logging.WARNING,
        (
            "stopping without an answer from the storage; outcomes that were not stored: %d. "
            "Those jobs run again when their leases end"
        ),
    )


class Report:
    """Logs the events of one worker and its jobs."""

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
        """Log a record. Errors in the user's handlers or filters must not fail a job."""
        try:
            exc_info = None if error is None else (type(error), error, error.__traceback__)
            if LOGGER.isEnabledFor(level):
                # Made here: looking up the caller, which is always this one, would double the cost.
                record = LOGGER.makeRecord(
                    LOGGER.name, level, __file__, 0, pattern, args, exc_info, extra=fields
                )
                LOGGER.handle(record)
        except (Exception, SystemExit):  # noqa: BLE001 - also from formatting the task's error
            with suppress(Exception):  # a field name may be taken: log without the fields
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
            return  # `command_of` decodes payloads; skip that
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

        If `lines` is given, a plain success is written to it without a log record.
        """
        is_done = type(outcome) is Returned and outcome.unstored is None
        if lines is not None and is_done and answer is None:
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
                "ended, but this worker no longer holds the job; the outcome was not stored: %s",
                answer,
            )
        elif isinstance(outcome, Returned):
            took = (self._clock.monotonic() - attempt.begun_us) / SECOND_US
            self._log(logging.INFO, attempt, "done", "done in %.3f s", took)
            if outcome.unstored is not None and attempt.job.retain_us:
                message = "its result is not stored, and the work is done: %s"
                self._log(logging.WARNING, attempt, "result_unstored", message, outcome.unstored)
        elif isinstance(outcome, Mismatched) and not _is_dead(answer):
            self._mismatched(attempt, outcome, answer)
        elif isinstance(outcome, Raised | TimedOut | Unfit | Mismatched):
            self._failed(attempt, outcome.error, answer)
        elif isinstance(outcome, Stopped):
            message = "released because the worker is stopping; the attempt does not count"
            self._log(logging.INFO, attempt, "released", message)

    def _mismatched(self, attempt: RunningAttempt, outcome: Mismatched, answer: object) -> None:
        until = f" until {answer.run_at:%H:%M:%S}Z" if isinstance(answer, Job) else ""
        message = (
            "does not fit this worker's version of the task; released%s for a worker of another "
            "version; the attempt does not count: %s"
        )
        what = str(outcome.error)
        self._log(logging.WARNING, attempt, "mismatch", message, until, what, what=what)

    def _failed(self, attempt: RunningAttempt, error: BaseException, answer: object) -> None:
        what = describe(failure_of(error))
        if not isinstance(answer, Job):  # stored, but the answer was lost
            self._log(logging.WARNING, attempt, "failed", "failed: %s", what, what=what)
        elif answer.status is JobStatus.DEAD:
            # The traceback of an error from another process shows only our own code.
            shown = None if isinstance(error, TaskError) else error
            self._log(logging.ERROR, attempt, "dead", "dead: %s", what, error=shown, what=what)
        elif answer.status is JobStatus.CANCELLED:
            self._log(logging.INFO, attempt, "discarded", "discarded: %s", answer.error or what)
        else:
            time = f"{answer.run_at:%H:%M:%S}Z"
            if answer.attempts < attempt.job.attempts:
                message = "snoozed until %s; the attempt does not count"
                self._log(logging.INFO, attempt, "snoozed", message, time)
            else:
                message = "failed, retry at %s: %s"
                self._log(logging.WARNING, attempt, "failed", message, time, what, what=what)

    def lost(self, attempt: RunningAttempt, loss: LeaseLost, *, goes_on: bool) -> None:
        end = (
            "its thread keeps running, and keeps its slot until it ends"
            if goes_on
            else "it was cancelled"
        )
        message = "the lease was lost; %s. (%s)"
        self._log(logging.WARNING, attempt, "lost", message, end, loss.reason)

    def goes_on(self, attempt: RunningAttempt, why: str) -> None:
        """Log that a function keeps running after its attempt has ended."""
        self._log(
            logging.ERROR,
            attempt,
            "left",
            "%s, but its code cannot be stopped; it keeps running and keeps its slot until it ends",
            why,
        )

    def ended_late(self, attempt: RunningAttempt) -> None:
        took = (self._clock.monotonic() - attempt.begun_us) / SECOND_US
        message = "its code ended late, after %.1f s"
        self._log(logging.INFO, attempt, "ended_late", message, took)

    def middleware_failed(
        self, attempt: RunningAttempt, middleware: object, error: BaseException
    ) -> None:
        self._log(
            logging.ERROR,
            attempt,
            "middleware_failed",
            "middleware %s failed; the outcome of the job does not change: %s",
            type(middleware).__name__,
            error,
            error=error,
        )

    def own(
        self, event: WorkerEvent, *args: object, is_quiet: bool = False, **fields: object
    ) -> None:
        """Log an event of the worker itself."""
        level, message = event.value
        level = logging.DEBUG if is_quiet else level
        about = {"event": event.name.lower(), "worker": self._worker}
        self._say(level, message, args, about | fields)


def _is_dead(answer: object) -> bool:
    return isinstance(answer, Job) and answer.status is JobStatus.DEAD
