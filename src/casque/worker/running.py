"""Running attempts: started, timed, ended early and settled, on the event loop of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from casque.rules.operations import Operation
from casque.system.clock import SECOND_US, Clock
from casque.tasks.app import TaskApp
from casque.worker import store_thread
from casque.worker.attempt import (
    Executor,
    LeaseLost,
    Outcome,
    Raised,
    RunningAttempt,
    Stopped,
    TimedOut,
    run_attempt,
    settle,
)
from casque.worker.executors.in_process import LoopExecutor, ThreadExecutor
from casque.worker.executors.middleware import Middleware
from casque.worker.executors.subprocess import ProcessExecutor
from casque.worker.logging.events import LOGGER, Report
from casque.worker.logging.setup import batched
from casque.worker.messages import Committed, Settlement
from casque.worker.runtime import Switching
from casque.worker.store_thread import StoreThread

_START_SECONDS = 60.0
"""How long a subprocess may take to import the app, if its task has a timeout. A longer timeout
replaces this."""


class RunningAttempts:
    """A worker's attempts without a stored outcome, and their `AttemptContext`.

    The worker and the attempts call it, and it calls the store thread.
    """

    def __init__(self, app: TaskApp, clock: Clock, report: Report, store: StoreThread) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._report = report
        self._store = store
        self._switching = Switching()
        middleware = Middleware(app.middleware, report) if app.middleware else None
        self._threads = ThreadExecutor(middleware, self._switching)
        self._processes = ProcessExecutor(app, self._count_time)
        self.executors: Mapping[str, Executor] = {
            "loop": LoopExecutor(middleware),
            "thread": self._threads,
            "process": self._processes,
        }
        self._attempts: set[RunningAttempt] = set()
        self._is_stopping = False
        self.settled: asyncio.Future[None] = self._loop.create_future()
        """Done once the worker stops and all attempts are settled, perhaps not yet stored."""

    def __len__(self) -> int:
        return len(self._attempts)

    # -- called by the worker --------------------------------------------------

    def take(self, message: Committed) -> None:
        """Start the claimed jobs, end the lost ones, log the stored outcomes."""
        for one, _ in message.answered:
            self._attempts.discard(one.attempt)
        for attempt, reason in message.lost:
            self._lose(attempt, LeaseLost(reason))
        begun = [attempt for attempt in message.claimed if self._begin(attempt)]
        if message.claimed:
            self._store.taken()
        with batched(LOGGER) as lines:
            for one, answer in message.answered:
                self._report.settled(one.attempt, one.outcome, answer, lines)
            self._report.begun(begun)

    def look(self) -> None:
        """End attempts whose lease has expired. Called periodically."""
        now = self._clock.monotonic()
        for attempt in list(self._attempts):
            if attempt.work is not None and attempt.work.done():
                self._settle_ended(attempt)
            elif now >= attempt.lease_end_us and not attempt.is_settled:
                self._lose(attempt, LeaseLost("no heartbeat succeeded for a whole lease"))
        plain = (one for one in self._attempts if one.task.run_in == "thread")
        self._switching.look(now - attempt.begun_us for attempt in plain)

    def stop(self, *, is_told: bool) -> None:
        """Start no more attempts. With `is_told`, tasks see that their worker is stopping."""
        self._is_stopping = True
        for attempt in self._attempts:
            attempt.running.is_stopping |= is_told
        self._note_if_settled()

    def give_back(self) -> None:
        """End every attempt now, and release its job."""
        for attempt in list(self._attempts):
            if not (attempt.is_over or attempt.ending):
                self._end_early(attempt, Stopped(), "the worker is stopping")

    def leave_switching(self) -> None:
        """Give up this worker's thread switch interval."""
        self._switching.close()

    def close(self) -> None:
        self._switching.close()
        self._threads.close()
        self._processes.close()

    # -- AttemptContext: what an attempt needs ---------------------------------

    def chance(self) -> float:
        return self._clock.random()

    def save(self, attempt: RunningAttempt, outcome: Outcome, operation: Operation | None) -> None:
        if attempt.timer is not None:
            attempt.timer.cancel()  # it would keep the attempt in memory until it fires
        # An attempt that was left behind frees its slot later, when its thread ends.
        frees = attempt.is_over and not attempt.is_left
        if operation is not None:
            self._store.settle(Settlement(attempt, outcome, operation), frees=frees)
        else:
            self._attempts.discard(attempt)
            if frees:
                self._store.free()
        if self._is_stopping:
            self._note_if_settled()

    def free(self, attempt: RunningAttempt) -> None:
        self._report.ended_late(attempt)
        self._store.free()

    # -- one attempt -----------------------------------------------------------

    def _begin(self, attempt: RunningAttempt) -> bool:
        """Start an attempt. Returns False if it does not start."""
        if attempt.is_settled:
            return False  # the store thread released it: the event loop was blocked for too long
        self._attempts.add(attempt)
        if self._is_stopping:  # claimed by a commit that was under way when the worker was stopped
            attempt.is_over = True
            settle(attempt, Stopped(), self)
            return False
        attempt.work = self._loop.create_task(run_attempt(attempt, self))
        if attempt.job.timeout_us is not None:
            seconds = attempt.job.timeout_us / SECOND_US
            if attempt.task.run_in == "process":  # the subprocess reports when the function starts
                seconds = max(seconds, _START_SECONDS)
                reason = f"timed out: its process did not start within {seconds:g} s"
                self._set_timer(attempt, seconds, reason)
            else:
                self._count_time(attempt)
        return True

    def _count_time(self, attempt: RunningAttempt) -> None:
        """Start the timeout of an attempt whose function starts now."""
        if attempt.job.timeout_us is not None and not (attempt.is_settled or attempt.ending):
            seconds = attempt.job.timeout_us / SECOND_US
            self._set_timer(attempt, seconds, f"timed out after {seconds:g} s")

    def _set_timer(self, attempt: RunningAttempt, seconds: float, reason: str) -> None:
        if attempt.timer is not None:
            attempt.timer.cancel()
        attempt.timer = self._loop.call_later(seconds, self._time_out, attempt, reason)

    def _time_out(self, attempt: RunningAttempt, reason: str, hops: int = 2) -> None:
        if attempt.is_over or attempt.ending:
            return
        if hops:
            # If the loop was blocked, functions that ended in time report together with this timer.
            attempt.timer = self._loop.call_later(0, self._time_out, attempt, reason, hops - 1)
            return
        self._end_early(attempt, TimedOut(TimeoutError(reason)), f"it {reason}")

    def _lose(self, attempt: RunningAttempt, loss: LeaseLost) -> None:
        self._store.forget(attempt)
        if not (attempt.is_over or attempt.ending):
            attempt.running.is_lost = True
            can_end = self._end_early(attempt, loss, "its lease was lost")
            self._report.lost(attempt, loss, goes_on=not can_end)

    def _end_early(self, attempt: RunningAttempt, outcome: Outcome, why: str) -> bool:
        """End the function early. If that is impossible, settle its job now and return False."""
        attempt.ending = outcome
        assert attempt.work is not None
        attempt.work.add_done_callback(lambda _: self._settle_ended(attempt))
        if self.executors[attempt.task.run_in].interrupt(attempt):
            seconds = store_thread.CANCEL_SECONDS
            self._loop.call_later(seconds, self._leave_behind, attempt, why)
            return True
        self._leave_behind(attempt, why)
        return False

    def _settle_ended(self, attempt: RunningAttempt) -> None:
        """Settle an attempt whose asyncio task ended before it could settle the job itself.

        If the worker cancelled the task, `ending` says why. Otherwise the attempt has failed.
        """
        if attempt.is_over and attempt.is_settled:
            return
        attempt.is_over = True
        if attempt.is_settled:
            self.free(attempt)
        else:
            settle(attempt, attempt.ending or Raised(_end_of(attempt)), self)

    def _leave_behind(self, attempt: RunningAttempt, why: str) -> None:
        """Settle the job of a function that keeps running."""
        if attempt.is_over or attempt.is_settled or attempt.ending is None:
            return
        attempt.is_left = attempt.running.is_lost = True
        self._report.goes_on(attempt, why)
        settle(attempt, attempt.ending, self)

    def _note_if_settled(self) -> None:
        if not self.settled.done() and all(attempt.is_settled for attempt in self._attempts):
            self.settled.set_result(None)


def _end_of(attempt: RunningAttempt) -> BaseException:
    """The exception that ended the asyncio task of an attempt."""
    work = attempt.work
    error = None if work is None or work.cancelled() else work.exception()
    return error or asyncio.CancelledError()
