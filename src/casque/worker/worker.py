"""Worker: claims jobs, runs an attempt of each in a slot, and ends cleanly.

A worker has two threads. The thread that called `run` runs the event loop, with the attempts. The
store thread calls the store. Calls go one way, Worker → RunningAttempts → StoreThread; answers come
back as messages, in one queue.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec.structs import asdict

from casque.errors import CasqueError, InvalidError
from casque.queues.session import Session
from casque.stores.description import Metered
from casque.stores.port import Doubtful, Store
from casque.system.clock import SECOND_US
from casque.tasks.app import TaskApp
from casque.worker import runtime
from casque.worker.loading import name_of
from casque.worker.logging.events import Report, WorkerEvent
from casque.worker.messages import (
    Committed,
    Dismissed,
    Message,
    Registered,
    StoreReplaced,
    StoreThreadEnded,
)
from casque.worker.options import WorkerOptions
from casque.worker.registry.entries import OwnEntry
from casque.worker.running import RunningAttempts
from casque.worker.schedule_ticks import NO_APP, ScheduleTicks
from casque.worker.store_thread import LAST_WORDS_US, StoreThread
from casque.worker.supervision.signals import RestoreHandlers

_LAST_WORDS_SECONDS = LAST_WORDS_US / SECOND_US + 1.0
"""How long after the grace a worker waits for the storage to take the last outcomes.

Less than a supervisor waits before it kills a child.
"""
_LOOKS_PER_LEASE = 20
_LONGEST_LOOK_SECONDS = 1.0
_DEFAULT = WorkerOptions()


class Ended(enum.Enum):
    """Why a worker ended; the value is the exit code for its supervisor."""

    STOPPED = 0
    IDLE = 201
    """It was started `until_idle`, and no job is due. Not 0: `sys.exit()` in a task gives that."""
    RECYCLED = 202
    """It reached `max_jobs` or `max_mib`, and is replaced."""
    DISMISSED = 204
    """A record in the store asked it to stop, and it is not replaced."""


class Worker:
    """Runs the jobs of an app's tasks until it is asked to stop."""

    _store_thread: StoreThread
    _running: RunningAttempts
    _store: Store
    _report: Report
    _entry: OwnEntry
    _ended: asyncio.Future[Ended]

    def __init__(
        self,
        app: TaskApp,
        options: WorkerOptions = _DEFAULT,
        *,
        supervisor: int | None = None,
        supervisor_birth: int | None = None,
        when_registered: Callable[[], object] = lambda: None,
        when_stuck: Callable[[Ended], object] = lambda _: None,
    ) -> None:
        """`supervisor` and `supervisor_birth` identify its supervisor process in the registry.

        `when_registered` is called once the worker's entry is in the store. If it
        raises a CasqueError, `run` raises that error.
        `when_stuck` is called, on another thread, when a task keeps `run` from returning.
        All jobs are released by then, and the caller can only end the process.
        """
        if not app.tasks:
            raise InvalidError(
                "this App has no tasks, so there is nothing to work on: import the modules that "
                "define them before the worker starts."
            )
        self._app = app
        self._options = options
        self._supervisor = supervisor, supervisor_birth
        self._restore_signals: RestoreHandlers | None = None
        self._when_registered, self._when_stuck = when_registered, when_stuck
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = self._is_stopping_now = False

    # -- from any thread -------------------------------------------------------

    def run(self, *, restore_signals: RestoreHandlers | None = None) -> Ended:
        """Work until asked to stop; with such options, until idle or at a limit. Blocks.

        `restore_signals` installs the handlers of SIGTERM and others again; None if signals do
        not stop this worker.
        """
        self._restore_signals = restore_signals
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the quick check
            raise InvalidError(
                "a worker has its own event loop and cannot run inside another: call it from "
                "synchronous code, or start a process: python -m casque.worker module:app."
            )
        try:
            return runtime.run(self._run())
        finally:
            if self._loop is not None:
                # Whatever ended the loop, no thread may continue to renew the leases of its jobs.
                self._ended.cancel()
                self._store_thread.stop_by(0)
                self._running.leave_switching()
            self._loop = None

    def stop(self) -> None:
        """Claim no more jobs, let running ones end within the grace, release the rest.

        Signal-safe.
        """
        self._is_stopping = True
        self._wake(self._options.grace_us)

    def stop_now(self) -> None:
        """Release all running jobs at once. Signal-safe."""
        self._is_stopping = self._is_stopping_now = True
        self._wake(0)

    def _wake(self, grace_us: int) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            # If a task blocks the loop, the store thread releases the jobs without it.
            self._store_thread.stop_within(grace_us)
            loop.call_soon_threadsafe(self._stop_if_asked)

    # -- on its loop -----------------------------------------------------------

    async def _run(self) -> Ended:
        store = self._app.app_store.apart()
        is_its_own = store is not self._app.store
        if isinstance(store, Doubtful):
            store.try_out()
        loop = asyncio.get_running_loop()
        self._set_up(store, loop)
        self._loop = loop
        try:
            names = ", ".join(self._app.tasks)
            about = names, self._options.concurrency, store.name
            self._report.own(WorkerEvent.STARTING, *about, store=store.name)
            self._store_thread.start()
            self._look()
            self._stop_if_asked()  # it may have been asked to stop before the loop ran
            while not self._ended.done():
                # Not by awaiting it: a task that cancels all asyncio tasks must not cancel it.
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([self._ended])
            return self._ended.result()
        finally:
            self._running.close()
            # A store that does not answer is still in use by its thread, until the process ends.
            if is_its_own and not self._is_unheard:
                await store.close()

    def _set_up(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        session = Session(
            store,
            owner="Worker",
            blocking=store.blocking,
            shared_address=self._app.app_store.shared_address,
        )
        self._store = store
        self._report = Report(session.worker, store.clock)
        supervisor, supervisor_birth = self._supervisor
        self._entry = OwnEntry(
            session.worker,
            self._options,
            tuple(self._app.tasks),
            store,
            supervisor=supervisor,
            supervisor_birth=supervisor_birth,
            obeys_signals=self._restore_signals is not None,
        )
        self._store_thread = StoreThread(
            session,
            self._options,
            self._app.tasks,
            self._entry,
            ScheduleTicks(session, self._app.schedules, name_of(self._app) or NO_APP, self._report),
            report=self._report,
            post=partial(self._post, loop),
        )
        self._running = RunningAttempts(self._app, store.clock, self._report, self._store_thread)
        self._running.settled.add_done_callback(lambda _: self._finish())
        self._ended = loop.create_future()
        self._why: Ended | None = None
        """Why it ends, once it does."""
        self._is_told = False
        """True if it was asked to stop: then running jobs have the grace, else their whole time."""
        self._is_unheard = False
        """True if it ended before every outcome was stored."""

    def _look(self) -> None:
        """Check leases, signals and memory, and schedule the next check."""
        self._running.look()
        # An async task can ignore SIGTERM, or run a server that installs its own handler.
        if self._restore_signals is not None and (taken := self._restore_signals()):
            self._report.own(WorkerEvent.SIGNALS_TAKEN, ", ".join(taken))
        most = self._options.max_mib
        if most is not None and self._why is None and runtime.resident_mib() > most:
            self._report.own(WorkerEvent.GROWN, most)
            self._stop(Ended.RECYCLED)
        seconds = self._options.lease_us / SECOND_US / _LOOKS_PER_LEASE
        asyncio.get_running_loop().call_later(min(seconds, _LONGEST_LOOK_SECONDS), self._look)

    # -- messages of the store thread ------------------------------------------

    def _post(self, loop: asyncio.AbstractEventLoop, message: Message) -> None:
        """Queue a message for the event loop. Runs on the store thread."""
        if isinstance(message, StoreThreadEnded) and message.is_stuck and not self._ended.done():
            # A task blocks the loop, so this message would never be read.
            self._report.own(WorkerEvent.STUCK)
            self._when_stuck(self._reason(Ended.STOPPED))
        with suppress(RuntimeError):  # the loop is closed: the worker has ended
            loop.call_soon_threadsafe(self._receive, message)

    def _receive(self, message: Message) -> None:
        if self._ended.done():
            return
        match message:
            case Committed():
                self._running.take(message)
                most = self._options.max_jobs
                if message.claimed and most is not None and self._store_thread.claimed >= most:
                    self._stop(Ended.RECYCLED)
            case Registered():
                self._registered()
            case StoreReplaced(error):
                self._fail(error)
            case Dismissed():
                self._stop(Ended.DISMISSED)
            case StoreThreadEnded(None):
                self._report_requests()
                self._report.own(WorkerEvent.STOPPED)
                self._ended.set_result(self._reason(Ended.IDLE))
            case StoreThreadEnded(failure):
                assert failure is not None
                self._ended.set_exception(failure)

    def _report_requests(self) -> None:
        """Log what this worker has sent to its bucket, which is what it costs."""
        if isinstance(self._store, Metered):
            sent = self._store.requests
            self._report.own(WorkerEvent.SENT, sent.total, str(sent), requests=asdict(sent))

    def _registered(self) -> None:
        try:
            self._when_registered()
        except CasqueError as error:
            self._store_thread.stop_by(0)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End as if killed, because the store accepts no more writes."""
        self._is_unheard = True
        self._ended.set_exception(error)

    # -- the end ---------------------------------------------------------------

    def _stop_if_asked(self) -> None:
        if self._is_stopping_now:
            self._give_back()
        elif self._is_stopping:
            self._stop(Ended.STOPPED)

    def _stop(self, why: Ended) -> None:
        """Claim no more jobs; end after the running ones, within the grace if told to stop."""
        is_told = why in (Ended.STOPPED, Ended.DISMISSED)
        is_first, self._why = self._why is None, self._why or why
        if is_first:
            self._store_thread.stop_claiming()
        jobs = len(self._running)
        if is_told and not self._is_told:
            self._is_told = True
            seconds = self._options.grace_us / SECOND_US
            self._report.own(WorkerEvent.STOPPING, jobs, seconds, is_quiet=not jobs)
            if jobs:
                asyncio.get_running_loop().call_later(seconds, self._give_back)
        elif is_first:
            self._report.own(WorkerEvent.ENDING, jobs, is_quiet=not jobs)
        self._running.stop(is_told=is_told)

    def _give_back(self) -> None:
        """End the running attempts and release their jobs."""
        self._stop(Ended.STOPPED)
        asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, self._end_unheard)
        self._running.give_back()

    def _finish(self) -> None:
        """Store the last outcomes, with a time limit: the storage may not answer."""
        self._store_thread.finish()
        asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, self._end_unheard)

    def _end_unheard(self) -> None:
        """End as if killed: the storage does not answer. Jobs run again after their leases."""
        if not self._ended.done():
            self._is_unheard = True
            self._report.own(WorkerEvent.UNHEARD, len(self._running))
            self._ended.set_result(self._reason(Ended.STOPPED))

    def _reason(self, otherwise: Ended) -> Ended:
        # A dismissal may come after a signal, and the exit code must show it to the supervisor.
        return Ended.DISMISSED if self._entry.is_dismissed else self._why or otherwise
