"""Supervisor: several worker processes, kept running until they are asked to stop."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing

import msgspec

from casque.errors import InvalidError
from casque.stores.url import StoreAddress
from casque.system.clock import SECOND_US, SystemClock
from casque.tasks.app import TaskApp
from casque.worker.loading import WorkReached, is_loading, modules_of, path_of, refuse_memory
from casque.worker.logging.console import SUPERVISOR_LOGGER
from casque.worker.logging.setup import LogOptions
from casque.worker.options import WorkerOptions
from casque.worker.registry import process_identity
from casque.worker.registry.entries import supervisor_entry
from casque.worker.supervision import channel
from casque.worker.supervision.child_process import ChildProcess, exit_text, reap_orphans
from casque.worker.supervision.registration import Registration
from casque.worker.supervision.signals import STOP_SIGNALS, can_handle_signals, stopping_on_signals
from casque.worker.supervision.wakeups import Wakeups
from casque.worker.worker import Ended, Worker

_log = logging.getLogger(SUPERVISOR_LOGGER)
_REPLACED = "worker process %d %s and is replaced"

INIT_PID = 1
_REGISTERING_US = 3 * SECOND_US
"""How long the first children wait until the entry of their supervisor is stored."""


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When children are started again, and when they are killed."""

    steady_us: int = 10 * SECOND_US
    """A child that lived this long did not die because of its start."""
    first_us: int = SECOND_US
    longest_us: int = 30 * SECOND_US
    beyond_grace_us: int = 10 * SECOND_US
    """How long a child may take beyond the grace, to release its jobs and to end."""

    def delay_us(self, early_deaths: int) -> int:
        """How long to wait after this many early deaths in a row; 0 after the first."""
        if early_deaths <= 1:
            return 0
        doublings = min(early_deaths - 2, 30)
        return min(self.first_us << doublings, self.longest_us)


_LOG = LogOptions()
_RESTART_POLICY = RestartPolicy()


class _WorkerSlot:
    """One of `count` worker processes: the running child, or the time when the next one starts."""

    def __init__(self) -> None:
        self.child: ChildProcess | None = None
        self.started_us = 0
        self.start_at_us: int | None = 0
        self.early_deaths = 0
        self.lives = 0
        self.first_refusal: str | None = None
        """The complaint of its very first child, if that could not load the app."""


class Supervisor:
    """Runs `count` worker processes on the App at `target`, `module:name`.

    With `shell` they run shell jobs too; without a target, shell jobs only.

    A child that dies is replaced. If children keep dying soon after their start, the pauses grow.
    Every stop signal is forwarded as SIGTERM. A SIGINT after a stop signal makes the children
    release their jobs at once.

    Once a child has opened the store, later children must not create it. If the store is gone, for
    example because its folder is not mounted, children refuse to work until it is back.
    """

    def __init__(
        self,
        target: str | None,
        options: WorkerOptions,
        count: int,
        store: str | None = None,
        *,
        modules: Sequence[str] = (),
        shell: bool = False,
        registered_in: StoreAddress | None = None,
        log: LogOptions = _LOG,
        restart: RestartPolicy = _RESTART_POLICY,
    ) -> None:
        """`registered_in` is the store that gets the supervisor's entry."""
        self._orders = channel.Orders(
            target=target,
            modules=list(modules),
            options=options,
            store=store,
            shell=shell,
            log=log,
            supervisor=os.getpid(),
            path=list(sys.path),
        )
        self._registered_in = registered_in
        self._restart = restart
        self._clock = SystemClock()
        self._slots = [_WorkerSlot() for _ in range(count)]
        self._wakeups = Wakeups()
        self._kill_at_us: int | None = None
        """When the children that are left are killed; None until it is asked to stop."""
        self._is_hurried = False
        self._has_killed = False

    def run(self) -> bool:
        """Run until all children have ended. Returns False if some had to be killed.

        Raises InvalidError if none of the first children can load the app.
        """
        is_init = os.getpid() == INIT_PID
        if can_handle_signals():
            self._orders = msgspec.structs.replace(
                self._orders, supervisor_birth=process_identity.birth_of(os.getpid())
            )
        count = len(self._slots)
        message = "supervisor of %d worker processes, pid %d"
        _say(logging.INFO, "supervising", message, count, os.getpid(), count=count)
        also = (signal.SIGCHLD,) if is_init else ()
        with closing(self._wakeups), self._wakeups.on_signals(*STOP_SIGNALS, *also):
            registration = self._register()
            try:
                self._start_those_due()
                while any(slot.child or slot.start_at_us is not None for slot in self._slots):
                    for number in self._wakeups.wait(self._idle_us()):
                        self._signalled(number)
                    if is_init:
                        self._reap_orphans()
                    self._look_after_children()
                    self._start_those_due()
            finally:
                for slot in self._slots:
                    if slot.child is not None:
                        slot.child.line.close()
                if registration is not None:
                    registration.end()
        _say(logging.INFO, "all_ended", "all worker processes have ended")
        return not self._has_killed

    def _register(self) -> Registration | None:
        """Store the entry before the first child starts, without waiting long for the storage."""
        if self._registered_in is None or not can_handle_signals():
            return None
        entry = supervisor_entry(os.getpid(), self._orders.options, self._clock)
        registration = Registration(self._registered_in, entry, self._wakeups.ring, self.stop)
        until = self._clock.monotonic() + _REGISTERING_US
        while not registration.is_answered and self._kill_at_us is None:
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            for number in self._wakeups.wait(left):
                self._signalled(number)
        return registration

    def stop(self) -> None:
        """Stop in the same way as at SIGTERM. Thread-safe."""
        self._wakeups.ring(signal.SIGTERM)

    def _idle_us(self) -> int | None:
        """Return how long to wait if nothing happens; None to wait for ever."""
        times = [slot.start_at_us for slot in self._slots if slot.start_at_us is not None]
        if self._kill_at_us is not None:
            times.append(self._kill_at_us)
        return max(0, min(times) - self._clock.monotonic()) if times else None

    def _signalled(self, number: int) -> None:
        if number not in STOP_SIGNALS:
            return
        if self._kill_at_us is None:
            count = sum(slot.child is not None for slot in self._slots)
            name = signal.Signals(number).name
            message = "%s: stopping the worker processes"
            _say(logging.INFO, "terminating", message, name, count=count)
            self._stop_within(self._orders.options.grace_us, signal.SIGTERM)
        elif number == signal.SIGINT and not self._is_hurried:
            _say(logging.INFO, "hurried", "SIGINT again: stopping at once")
            self._is_hurried = True
            self._stop_within(0, signal.SIGINT)

    def _stop_within(self, grace_us: int, number: signal.Signals) -> None:
        at = self._clock.monotonic() + grace_us + self._restart.beyond_grace_us
        self._kill_at_us = at if self._kill_at_us is None else min(at, self._kill_at_us)
        for slot in self._slots:
            slot.start_at_us = None
            if slot.child is not None:
                slot.child.send(number)

    def _reap_orphans(self) -> None:
        own = {slot.child.pid: slot.child for slot in self._slots if slot.child is not None}
        for pid in reap_orphans(own):
            _log.debug("reaped the orphan %d", pid)

    def _look_after_children(self) -> None:
        is_late = self._kill_at_us is not None and self._clock.monotonic() >= self._kill_at_us
        for slot in self._slots:
            child = slot.child
            if child is None:
                continue
            code = child.ended()
            if channel.has_opened(child.line) and not self._orders.must_exist:
                self._orders = msgspec.structs.replace(self._orders, must_exist=True)
            if code is not None:
                slot.child = None
                self._ended(slot, child, code)
                child.line.close()
            elif is_late:
                message = "worker process %d did not stop in time: killed"
                _say(logging.WARNING, "killed", message, child.pid, child=child.pid)
                self._has_killed = True
                child.kill()
        if is_late:
            # A killed process may hang in the kernel: it is killed again after a while.
            self._kill_at_us = self._clock.monotonic() + self._restart.beyond_grace_us

    def _ended(self, slot: _WorkerSlot, child: ChildProcess, code: int) -> None:
        """Decide whether and when another child replaces a child that has ended."""
        if self._kill_at_us is not None:
            event = "died_stopping" if code else "ended"
            _say(logging.INFO, event, "worker process %d %s", child.pid, exit_text(code))
            return
        now = self._clock.monotonic()
        if code == Ended.IDLE.value:
            _log.info("worker process %d ended: no job is due", child.pid)
            return
        if code == Ended.DISMISSED.value:
            message = "worker process %d was dismissed and is not replaced"
            _say(logging.INFO, "let_go", message, child.pid, child=child.pid)
            return
        is_early = now - slot.started_us < self._restart.steady_us
        # A child that is too large right after its start will be too large the next time.
        is_bloated = (
            code == Ended.RECYCLED.value and self._orders.options.max_jobs is None and is_early
        )
        slot.start_at_us = now
        if code in {Ended.STOPPED.value, Ended.RECYCLED.value} and not is_bloated:
            why = "was asked to stop" if code == Ended.STOPPED.value else "reached its limit"
            _say(logging.INFO, "replaced", _REPLACED, child.pid, why, child=child.pid, how=why)
            slot.early_deaths = 0
            return
        slot.early_deaths = slot.early_deaths + 1 if is_early else 1
        if code == channel.REFUSED and slot.early_deaths == 1:
            slot.early_deaths = 2  # an immediate retry would fail the same way
        slot.start_at_us += self._restart.delay_us(slot.early_deaths)
        self._report_death(slot, child, code)

    def _report_death(self, slot: _WorkerSlot, child: ChildProcess, code: int) -> None:
        if code == channel.REFUSED:
            refusal = channel.complaint(child.line) or "the app cannot be loaded."
            if slot.lives == 1:
                slot.first_refusal = refusal
                if all(one.first_refusal for one in self._slots):
                    raise InvalidError(refusal)
            _log.error("worker process %d: %s", child.pid, refusal)
        elif code == Ended.RECYCLED.value:
            message = "worker process %d exceeded max_mib right after its start: raise max_mib"
            _log.warning(message, child.pid)
        else:
            how = exit_text(code)
            _say(logging.WARNING, "died", _REPLACED, child.pid, how, child=child.pid, how=how)
        if slot.early_deaths == 2:  # noqa: PLR2004 - the second in a row; logged once
            _log.warning(
                "worker processes die soon after their start: "
                "the delay between restarts grows, up to %.0f s",
                self._restart.longest_us / SECOND_US,
            )

    def _start_those_due(self) -> None:
        for slot in self._slots:
            now = self._clock.monotonic()
            if slot.start_at_us is not None and now >= slot.start_at_us:
                try:
                    slot.child = ChildProcess(self._orders, self._wakeups.ring)
                except OSError as error:  # no memory or no room for another process just now
                    slot.early_deaths += 1
                    slot.start_at_us = now + max(
                        self._restart.delay_us(slot.early_deaths), SECOND_US
                    )
                    _log.warning("a worker process cannot be started, will retry: %s", error)
                    continue
                slot.started_us, slot.start_at_us = now, None
                slot.lives += 1
                pid = slot.child.pid
                _say(logging.INFO, "started", "worker process %d started", pid, child=pid)


def _say(level: int, event: str, message: str, *args: object, **fields: object) -> None:
    """Log an event. The console format uses `event`, not `message`, to choose its text."""
    _log.log(level, message, *args, extra={"event": event, **fields})


def work(app: TaskApp, options: WorkerOptions, count: int = 1) -> None:
    """Run one worker here, or several processes, until they end. `App.work` calls this."""
    if is_loading():
        raise WorkReached
    if count == 1 and not options.is_recycled:
        worker = Worker(app, options)
        with stopping_on_signals(worker.stop, worker.stop_now) as restore:
            worker.run(restore_signals=restore)
        return
    refuse_memory(app.store)
    # The children log as the same program would with count=1.
    level = logging.getLogger("casque.worker").getEffectiveLevel()
    log = LogOptions(level=level, yields=True)
    Supervisor(path_of(app), options, count, modules=modules_of(app), log=log).run()
