"""Processes: run a function in many processes at once, or in threads, and collect its reports.

Processes are forked by Python's `forkserver`, which has loaded casque. A fresh
interpreter for each would take longer than most tests. Threads serve storages
that another process cannot reach.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

Work = Callable[..., None]
"""A module-level function `work(address, report, …)`. `report(value)` sends a value back."""

_LONGEST_SECONDS = 100
"""The longest time without a report: a process that hangs fails its test, not the whole run."""
_PRELOADED = ["casque.testing.children", "casque.testing.suite"]


class Child:
    """A process that runs `work(address, report, *args)`, with its reports."""

    def __init__(self, work: Work, address: Any, *args: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self.reported: list[Any] = []
        self.error: str | None = None
        self.reader, writer = context.Pipe(duplex=False)
        given = (work, address, writer, dict(os.environ), args)
        self.process = context.Process(target=_run, args=given)
        self.process.start()
        writer.close()

    def read(self) -> bool:
        """Read the next report. Returns False if the process has ended and there is none."""
        if not self.reader.poll(_LONGEST_SECONDS):
            self.process.kill()
            raise AssertionError(f"no process reported anything within {_LONGEST_SECONDS} s")
        try:
            is_error, value = self.reader.recv()
        except EOFError:
            self.reader.close()
            self.process.join()
            return False
        if is_error:
            self.error = value
        else:
            self.reported.append(value)
        return True


def meeting_of(count: int) -> Any:
    """A barrier at which `count` of these processes can wait for each other."""
    return multiprocessing.get_context("forkserver").Barrier(count)


def run_in_process(work: Work, address: Any, *args: Any) -> list[Any]:
    """Run it to its end, even if that is a kill. Returns what it reported."""
    child = Child(work, address, *args)
    while child.read():
        pass
    if child.error is not None:
        raise AssertionError(f"the process failed: {child.error}")
    return child.reported


def in_processes(address: Any, count: int, work: Work, args: tuple[Any, ...]) -> list[Any]:
    """Run `work(address, report, place, *args)` in `count` processes at once. Returns reports."""
    children = [Child(work, address, place, *args) for place in range(count)]
    reading: dict[Any, Child] = {child.reader: child for child in children}
    try:
        while reading:
            ready = wait(list(reading), _LONGEST_SECONDS)
            if not ready:
                raise AssertionError(f"no process reported anything within {_LONGEST_SECONDS} s")
            for reader in ready:
                child = reading[reader]
                if child.read():
                    continue
                del reading[reader]
                if child.error is not None or child.process.exitcode:
                    why = child.error or f"exit code {child.process.exitcode}"
                    raise AssertionError(f"a process failed: {why}")
    finally:
        for child in reading.values():
            child.process.kill()
            child.process.join()
            child.reader.close()
    return [value for child in children for value in child.reported]


def _run(
    work: Work,
    address: Any,
    writer: Connection,
    environment: dict[str, str],
    args: tuple[Any, ...],
) -> None:
    os.environ.clear()  # the fork server still has the environment of an earlier test
    os.environ.update(environment)
    try:
        work(address, lambda value: writer.send((False, value)), *args)
    except BaseException as error:  # noqa: BLE001 - sent to the test
        writer.send((True, repr(error)))


def in_threads(address: Any, count: int, work: Work, args: tuple[Any, ...]) -> list[Any]:
    """Do the same as `in_processes`, in threads of this process."""
    values: list[Any] = []
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            work(address, values.append, place, *args)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return values
