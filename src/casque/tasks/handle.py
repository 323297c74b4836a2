"""Handles: the objects that a task's `enqueue` returns, to follow a job and get its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from casque import checks
from casque.errors import CasqueError, InvalidError, JobNotFoundError
from casque.job import Job, JobStatus
from casque.queues.runner import warn_inside_loop
from casque.rules.transitions import is_mismatched
from casque.stores.port import Joinable, Outcome
from casque.system.clock import SECOND_US, drive
from casque.system.terminal_text import sentence
from casque.tasks.results import why_missing

if TYPE_CHECKING:
    from casque.stores.port import CallersTransaction
    from casque.tasks.app_store import AppStore
    from casque.tasks.calls import Call

R_co = TypeVar("R_co", covariant=True)

_FIRST_LOOK_US = 5_000
_LONGEST_PAUSE_US = SECOND_US // 4
_SLOWER = 1.5
_FINISHED = (JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED)


class Handle(Generic[R_co]):
    """An enqueued job, for the code that enqueued it."""

    __slots__ = ("_app_store", "_call", "_done", "_job", "_transaction", "id")

    def __init__(
        self,
        app_store: AppStore,
        job: Job,
        call: Call | None,
        *,
        is_done: bool = False,
        transaction: CallersTransaction | None = None,
    ) -> None:
        self.id: str = job.id
        self._app_store = app_store
        self._job = job
        self._call = call
        self._done = is_done
        """True if the job ran at once: then nothing is stored, and `_job` is final."""
        self._transaction = transaction
        """The caller's transaction that it was added to, until it is known to be committed."""

    @property
    def duplicate(self) -> bool:
        """True if a job with this id existed already. Then this is the handle of that job."""
        return self._job.duplicate

    # -- the result ------------------------------------------------------------

    def result(self, timeout: timedelta | None = None) -> R_co:
        """Wait for the job to finish and return the result of the task.

        Raises TimeoutError if the job has not finished within `timeout`; the message says so if
        the job waits for a worker of another version. Raises CasqueError if it is dead or cancelled
        or its result could not be stored, and JobNotFoundError if its record was deleted. After an
        enqueue with `connection`, raises InvalidError if the transaction was not committed. Raises
        it too if the job cannot finish before this thread's own transaction in Django ends.
        """
        looks = self._looks(timeout)
        if not self._done:
            warn_inside_loop("Handle.result", "`await handle`")
        while not _is_finished(job := self.job()):
            pause = next(looks, None)
            if pause is None:
                raise TimeoutError(self._unfinished(job, timeout))
            drive(self._app_store.store.clock.sleep(pause, blocking=True))
        return self._value(job)

    async def _aresult(self) -> R_co:
        looks = self._looks(None)
        while not _is_finished(job := await self.ajob()):
            await self._app_store.store.clock.sleep(next(looks), blocking=False)
        return self._value(job)

    def __await__(self) -> Generator[Any, None, R_co]:
        """Wait for the result in an event loop; use `asyncio.timeout` to limit the wait."""
        return self._aresult().__await__()

    def _looks(self, timeout: timedelta | None) -> Iterator[int]:
        """Return how long to sleep before each read: longer each time, until the timeout."""
        limit = None if timeout is None else checks.span(timeout, "timeout")
        if self._job.retain_us is None and not self._done:
            raise InvalidError(
                f"job {self.id}: its result is not stored: it was enqueued with retain=None, so "
                "its record is deleted on success. Give the task `retain`.",
                job_id=self.id,
            )
        return self._pauses(limit)

    def _pauses(self, limit: int | None) -> Iterator[int]:
        pause = float(_FIRST_LOOK_US)
        store = self._app_store.store
        if limit != 0 and isinstance(store, Joinable):
            store.refuse_waiting()  # here, on the thread that waits, and only if it must wait
        clock = store.clock
        begun = clock.monotonic()
        while True:
            left = None if limit is None else limit - (clock.monotonic() - begun)
            if left is not None and left <= 0:
                return
            yield int(pause) if left is None else min(int(pause), left)
            pause = min(pause * _SLOWER, _LONGEST_PAUSE_US)

    def _unfinished(self, job: Job, timeout: timedelta | None) -> str:
        what = f"job {self.id} ({job.entrypoint}) was not finished within {timeout}"
        if is_mismatched(job):
            return (
                f"{what}: its arguments do not fit the worker that claimed it, and it waits for a "
                f"worker of another version. Update the workers, then wait again. ({job.error})"
            )
        if job.status is JobStatus.DEAD:
            return (
                f"{what}: its last attempt's lease has ended, so the worker is probably lost, but "
                "it may still report a result. Wait again, or check that a worker is running: the "
                "next one that looks for jobs stores this one as dead."
            )
        return f"{what}; it continues. Wait again, or check that a worker is running."

    def _value(self, job: Job) -> R_co:
        if job.status is not JobStatus.COMPLETED:
            reason = sentence(job.error or "no reason")
            raise CasqueError(
                f"job {self.id} ({job.entrypoint}) is {job.status}: {reason}", job_id=self.id
            )
        if (why := why_missing(job.result)) is not None:
            # Not InvalidError: nothing is wrong with this call, and something was written.
            raise CasqueError(
                f"job {self.id} ({job.entrypoint}) is completed, but its result was not stored: "
                f"{why} The work is done; to have the result next time, change the task.",
                job_id=self.id,
            )
        value: Any = None
        if self._call is not None:
            value = self._call.decode_result(job.result)
        elif job.result is not None:
            value = msgspec.json.decode(job.result)
        result: R_co = value
        return result

    # -- the job ---------------------------------------------------------------

    def job(self) -> Job:
        """The job as it is now. Raises JobNotFoundError if its record was deleted."""
        if self._done:
            return self._job
        outcome = self._readable_outcome()
        known = None if outcome is None else outcome()
        return self._found(self._app_store.queue.get(self.id), known)

    async def ajob(self) -> Job:
        """Like `job`, without blocking the event loop."""
        if self._done:
            return self._job
        outcome = self._readable_outcome()
        known = None if outcome is None else await asyncio.to_thread(outcome)
        return self._found(await self._app_store.async_queue.get(self.id), known)

    def status(self) -> JobStatus:
        """The status of the job. Raises JobNotFoundError if its record was deleted."""
        return self.job().status

    async def astatus(self) -> JobStatus:
        """Like `status`, without blocking the event loop."""
        return (await self.ajob()).status

    def cancel(self, *, reason: str = "") -> Job:
        """Never run the job (again). A running job loses its lease at once."""
        self._refuse_done()
        if self._transaction is not None:
            self.job()  # raises if it is not committed: the call would wait for the transaction
        return self._app_store.queue.cancel(self.id, reason=reason)

    async def acancel(self, *, reason: str = "") -> Job:
        """Like `cancel`, without blocking the event loop."""
        self._refuse_done()
        if self._transaction is not None:
            await self.ajob()  # as above
        return await self._app_store.async_queue.cancel(self.id, reason=reason)

    def _refuse_done(self) -> None:
        if self._done:
            raise InvalidError(f"job {self.id} has already run: the App is immediate.")

    def _readable_outcome(self) -> Callable[[], Outcome] | None:
        """What to ask for the outcome of the transaction; None if the job is known to be stored.

        To be asked before the job is read: another thread may commit the transaction after it.
        """
        transaction = self._transaction
        if transaction is None:
            return None
        if transaction.hides_queue():
            raise self._uncommitted()
        return transaction.outcome

    def _found(self, job: Job | None, outcome: Outcome | None) -> Job:
        if job is not None:
            self._transaction = None  # it is committed
            return job
        if outcome is Outcome.UNCOMMITTED:
            raise self._uncommitted()
        rolled_back = "the transaction that it was enqueued in was rolled back"
        why = {
            None: f"its record no longer exists: {self._gone()}",
            Outcome.ROLLED_BACK: f"it is not stored: {rolled_back}.",
            Outcome.ENDED: f"either {rolled_back}, or its record no longer exists: {self._gone()}",
        }[outcome]
        raise JobNotFoundError(f"job {self.id} ({self._job.entrypoint}): {why}", job_id=self.id)

    def _uncommitted(self) -> InvalidError:
        return InvalidError(
            f"job {self.id} ({self._job.entrypoint}) is not stored: the transaction that it was "
            "enqueued in has not been committed. Commit it first, then use the handle. (After a "
            "rollback there is no such job.)",
            job_id=self.id,
        )

    def _gone(self) -> str:
        kept = self._job.retain
        if kept is None:
            return (
                "it was enqueued with retain=None and has succeeded, or was deleted. Give the task "
                "`retain` to keep it."
            )
        return f"it was kept for {kept} after its success, or was deleted. Raise `retain`."

    def __repr__(self) -> str:
        return f"<Handle {self._job.entrypoint} {self.id}>"


def _is_finished(job: Job) -> bool:
    """True if the job is stored as finished. A dead job that has a lease is not, yet."""
    is_dead = job.status is JobStatus.DEAD
    return job.status in _FINISHED and not (is_dead and job.lease_until_us is not None)
