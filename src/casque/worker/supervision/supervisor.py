"""Supervisor: several worker processes, kept running until they are told to stop."""

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
from casque.system.clock import SECOND_US, Clock, SystemClock
from casque.tasks.app import TaskApp
from casque.tasks.worker_options import WorkerOptions
from casque.worker.loading import WorkReached, is_loading, modules_of, path_of
from casque.worker.logging.console import SUPERVISOR
from casque.worker.logging.setup import LogOptions
from casque.worker.registry import process_identity
from casque.worker.registry.entries import manager_entry
from casque.worker.supervision import channel
from casque.worker.supervision.child_process import ChildProcess, reap_orphans, told
from casque.worker.supervision.registration import Enrolment
from casque.worker.supervision.signals import GENTLE, is_heard, obeying
from casque.worker.supervision.wakeups import Wakeups
from casque.worker.worker import Worker

_log = logging.getLogger(SUPERVISOR)

INIT_PID = 1
_ENROLLING_US = 3 * SECOND_US
"""How long the first children wait for the storage to have taken the entry of their supervisor."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """When children are started again, and when they are killed."""

    steady_us: int = 10 * SECOND_US
    """A child that lived so long did not die of its start."""
    first_us: int = SECOND_US
    longest_us: int = 30 * SECOND_US
    beyond_grace_us: int = 10 * SECOND_US
    """What a child that stops may take beyond the grace, to release its jobs and to end."""

    def delay_us(self, early_deaths: int) -> int:
        """How long to wait after so many deaths in a row soon after the start: at first not."""
        if early_deaths <= 1:
            return 0
        doublings = min(early_deaths - 2, 30)
        return min(self.first_us << doublings, self.longest_us)


_LOG = LogOptions()
_PACE = Pace()


class _Post:
    """One of the places for a worker process: who is on it, or when the next one comes."""

    def __init__(self) -> None:
        self.child: ChildProcess | None = None
        self.started_us = 0
        self.start_at_us: int | None = 0
        self.early_deaths = 0
        self.lives = 0
        self.first_refusal: str | None = None
        """What its very first child said, if that could not load the app."""


class Supervisor:
    """Runs `count` worker processes on the App at `target`, `module:name`.

    With `shell` they run shell jobs too; without a target, those alone.

    One that dies is replaced; one that dies soon after its start, again and again,
    ever later. All signals that ask to stop are forwarded as SIGTERM; a SIGINT
    after that makes the children release what runs at once.

    Once a child has had the store open, the next ones make none: where it is gone,
    as from a folder that is not mounted, they are refused until there is one again.
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
        enrolled_in: StoreAddress | None = None,
        log: LogOptions = _LOG,
        pace: Pace = _PACE,
        clock: Clock | None = None,
    ) -> None:
        """`enrolled_in` is where `queuectl worker stop` is to find it when it has no worker."""
        self._orders = channel.Orders(
            target=target,
            modules=list(modules),
            options=options,
            store=store,
            shell=shell,
            log=log,
            manager=os.getpid(),
            path=list(sys.path),
        )
        self._enrolled_in = enrolled_in
        self._pace = pace
        self._clock = clock or SystemClock()
        self._posts = [_Post() for _ in range(count)]
        self._wakeups = Wakeups()
        self._kill_at_us: int | None = None
        """When whoever is left is killed; None until it was told to stop."""
        self._is_hurried = False
        self._has_killed = False

    def run(self) -> bool:
        """Blocks until all have ended. False when some had to be killed.

        Raises InvalidError when not one of the first children can load the app.
        """
        is_init = os.getpid() == INIT_PID
        if is_heard():
            self._orders = msgspec.structs.replace(
                self._orders, manager_birth=process_identity.birth_of(os.getpid())
            )
        count = len(self._posts)
        fields = {"event": "supervising", "count": count}
        _log.info("supervisor of %d worker processes, pid %d", count, os.getpid(), extra=fields)
        also = (signal.SIGCHLD,) if is_init else ()
        with closing(self._wakeups), self._wakeups.on_signals(*GENTLE, *also):
            enrolment = self._enrolled()
            try:
                self._start_those_due()
                while any(post.child or post.start_at_us is not None for post in self._posts):
                    for number in self._wakeups.wait(self._idle_us()):
                        self._signalled(number)
                    if is_init:
                        self._reap_orphans()
                    self._look_after_children()
                    self._start_those_due()
            finally:
                for post in self._posts:
                    if post.child is not None:
                        post.child.let_go()
                if enrolment is not None:
                    enrolment.end()
        _log.info("all worker processes have ended", extra={"event": "all_ended"})
        return not self._has_killed

    def _enrolled(self) -> Enrolment | None:
        """Have it be found before there is a child; it does not wait long for the storage."""
        if self._enrolled_in is None or not is_heard():
            return None
        entry = manager_entry(os.getpid(), len(self._posts), self._orders.options, self._clock)
        enrolment = Enrolment(self._enrolled_in, entry, self._wakeups.ring, self.stop)
        until = self._clock.monotonic() + _ENROLLING_US
        while not enrolment.is_heard and self._kill_at_us is None:
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            for number in self._wakeups.wait(left):
                self._signalled(number)
        return enrolment

    def stop(self) -> None:
        """As SIGTERM does. From any thread."""
        self._wakeups.ring(signal.SIGTERM)

    def _idle_us(self) -> int | None:
        """How long nothing is to be done unless something happens; None: for ever."""
        times = [post.start_at_us for post in self._posts if post.start_at_us is not None]
        if self._kill_at_us is not None:
            times.append(self._kill_at_us)
        return max(0, min(times) - self._clock.monotonic()) if times else None

    def _signalled(self, number: int) -> None:
        if number not in GENTLE:
            return
        if self._kill_at_us is None:
            count = sum(post.child is not None for post in self._posts)
            fields = {"event": "terminating", "count": count}
            name = signal.Signals(number).name
            _log.info("%s: stopping the worker processes", name, extra=fields)
            self._stop_within(self._orders.options.grace_us, signal.SIGTERM)
        elif number == signal.SIGINT and not self._is_hurried:
            _log.info("SIGINT again: stopping at once", extra={"event": "hurried"})
            self._is_hurried = True
            self._stop_within(0, signal.SIGINT)

    def _stop_within(self, grace_us: int, number: signal.Signals) -> None:
        at = self._clock.monotonic() + grace_us + self._pace.beyond_grace_us
        self._kill_at_us = at if self._kill_at_us is None else min(at, self._kill_at_us)
        for post in self._posts:
            post.start_at_us = None
            if post.child is not None:
                post.child.send(number)

    def _reap_orphans(self) -> None:
        own = {post.child.pid: post.child for post in self._posts if post.child is not None}
        for pid in reap_orphans(own):
            _log.debug("reaped the orphan %d", pid)

    def _look_after_children(self) -> None:
        is_late = self._kill_at_us is not None and self._clock.monotonic() >= self._kill_at_us
        for post in self._posts:
            child = post.child
            if child is None:
                continue
            code = child.ended()
            if child.has_opened() and not self._orders.must_exist:
                self._orders = msgspec.structs.replace(self._orders, must_exist=True)
            if code is not None:
                post.child = None
                self._ended(post, child, code)
                child.let_go()
            elif is_late:
                fields = {"event": "killed", "child": child.pid}
                message = "worker process %d did not stop in time: killed"
                _log.warning(message, child.pid, extra=fields)
                self._has_killed = True
                child.kill()
        if is_late:
            # Killed is not gone: one that hangs in the system's own code is not waited for twice.
            self._kill_at_us = self._clock.monotonic() + self._pace.beyond_grace_us

    def _ended(self, post: _Post, child: ChildProcess, code: int) -> None:
        """Decides whether and when another takes its place."""
        if self._kill_at_us is not None:
            event = "died_stopping" if code else "ended"
            _log.info("worker process %d %s", child.pid, told(code), extra={"event": event})
            return
        now = self._clock.monotonic()
        if code == channel.IDLE:
            _log.info("worker process %d is done", child.pid)
            return
        if code == channel.DISMISSED:
            fields = {"event": "let_go", "child": child.pid}
            message = "worker process %d was dismissed and is not replaced"
            _log.info(message, child.pid, extra=fields)
            return
        is_early = now - post.started_us < self._pace.steady_us
        # One that is too large as soon as it has started will be so the next time.
        is_bloated = code == channel.RECYCLED and self._orders.options.max_jobs is None and is_early
        post.start_at_us = now
        if code in {0, channel.RECYCLED} and not is_bloated:
            why = "was told to stop" if code == 0 else "did its share"
            fields = {"event": "replaced", "child": child.pid, "how": why}
            _log.info("worker process %d %s and is replaced", child.pid, why, extra=fields)
            post.early_deaths = 0
            return
        post.early_deaths = post.early_deaths + 1 if is_early else 1
        if code == channel.REFUSED and post.early_deaths == 1:
            post.early_deaths = 2  # nothing will have changed at once
        post.start_at_us += self._pace.delay_us(post.early_deaths)
        self._tell_of_death(post, child, code)

    def _tell_of_death(self, post: _Post, child: ChildProcess, code: int) -> None:
        if code == channel.REFUSED:
            refusal = child.complaint() or "the app cannot be loaded."
            if post.lives == 1:
                post.first_refusal = refusal
                if all(one.first_refusal for one in self._posts):
                    raise InvalidError(refusal)
            _log.error("worker process %d: %s", child.pid, refusal)
        elif code == channel.RECYCLED:
            _log.warning("worker process %d grew beyond max_mib as soon as it began", child.pid)
        else:
            how = told(code)
            fields = {"event": "died", "child": child.pid, "how": how}
            _log.warning("worker process %d %s and is replaced", child.pid, how, extra=fields)
        if post.early_deaths == 2:  # noqa: PLR2004 - it happened again: said once, and not each time
            _log.warning(
                "worker processes die soon after their start: they are started ever later, "
                "up to %.0f s apart",
                self._pace.longest_us / SECOND_US,
            )

    def _start_those_due(self) -> None:
        for post in self._posts:
            now = self._clock.monotonic()
            if post.start_at_us is not None and now >= post.start_at_us:
                try:
                    post.child = ChildProcess(self._orders, self._wakeups.ring)
                except OSError as error:  # no memory or no room for another process just now
                    post.early_deaths += 1
                    post.start_at_us = now + max(self._pace.delay_us(post.early_deaths), SECOND_US)
                    _log.warning("a worker process cannot be started, tried again: %s", error)
                    continue
                post.started_us, post.start_at_us = now, None
                post.lives += 1
                fields = {"event": "started", "child": post.child.pid}
                _log.info("worker process %d started", post.child.pid, extra=fields)


def work(app: TaskApp, options: WorkerOptions, count: int = 1) -> None:
    """What `App.work` does: one worker here, or several processes. Blocks until they end."""
    if is_loading():
        raise WorkReached
    # One that is to be replaced now and then needs somebody who does that.
    is_recycled = options.max_jobs is not None or options.max_mib is not None
    if count == 1 and not is_recycled:
        worker = Worker(app, options)
        with obeying(worker) as keep:
            worker.run(keep_signals=keep)
        return
    if app.store.instant:
        raise InvalidError(
            "the jobs of a store in memory are seen by no other process: use count=1 without "
            "max_jobs and max_mib, or a store that processes share, as sqlite:///jobs.db is."
        )
    # As the same program would log with count=1.
    level = logging.getLogger("casque.worker").getEffectiveLevel()
    log = LogOptions(level=level, yields=True)
    Supervisor(path_of(app), options, count, modules=modules_of(app), log=log).run()
