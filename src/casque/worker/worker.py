"""Worker: has jobs claimed, runs an attempt of each in a slot, and ends in good order.

Two threads: the one that called `run` has an event loop, on which attempts
live; the deck's speaks to the store. They meet in `bring` and `Deck.settle`.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from casque.errors import InvalidError
from casque.job import Job
from casque.queues.session import Session
from casque.rules.operations import Operation
from casque.stores.port import Doubtful, Store
from casque.system.clock import SECOND_US
from casque.tasks.app import App
from casque.tasks.current import RunningJob
from casque.tasks.worker_options import WorkerOptions
from casque.worker import runtime
from casque.worker.attempt import (
    Attempt,
    Lost,
    Outcome,
    Place,
    Raised,
    Stopped,
    TimedOut,
    run_attempt,
    settle,
)
from casque.worker.executors.in_process import InThreads, OnLoop
from casque.worker.executors.middleware import Hooks
from casque.worker.executors.subprocess import InProcesses
from casque.worker.logging.events import LOGGER, Report
from casque.worker.logging.setup import together
from casque.worker.messages import News, Settlement
from casque.worker.registry.entries import Entry
from casque.worker.runtime import Switching
from casque.worker.store_thread import LAST_WORDS_US, Deck
from casque.worker.supervision.signals import Keep

_CANCEL_SECONDS = 5.0
"""How long a cancelled function may take to clean up, before its job is given up without it."""
_LAST_WORDS_SECONDS = LAST_WORDS_US / SECOND_US + 1.0
"""Beyond the grace: then it ends, whether or not the storage has taken what it had to say.

Less than what a supervisor allows a child before it is killed.
"""
_START_SECONDS = 60.0
"""How long a process may take to import the app, if its task has a timeout; and as long as that."""
_LOOKS_PER_LEASE = 20
_LONGEST_LOOK_SECONDS = 1.0
_DEFAULT = WorkerOptions()


class Ended(enum.Enum):
    """Why a worker ended."""

    STOPPED = "stopped"
    IDLE = "idle"
    RECYCLED = "recycled"
    DISMISSED = "dismissed"
    """Stopped by its entry, and not to be replaced."""
    BROKEN = "broken"
    """A task has broken its event loop. Told to `when_stuck` alone: `run` raises."""


class Worker:
    """Runs the jobs of an app's tasks, until it is told to stop."""

    def __init__(
        self,
        app: App,
        options: WorkerOptions = _DEFAULT,
        *,
        name: str | None = None,
        manager: int | None = None,
        manager_birth: int | None = None,
        when_registered: Callable[[], None] | None = None,
        when_stuck: Callable[[Ended], None] | None = None,
    ) -> None:
        """`manager` is the process that keeps it running, for the registry, as is its birth.

        `when_registered` is called, on another thread, once its entry is in the store.
        `when_stuck` is called, on another thread, when a task keeps `run` from returning.
        Everything is given back by then, and nothing is left to do but to end the process.
        So it is when a task has broken the event loop, though what ran is held until its
        leases end.
        """
        if not app.tasks:
            raise InvalidError(
                "this App has no tasks, so there is nothing to work on: import the modules that "
                "define them before the worker starts."
            )
        self._app = app
        self._options = options
        self._name = name
        self._manager = manager, manager_birth
        self._keep_signals: Keep | None = None
        self._when_registered, self._when_stuck = when_registered, when_stuck
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crew: _Crew
        self._is_stopping = self._is_stopping_now = False

    # -- from any thread -------------------------------------------------------

    def run(self, *, keep_signals: Keep | None = None) -> Ended:
        """Work until told to stop, or until the options say so. Blocks.

        `keep_signals` sees to it that SIGTERM still stops it; None when it does not.
        """
        self._keep_signals = keep_signals
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the quick check
            raise InvalidError(
                "a worker has an event loop of its own and cannot run inside another: call it from "
                "plain code, or let it be a process of its own: python -m casque.worker module:app."
            )
        try:
            return runtime.run(self._run())
        except runtime.BrokenLoopError as error:
            LOGGER.critical("%s", error, extra={"event": "broken"})
            if self._when_stuck is not None:
                self._when_stuck(Ended.BROKEN)
            self._crew.abandon()
            raise
        finally:
            self._loop = None

    def stop(self) -> None:
        """Claim no more, let what runs end within the grace, give the rest back. Signal-safe."""
        self._is_stopping = True
        self._wake(self._options.grace_us)

    def stop_now(self) -> None:
        """Give back at once what runs. Signal-safe."""
        self._is_stopping = self._is_stopping_now = True
        self._wake(0)

    def _wake(self, grace_us: int) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            # A task may hold up the loop: then the deck gives back what there is, without it.
            self._crew.bound(grace_us)
            loop.call_soon_threadsafe(self._heed)

    # -- on its loop -----------------------------------------------------------

    async def _run(self) -> Ended:
        store = self._app.opened.apart()
        is_its_own = store is not self._app.store
        if isinstance(store, Doubtful):
            store.try_out()
        self._crew = crew = _Crew(
            self._app,
            store,
            self._options,
            self._name,
            manager=self._manager,
            keep_signals=self._keep_signals,
            when_registered=self._when_registered,
            when_stuck=self._when_stuck,
        )
        self._loop = asyncio.get_running_loop()
        try:
            crew.start()
            self._heed()  # it may have been told to stop before there was anything to stop
            while not crew.ended.done():
                # Not by awaiting it: a task that cancels all there are must not cancel this.
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([crew.ended])
            return crew.ended.result()
        finally:
            crew.close()
            # One that does not answer is still asked, by a thread that ends with the process.
            if is_its_own and not crew.is_unheard:
                await store.close()

    def _heed(self) -> None:
        if self._is_stopping_now:
            self._crew.give_back()
        elif self._is_stopping:
            self._crew.stop(Ended.STOPPED)


class _Crew:
    """A worker at work: its attempts, and its end."""

    def __init__(
        self,
        app: App,
        store: Store,
        options: WorkerOptions,
        name: str | None,
        *,
        manager: tuple[int | None, int | None],
        keep_signals: Keep | None,
        when_registered: Callable[[], None] | None,
        when_stuck: Callable[[Ended], None] | None,
    ) -> None:
        self._keep_signals = keep_signals
        self._when_registered, self._when_stuck = when_registered, when_stuck
        self._app = app
        self._options = options
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        session = Session(store, owner="Worker", worker=name, blocking=store.blocking)
        self._clock = store.clock
        self._report = Report(session.worker, self._clock)
        hooks = Hooks(app.middleware, self._report) if app.middleware else None
        self._processes = InProcesses(app, self._count_time)
        self._switching = Switching()
        self._threads = InThreads(hooks, self._switching)
        self.places: Mapping[str, Place] = {
            "loop": OnLoop(hooks),
            "thread": self._threads,
            "process": self._processes,
        }
        self._entry = Entry(
            session.worker,
            options,
            tuple(app.tasks),
            store,
            manager=manager[0],
            manager_birth=manager[1],
            obeys_signals=keep_signals is not None,
        )
        self._deck = Deck(session, options, self._entry, self._begin, self)
        self._attempts: set[Attempt] = set()
        """Those of whose jobs it is not stored yet what became of them."""
        self._why: Ended | None = None
        """Why it ends, once it does."""
        self._is_told = False
        """Whether somebody wants it to: what runs has the grace then, and else its time."""
        self._is_finishing = False
        self.is_unheard = False
        """Whether it ended without the storage's having taken all that it had to say."""

    def bound(self, grace_us: int) -> None:
        """Stopping takes at most so long, and what functions take to clean up. Signal-safe."""
        self._deck.stop_by(grace_us + int((_CANCEL_SECONDS + 1) * SECOND_US))

    def abandon(self) -> None:
        """No more is heard from the loop: the deck must not keep what it ran for ever."""
        self._switching.close()
        self._deck.stop_by(0)

    def start(self) -> None:
        self._report.starting(self._app.tasks, self._options.concurrency)
        self._deck.start()
        self._look()

    def close(self) -> None:
        self._switching.close()
        self._threads.close()
        self._processes.close()

    # -- World: what an attempt needs ------------------------------------------

    def chance(self) -> float:
        return self._clock.random()

    def store(self, attempt: Attempt, outcome: Outcome, operation: Operation | None) -> None:
        if attempt.timer is not None:
            attempt.timer.cancel()  # it would keep the attempt until it is due
        # One that was left behind frees its slot when it ends, and a thread may end at any moment.
        frees = attempt.is_over and not attempt.is_left
        if operation is not None:
            self._deck.settle(Settlement(attempt, outcome, operation), frees=frees)
        elif frees:
            self._deck.free()
        if operation is None:
            self._attempts.discard(attempt)
        if self._why is not None:
            self._end_if_done()

    def free(self, attempt: Attempt) -> None:
        self._report.ended_late(attempt)
        self._deck.free()

    # -- attempts --------------------------------------------------------------

    def _begin(self, job: Job, lease_end_us: int) -> Attempt:
        """An attempt of a job that was claimed. On the deck's thread."""
        attempt = Attempt(job, self._app.tasks[job.entrypoint], self._clock)
        tell = partial(self._deck.tell, attempt)
        attempt.running = RunningJob(job, attempt.deadline_us, tell)
        attempt.lease_end_us = attempt.running.lease_end_us = lease_end_us
        return attempt

    def bring(self, news: News) -> None:
        """What a commit brought. On the deck's thread."""
        with suppress(RuntimeError):  # closed: the worker has ended without waiting for this
            self._loop.call_soon_threadsafe(self._take, news)

    def _take(self, news: News) -> None:
        for one, _ in news.answered:
            self._attempts.discard(one.attempt)
        for attempt, reason in news.lost:
            self._lose(attempt, Lost(reason))
        begun = [attempt for attempt in news.claimed if self._start(attempt)]
        if news.claimed:
            self._deck.heard()
            most = self._options.max_jobs
            if most is not None and self._deck.claimed >= most:
                self.stop(Ended.RECYCLED)
        with together(LOGGER) as lines:
            for one, answer in news.answered:
                self._report.settled(one.attempt, one.outcome, answer, lines)
            self._report.begun(begun)

    def _start(self, attempt: Attempt) -> bool:
        """Whether it begins."""
        if attempt.is_settled:
            return False  # the deck has given it back, since this thread was held up for too long
        self._attempts.add(attempt)
        if self._why is not None:  # claimed by a commit that was under way when it was told to stop
            attempt.is_over = True
            settle(attempt, Stopped(), self)
            return False
        attempt.work = self._loop.create_task(run_attempt(attempt, self))
        if attempt.job.timeout_us is not None:
            seconds = attempt.job.timeout_us / SECOND_US
            if attempt.task.run_in == "process":  # which says when the function begins
                seconds = max(seconds, _START_SECONDS)
                told = f"timed out: its process did not start within {seconds:g} s"
                self._set_timer(attempt, seconds, told)
            else:
                self._count_time(attempt)
        return True

    def _count_time(self, attempt: Attempt) -> None:
        """Its function begins, and from now on has its time."""
        if attempt.job.timeout_us is not None and not (attempt.is_settled or attempt.ending):
            seconds = attempt.job.timeout_us / SECOND_US
            self._set_timer(attempt, seconds, f"timed out after {seconds:g} s")

    def _set_timer(self, attempt: Attempt, seconds: float, told: str) -> None:
        if attempt.timer is not None:
            attempt.timer.cancel()
        attempt.timer = self._loop.call_later(seconds, self._time_out, attempt, told)

    def _time_out(self, attempt: Attempt, told: str, hops: int = 2) -> None:
        if attempt.is_over or attempt.ending:
            return
        if hops:
            # When the loop was held up, what ended in time comes in together with this timer.
            attempt.timer = self._loop.call_later(0, self._time_out, attempt, told, hops - 1)
            return
        self._end_early(attempt, TimedOut(TimeoutError(told)), f"it {told}")

    def _lose(self, attempt: Attempt, loss: Lost) -> None:
        self._deck.let_go(attempt)
        if not (attempt.is_over or attempt.ending):
            attempt.running.is_lost = True
            can_end = self._end_early(attempt, loss, "its lease was lost")
            self._report.lost(attempt, loss, goes_on=not can_end)

    def _end_early(self, attempt: Attempt, outcome: Outcome, why: str) -> bool:
        """End the function if that can be done, else the attempt without it."""
        attempt.ending = outcome
        assert attempt.work is not None
        attempt.work.add_done_callback(lambda _: self._see_the_end(attempt))
        if self.places[attempt.task.run_in].interrupt(attempt):
            self._loop.call_later(_CANCEL_SECONDS, self._leave_behind, attempt, why)
            return True
        self._leave_behind(attempt, why)
        return False

    def _see_the_end(self, attempt: Attempt) -> None:
        """An asyncio task that is cancelled before its first step ends without having begun.

        And whatever else ended one before it could settle the job: that is a failed attempt.
        """
        if attempt.is_over and attempt.is_settled:
            return
        attempt.is_over = True
        if attempt.is_settled:
            self.free(attempt)
        else:
            settle(attempt, attempt.ending or Raised(_end_of(attempt)), self)

    def _leave_behind(self, attempt: Attempt, why: str) -> None:
        """The function does not end: settle its job all the same."""
        if attempt.is_over or attempt.is_settled or attempt.ending is None:
            return
        attempt.is_left = attempt.running.is_lost = True
        self._report.goes_on(attempt, why)
        settle(attempt, attempt.ending, self)

    def _look(self) -> None:
        """Now and then: leases that have run out, signals, and how large the process is."""
        now = self._clock.monotonic()
        for attempt in list(self._attempts):
            if attempt.work is not None and attempt.work.done():
                self._see_the_end(attempt)
            elif now >= attempt.lease_end_us and not attempt.is_settled:
                self._lose(attempt, Lost("no heartbeat got through for the whole of it"))
        # An async task can have SIGTERM ignored, or taken by a server that it runs.
        if self._keep_signals is not None and (taken := self._keep_signals()):
            self._report.signals_taken(taken)
        plain = (one for one in self._attempts if one.task.run_in == "thread")
        self._switching.look(now - attempt.begun_us for attempt in plain)
        most = self._options.max_mib
        if most is not None and self._why is None and runtime.resident_mib() > most:
            self._report.grown(most)
            self.stop(Ended.RECYCLED)
        seconds = self._options.lease_us / SECOND_US / _LOOKS_PER_LEASE
        self._loop.call_later(min(seconds, _LONGEST_LOOK_SECONDS), self._look)

    # -- the end ---------------------------------------------------------------

    def stop(self, why: Ended) -> None:
        """Claim no more; end when what runs has ended, and if it was told to, within the grace."""
        is_told = why in (Ended.STOPPED, Ended.DISMISSED)
        for attempt in self._attempts:
            attempt.running.is_stopping |= is_told
        is_first, self._why = self._why is None, self._why or why
        if is_first:
            self._deck.stop_claiming()
        if is_told and not self._is_told:
            self._is_told = True
            seconds = self._options.grace_us / SECOND_US
            self._report.stopping(len(self._attempts), seconds)
            if self._attempts:
                self._loop.call_later(seconds, self.give_back)
        elif is_first:
            self._report.ending(len(self._attempts))
        self._end_if_done()

    def give_back(self) -> None:
        """End what runs, and give it back."""
        self.stop(Ended.STOPPED)
        self._loop.call_later(_LAST_WORDS_SECONDS, self._end_unheard)
        for attempt in list(self._attempts):
            if not (attempt.is_over or attempt.ending):
                self._end_early(attempt, Stopped(), "the worker ends")

    def _end_if_done(self) -> None:
        """What is settled is the deck's to store, within a bound: a storage may be away."""
        if not self._is_finishing and all(attempt.is_settled for attempt in self._attempts):
            self._is_finishing = True
            self._deck.finish()
            self._loop.call_later(_LAST_WORDS_SECONDS, self._end_unheard)

    def _end_unheard(self) -> None:
        """The storage is away. As after a kill: leases end, and jobs come back."""
        if not self.ended.done():
            self.is_unheard = True
            self._report.ends_unheard(len(self._attempts))
            self.ended.set_result(self._reason(Ended.STOPPED))

    def _reason(self, otherwise: Ended) -> Ended:
        # A dismissal may come after a signal, and it is what counts for a supervisor.
        return Ended.DISMISSED if self._entry.is_dismissed else self._why or otherwise

    # -- what the deck says, on its thread -------------------------------------

    def registered(self) -> None:
        self._report.registered()
        if self._when_registered is not None:
            self._when_registered()

    def storage_failed(self, error: Exception, *, is_final: bool) -> None:
        if not is_final:
            self._report.storage_failed(error)
            return
        # No more is stored through this store, nor may be: as after a kill, but for a word.
        self.is_unheard = True
        self._deck.stop_by(0)
        with suppress(RuntimeError):  # closed: it has ended already
            self._loop.call_soon_threadsafe(self._deck_ended, error)

    def storage_answers(self, silent_us: int) -> None:
        self._report.storage_answers(silent_us)

    def dismissed(self) -> None:
        self._report.dismissed()
        self.bound(self._options.grace_us)
        with suppress(RuntimeError):  # closed: it has ended already
            self._loop.call_soon_threadsafe(self.stop, Ended.DISMISSED)

    def deck_ended(self, error: BaseException | None, *, is_stuck: bool) -> None:
        if is_stuck:
            self._report.is_stuck()
            if self._when_stuck is not None:
                self._when_stuck(self._reason(Ended.STOPPED))
        with suppress(RuntimeError):  # closed: nobody has waited for this
            self._loop.call_soon_threadsafe(self._deck_ended, error)

    def _deck_ended(self, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is not None:
            self.ended.set_exception(error)
        else:
            self._report.stopped()
            self.ended.set_result(self._reason(Ended.IDLE))


def _end_of(attempt: Attempt) -> BaseException:
    """What ended its asyncio task."""
    work = attempt.work
    error = None if work is None or work.cancelled() else work.exception()
    return error or asyncio.CancelledError()
