"""Report: what a worker says in the log, with the job's id, entrypoint and attempt as fields."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from casque.clock import SECOND_US, Clock
from casque.errors import CasqueError
from casque.job import Job, JobStatus
from casque.worker.attempt import (
    Attempt,
    Lost,
    Outcome,
    Raised,
    Returned,
    Stopped,
    TimedOut,
    Unfit,
    failure_of,
)
from casque.worker.logs import WORKER, Lines

LOGGER = logging.getLogger(WORKER)


class Report:
    """Says what happens to one worker and its jobs."""

    def __init__(self, worker: str, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock

    def _log(
        self,
        level: int,
        attempt: Attempt,
        message: str,
        *args: object,
        error: BaseException | None = None,
    ) -> None:
        if not LOGGER.isEnabledFor(level):
            return
        job = attempt.job
        place = (job.entrypoint, job.id, job.attempts, job.max_attempts)
        pattern = f"%s (job %s, attempt %d of %d): {message}"
        self._say(level, pattern, (*place, *args), self._fields(job), error)

    def _say(
        self,
        level: int,
        pattern: str,
        args: tuple[object, ...],
        fields: dict[str, Any],
        error: BaseException | None = None,
    ) -> None:
        """Whatever a handler or a filter of the user's does, no job must suffer for it."""
        exc_info = None if error is None else (type(error), error, error.__traceback__)
        try:
            if LOGGER.isEnabledFor(level):
                # Made here: to look up the caller, which is always this, takes as long as the rest.
                record = LOGGER.makeRecord(
                    LOGGER.name, level, __file__, 0, pattern, args, exc_info, extra=fields
                )
                LOGGER.handle(record)
        except Exception:  # noqa: BLE001
            with suppress(Exception):  # a field of that name may be taken: without them, then
                LOGGER.log(level, pattern, *args)

    def _fields(self, job: Job) -> dict[str, Any]:
        return {
            "job_id": job.id,
            "entrypoint": job.entrypoint,
            "attempt": job.attempts,
            "queue": job.queue,
            "worker": self._worker,
        }

    def begun(self, attempt: Attempt) -> None:
        self._log(logging.DEBUG, attempt, "begun")

    def settled(
        self, attempt: Attempt, outcome: Outcome, answer: object, lines: Lines | None = None
    ) -> None:
        """What an attempt came to, once that is stored or cannot be.

        With `lines`, what is nothing special goes there without becoming a record.
        """
        if lines is not None and type(outcome) is Returned and answer is None:
            job, took_us = attempt.job, self._clock.monotonic() - attempt.begun_us
            lines.say(
                f"{job.entrypoint} (job {job.id}, attempt {job.attempts} of {job.max_attempts}): "
                f"done in {took_us / SECOND_US:.3f} s",
                self._fields(job),
            )
        elif isinstance(answer, CasqueError):
            self._log(
                logging.WARNING,
                attempt,
                "it ended, but the job is not this worker's any more, and nothing was written: %s",
                answer,
            )
        elif isinstance(outcome, Returned):
            took = (self._clock.monotonic() - attempt.begun_us) / SECOND_US
            self._log(logging.INFO, attempt, "done in %.3f s", took)
        elif isinstance(outcome, Raised | TimedOut | Unfit):
            self._failed(attempt, outcome.error, answer)
        elif isinstance(outcome, Stopped):
            self._log(logging.INFO, attempt, "given back, since the worker ends; not counted")

    def _failed(self, attempt: Attempt, error: BaseException, answer: object) -> None:
        failure = failure_of(error)
        what = f"{failure.kind}: {failure.text}" if failure.text else failure.kind
        if not isinstance(answer, Job):  # stored, though its answer was lost
            self._log(logging.WARNING, attempt, "ended by %s", what)
        elif answer.status is JobStatus.DEAD:
            self._log(logging.ERROR, attempt, "dead: %s", what, error=error)
        elif answer.status is JobStatus.CANCELLED:
            self._log(logging.INFO, attempt, "discarded: %s", answer.error or what)
        else:
            again = f"again at {answer.run_at:%H:%M:%S}Z"
            if answer.attempts < attempt.job.attempts:
                self._log(logging.INFO, attempt, "snoozed, %s; not counted", again)
            else:
                self._log(logging.WARNING, attempt, "failed, %s: %s", again, what)

    def lost(self, attempt: Attempt, loss: Lost, *, goes_on: bool) -> None:
        end = (
            "its thread goes on, and has its slot until it ends" if goes_on else "it was cancelled"
        )
        self._log(logging.WARNING, attempt, "the lease was lost; %s. (%s)", end, loss.reason)

    def goes_on(self, attempt: Attempt, why: str) -> None:
        """A function does not end though its attempt has."""
        self._log(
            logging.ERROR,
            attempt,
            "%s, but its code cannot be ended and goes on; its slot is not used until it ends",
            why,
        )

    def ended_late(self, attempt: Attempt) -> None:
        took = (self._clock.monotonic() - attempt.begun_us) / SECOND_US
        self._log(logging.INFO, attempt, "its code has ended after all, after %.1f s", took)

    def middleware_failed(self, attempt: Attempt, middleware: object, error: BaseException) -> None:
        self._log(
            logging.ERROR,
            attempt,
            "%s of the middleware failed, which changes nothing: %s",
            type(middleware).__name__,
            error,
            error=error,
        )

    def storage_failed(self, error: Exception) -> None:
        pattern = "the storage is in trouble; this worker tries again until it answers. (%s)"
        self._say(logging.WARNING, pattern, (error,), {"worker": self._worker})

    def storage_answers(self, silent_us: int) -> None:
        pattern = "the storage answers again, after %.1f s"
        self._say(logging.WARNING, pattern, (silent_us / SECOND_US,), {"worker": self._worker})

    def is_stuck(self) -> None:
        pattern = "a task holds up the event loop beyond the grace; its jobs were given back"
        self._say(logging.ERROR, pattern, (), {"worker": self._worker})

    def ends_unheard(self, jobs: int) -> None:
        pattern = (
            "ends without an answer of the storage; jobs whose end was not stored: %d. "
            "They are run again when their leases end"
        )
        self._say(logging.WARNING, pattern, (jobs,), {"worker": self._worker})

    def said(self, message: str, *args: object) -> None:
        self._say(logging.INFO, message, args, {"worker": self._worker})
