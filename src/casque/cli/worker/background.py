"""Background: starts a supervisor process that outlives this command and its terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from casque.cli.interrupts import Interrupts
from casque.cli.output import DONE, NOT_SO, complain, progress_bar
from casque.cli.store import Access
from casque.cli.worker.fleet import registered_workers
from casque.cli.worker.plan import StartPlan
from casque.errors import InvalidError
from casque.system.clock import SECOND_US, SystemClock
from casque.worker.supervision.child_process import running

START_US = 30 * SECOND_US
"""How long workers may take to register."""
_IDLE_US = 5 * SECOND_US
"""The same after the first one: the others may have found no job and ended."""
_LOOK_SECONDS = 0.1
_END_SECONDS = 20.0
"""Longer than a supervisor takes to stop at once."""
_TAIL_LINES = 15
_TAIL_BYTES = 8_000


class Started(NamedTuple):
    """The processes that run in the background now."""

    supervisor: int
    workers: list[int]
    """Empty if they found no job and ended."""
    log: Path


class NotStartedError(Exception):
    """The workers did not register. None of their processes is running any more."""

    def __init__(self, reason: str, code: int, log: Path) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.log = log

    def report(self) -> int:
        """Print the end of the log and the reason on stderr. Returns the exit code."""
        lines = _tail(self.log)
        for line in lines:
            print(f"  | {line}", file=sys.stderr)
        log = "see their log" if lines else "their log is empty"
        complain(f"{self.reason}; {log}: {self.log}")
        return self.code


def start(plan: StartPlan, access: Access, log_file: str | None) -> Started:
    """Start workers and wait until all are registered, or raise NotStartedError."""
    with Interrupts() as interrupts:
        interrupts.hold()
        process, log = _launch(log_file)
        try:
            interrupts.release()
            _send(process, plan)
            with progress_bar("Starting") as bar:
                workers = _registered(process, plan, access, log, bar)
        except BaseException:  # also on Ctrl-C: leave no process behind
            _end(process)
            raise
    return Started(process.pid, workers, log)


def _send(process: subprocess.Popen[bytes], plan: StartPlan) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # the process has ended; `_registered` notices it
        process.stdin.write(msgspec.json.encode(plan))
        process.stdin.close()


def _launch(log_file: str | None) -> tuple[subprocess.Popen[bytes], Path]:
    first = _default_log(f"of-{os.getpid()}") if log_file is None else Path(log_file).absolute()
    descriptor = open_log(first)
    try:
        process = subprocess.Popen(  # noqa: S603 - our own module, by the same Python
            running("casque.cli.worker.supervise"),
            stdin=subprocess.PIPE,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    return process, first if log_file is not None else _renamed(first, process.pid)


def _default_log(name: str) -> Path:
    from platformdirs import user_log_path

    return user_log_path("casque", appauthor=False) / f"worker-{name}.log"


def _renamed(log: Path, pid: int) -> Path:
    """Name the log by the supervisor's PID, without overwriting another log."""
    number, name = 1, _default_log(str(pid))
    while name.exists():
        number += 1
        name = _default_log(f"{pid}-{number}")
    try:
        log.rename(name)
    except OSError:  # the log keeps its first name
        return log
    return name


def open_log(path: Path) -> int:
    """Return a descriptor that appends to the file, which only its owner can read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except (OSError, ValueError) as error:
        raise InvalidError(
            f"cannot write the log {path}: {error}. Choose another with --log-file.", cause=error
        ) from error


def _registered(
    process: subprocess.Popen[bytes],
    plan: StartPlan,
    access: Access,
    log: Path,
    bar: Callable[[int, int | None, str], None],
) -> list[int]:
    clock = SystemClock()
    deadline = clock.monotonic() + START_US
    seen: dict[str, int] = {}
    while True:
        # Some may finish all jobs and end, or be replaced, before others register.
        for one in registered_workers(access):
            if one.supervisor == process.pid and one.is_here and not one.is_gone:
                seen[one.name] = one.pid
        if len(seen) >= plan.count:
            return [*seen.values()][-plan.count :]
        bar(len(seen), plan.count, f"{len(seen)} of {plan.count} worker(s) registered")
        if seen and plan.options.until_idle:
            deadline = min(deadline, clock.monotonic() + _IDLE_US)
        if clock.monotonic() >= deadline:
            if seen and plan.options.until_idle:
                return [*seen.values()]
            seconds = START_US // SECOND_US
            reason = f"{len(seen)} of {plan.count} worker(s) registered within {seconds} s"
            raise NotStartedError(f"only {reason}, and were stopped", NOT_SO, log)
        try:
            code = process.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        if code == DONE and plan.options.until_idle:
            return [*seen.values()]
        raise NotStartedError("the workers did not start", code if code > 0 else NOT_SO, log)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop the supervisor. Its workers give their running jobs back at once."""
    try:
        process.send_signal(signal.SIGTERM)
        process.wait(_LOOK_SECONDS)
        return
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # its workers notice that, and stop
        process.wait()


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            return file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []
