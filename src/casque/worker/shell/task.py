"""Shell: the task that runs shell jobs, each a command line in its own process group."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any

from casque.job import Failure, JobStatus
from casque.queues import refusals
from casque.queues.lineage import REFUSAL_VARIABLE, STORE_VARIABLE, VARIABLES, variables
from casque.queues.running_job import RunningJob
from casque.retry import Backoff, Snooze
from casque.system.clock import SECOND_US
from casque.tasks.app import TaskApp
from casque.tasks.calls import Call
from casque.tasks.current import current_job
from casque.tasks.task import where
from casque.worker.attempt import GivenBack, TaskError
from casque.worker.shell.command import Command, pause
from casque.worker.shell.guard import Guard, UnguardedError
from casque.worker.shell.job import (
    SHELL,
    ShellCall,
    ShellResult,
    decode,
    exit_failure,
    succeeded,
)
from casque.worker.shell.settings import LiveSettings

CANNOT_START = "CannotStart"
"""The kind of failure of a command that could not start."""

_LOOK_SECONDS = 3.0
"""How often running jobs are checked for cancellation."""
_LOOKED_AT = 20
"""How many jobs are checked each time, or a third of them: each check is a read."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""Errors that are not the command's fault: the machine or the worker has no room for it."""
_SHORT_DELAY = timedelta(seconds=3)
_SHORT_AGAIN_SECONDS = 60.0
"""The shortest time between two warnings about a shortage."""
_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""The exit codes of a command that SIGTERM ended; the second is how a shell reports its command."""
_SLACK_SECONDS = 5.0
"""How long a worker that is not frozen has, after the end of a lease, to end the command itself."""
_STOP_SECONDS = 0.5
"""How much later than its command a worker may get the signal to stop."""

_log = logging.getLogger("casque.worker")


class _Payload(Call):
    """Decodes the payload of a shell job, with the errors of shell jobs for an invalid payload."""

    def decode(self, payload: bytes) -> tuple[list[Any], dict[str, Any]]:
        call = decode(payload)
        return [call.command, call.env, call.cwd], {}


class _OperatorsBackoff(Backoff, frozen=True, kw_only=True):
    """The backoff that the store's settings have when the attempt fails."""

    settings: LiveSettings

    def delay_us(self, attempts: int, chance: float) -> int:
        return self.settings.known.backoff().delay_us(attempts, chance)


def add_shell(app: TaskApp) -> None:
    """Make the workers of this app run shell jobs too.

    A user's own task with that name stays as it is, and a warning is logged.
    """
    taken = app.tasks.get(SHELL)
    if taken is not None:
        _log.warning(
            "the app has its own task %r, at %s: that task gets the shell jobs, and no commands "
            "run; rename the task to run commands",
            SHELL,
            where(taken.function),
        )
        return
    settings = LiveSettings(app)
    by_loop: dict[asyncio.AbstractEventLoop, RunningCommands] = {}

    @app.task(name=SHELL, backoff=_OperatorsBackoff(settings=settings))
    async def shell(
        command: str,
        env: dict[str, str] = {},  # noqa: B006 - decoded for each call
        cwd: str | None = None,
    ) -> ShellResult:
        """Run a command line by `sh -c`. The job has succeeded if the exit code is 0."""
        await settings.refresh()
        loop = asyncio.get_running_loop()
        if loop not in by_loop or by_loop[loop].is_over:
            for other in [one for one in by_loop if by_loop[one].is_over]:
                del by_loop[other]
            by_loop[loop] = RunningCommands(app, settings)
        return await by_loop[loop].run(ShellCall(command, env, cwd), current_job())

    shell.call = _Payload(shell.function, SHELL)


class RunningCommands:
    """The shell jobs of one event loop, with their guard and a check for cancelled jobs.

    The guard and the check end with the event loop.
    """

    def __init__(self, app: TaskApp, settings: LiveSettings) -> None:
        self._app = app
        self._settings = settings
        self._running: dict[RunningJob, None] = {}
        self._guard = Guard()
        self._say_short_at = float("-inf")
        self._looking = asyncio.create_task(self._look_after())

    @property
    def is_over(self) -> bool:
        return self._looking.done()

    async def run(self, call: ShellCall, running: RunningJob) -> ShellResult:
        def report(output: bytes) -> None:
            running.output = output
            running.beat()

        refusal_path = refusals.new_path(tempfile.gettempdir(), self._app.store.clock)
        environment = _environment(call, running, self._app.app_store.shared_address, refusal_path)
        try:
            command = _started(call, environment, report)
        except _ShortageError as error:
            raise self._put_off(error) from None
        self._running[running] = None
        try:
            code = await command.run(self._guard, partial(self._bound, running, command.group))
        except UnguardedError as error:
            raise self._put_off(error) from None
        finally:
            refusal = refusals.take(refusal_path)
            running.when_renewed = None
            del self._running[running]
            running.output = command.output or None
            if command.is_left:
                message = "job %s started a process that cannot be killed: see `ps -s %d`"
                _log.warning(message, running.id, command.group)
        if code == 0:
            return succeeded(call)
        if code in _TERMINATED and await _is_stopping(running):
            raise GivenBack
        await self._settings.refresh()
        # The next attempt would be as deep as this one, so the guard would refuse it again.
        raise TaskError(exit_failure(code, refusal), gives_up=refusal is not None)

    def _bound(self, running: RunningJob, group: int) -> None:
        """Make the guard kill the command when the lease ends, even if this process is frozen."""

        def renewed(lease_us: int) -> None:
            self._guard.extend(group, lease_us / SECOND_US + _SLACK_SECONDS)

        running.when_renewed = renewed  # set this first, to miss no renewal
        if running.lease_end_us is not None:
            renewed(running.lease_end_us - self._app.store.clock.monotonic())

    def _put_off(self, error: Exception) -> Snooze:
        """Delay the job without counting the attempt, because a shortage is not the job's fault."""
        now = asyncio.get_running_loop().time()
        if now >= self._say_short_at:
            self._say_short_at = now + _SHORT_AGAIN_SECONDS
            _log.warning(
                "commands cannot be started and are delayed (%s): run fewer at once "
                "(`concurrency`), or raise the limits of this machine (ulimit)",
                error,
            )
        return Snooze(_SHORT_DELAY)

    async def _look_after(self) -> None:
        """Check the running jobs for cancellation, until the event loop ends."""
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            while True:
                await asyncio.wait([never], timeout=_LOOK_SECONDS)
                for running in self._next():
                    await self._look_at(running)
                if self._running:
                    await self._settings.refresh()
        finally:
            self._guard.close()

    def _next(self) -> Iterator[RunningJob]:
        """Yield some of the running jobs. The next call yields others."""
        share = max(_LOOKED_AT, -(-len(self._running) // 3))
        for running in list(islice(self._running, share)):
            if running in self._running:
                self._running[running] = self._running.pop(running)
                yield running

    async def _look_at(self, running: RunningJob) -> None:
        """Check one job. This finds a cancelled job long before its next heartbeat."""
        try:
            found = await self._app.async_queue.get(running.id)
        except Exception:  # noqa: BLE001 - no answer: the worker logs that, and commands continue
            return
        is_ours = found is not None and found.token == running.job.token
        if found is None or not is_ours or found.status is not JobStatus.IN_PROGRESS:
            running.beat()  # the answer reports the lost lease, which ends the command


class _ShortageError(Exception):
    """There is no room for one more process."""


async def _is_stopping(running: RunningJob) -> bool:
    """True if the worker is stopping. Waits a little: the command may get a signal first."""
    if not running.is_stopping:
        await pause(_STOP_SECONDS)
    return running.is_stopping


def _started(
    call: ShellCall, environment: dict[bytes, bytes], report: Callable[[bytes], None]
) -> Command:
    try:
        return Command(call.command, environment, call.cwd, report)
    except ValueError as error:
        raise _cannot_start(
            f"the system rejects the command, `env` or `cwd`: {error}", gives_up=True
        ) from None
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise _ShortageError(error.strerror) from None
        if error.errno == errno.E2BIG:
            raise _cannot_start(
                "the command or `env` is larger than the system allows: put it into a file and "
                "run that file",
                gives_up=True,
            ) from None
        if call.cwd is not None and error.filename == call.cwd:
            raise _cannot_start(
                f"the folder cannot be entered: {error.strerror}: {call.cwd}"
            ) from None
        raise _cannot_start(str(error)) from None


def _cannot_start(text: str, *, gives_up: bool = False) -> TaskError:
    return TaskError(Failure(CANNOT_START, text), gives_up=gives_up)


def _environment(
    call: ShellCall, running: RunningJob, store: str | None, refusal_path: str
) -> dict[bytes, bytes]:
    """The worker's variables, overridden by the job's, and both by casque's own.

    A job may name another store for its command.
    """
    environment = dict(os.environb)
    for name in VARIABLES:
        environment.pop(name.encode(), None)  # of the worker: it may run inside another job
    ours = variables(running.job, store) | {REFUSAL_VARIABLE: refusal_path}
    given = {**ours, **call.env, **{name: ours[name] for name in ours if name != STORE_VARIABLE}}
    return environment | {name.encode(): os.fsencode(value) for name, value in given.items()}
