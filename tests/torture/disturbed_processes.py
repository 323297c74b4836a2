"""Disturbed processes: the clients of one ledger, which the test kills and stops.

A killed process is replaced. A stopped one continues as it was. Some are stopped until the log is
shortened: until the entry after the last one that they can know was deleted. Such a sleeper must
notice, read the log again, and go on. It is not killed before.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from casque.buckets.port import PAGE, Bucket
from casque.stores.ledger.log import FOLDER, number_in
from casque.testing.processes import Child
from tests.acceptance.fleet import until
from tests.torture.call_checker import calls_after
from tests.torture.clients import ENOUGH, LEASE, run_client

ROLES = ("blind", "producer", "worker", "worker", "worker")
STEP_SECONDS = 0.3
PATIENCE = 60.0
_SLEEPERS = 2
"""How many processes are stopped until the log is shortened, at most: the others write it."""
_LONGEST_SLEEP = 12.0
"""How long a process is stopped after the end of the other faults, if the log is not shortened."""


class LogFolder:
    """The numbers of a ledger's entries that exist now."""

    def __init__(self, bucket: Bucket, identity: str) -> None:
        self._bucket = bucket
        self._prefix = f"{identity}/{FOLDER}"

    def first(self) -> int:
        return min(self._listed(""), default=0)

    def last(self) -> int:
        last, key = 0, ""
        while numbers := self._listed(key):
            last = max(numbers)
            if len(numbers) < PAGE:
                break
            key = f"{self._prefix}{last:020}"
        return last

    def _listed(self, after: str) -> list[int]:
        page = asyncio.run(self._bucket.list(self._prefix, after=after))
        return [number for one in page if (number := number_in(one.key))]


class Stop(NamedTuple):
    until: float
    """When it ends; infinity: when the log is shortened."""
    head: int
    """The last entry that the process can know."""


class DisturbedProcesses:
    """The processes of one queue."""

    def __init__(self, address: str, folder: Path, log: LogFolder, plant: str) -> None:
        self._address = address
        self._folder = folder
        self._log = log
        self._plant = plant
        self.counts = Counter[str]()
        self._stops: dict[int, Stop] = {}
        self._sleepers: dict[int, int] = {}
        """The size of the call log of each sleeper when it was resumed."""
        self._names = [self._name(place) for place in range(len(ROLES))]
        self._living = [self._started(name) for name in self._names]

    def _name(self, place: int) -> str:
        return f"{ROLES[place]}-{place}-{self.counts['kills']}"

    def _started(self, name: str) -> Child:
        return Child(run_client, self._address, name, self._folder, self._plant)

    # -- the faults ------------------------------------------------------------

    def disturb(self, chance: random.Random, seconds: float) -> None:
        """Kill and stop processes at random for `seconds`."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end + self._extra_seconds():
            self.check()
            self._resume()
            if now < end:
                self._disturb_one(chance)
            time.sleep(STEP_SECONDS)
        self._resume(is_over=True)

    def _extra_seconds(self) -> float:
        """How long to wait at the end, so that the log is shortened during at least one stop."""
        is_enough = self.counts["stops past a deletion"] or not self._awaited()
        return 0 if is_enough else _LONGEST_SLEEP

    def _disturb_one(self, chance: random.Random) -> None:
        place, way = chance.randrange(len(ROLES)), chance.random()
        if place in self._stops or place in self._sleepers:
            return
        if way < 0.15:
            self._kill(place)
        elif way < 0.3:
            seconds = LEASE.total_seconds() * chance.uniform(0.5, 2)
            self._stop(place, time.monotonic() + seconds)
        elif way < 0.6 and len(self._awaited()) < _SLEEPERS:
            self._stop(place, float("inf"))

    def _kill(self, place: int) -> None:
        self.counts["kills"] += 1
        self._living[place].process.kill()
        _read_to_end(self._living[place])
        self._names[place] = self._name(place)
        self._living[place] = self._started(self._names[place])

    def _stop(self, place: int, until: float) -> None:
        self.counts["stops"] += 1
        self._signal(place, signal.SIGSTOP)
        self._stops[place] = Stop(until, self._log.last())

    def _awaited(self) -> list[int]:
        """Return the processes that are stopped until the log is shortened."""
        return [place for place, stop in self._stops.items() if stop.until == float("inf")]

    def _resume(self, *, is_over: bool = False) -> None:
        """Resume the processes whose stop is over; or all."""
        self._find_awake()
        now, first = time.monotonic(), self._log.first() if self._awaited() else 0
        for place, stop in list(self._stops.items()):
            is_overtaken = first > stop.head + 1
            if is_overtaken:
                self.counts["stops past a deletion"] += 1
                self._sleepers[place] = self._call_log(place).stat().st_size
            if is_overtaken or is_over or now > stop.until:
                del self._stops[place]
                self._signal(place, signal.SIGCONT)

    def _signal(self, place: int, number: int) -> None:
        pid = self._living[place].process.pid
        assert pid is not None
        with suppress(ProcessLookupError):  # `check` reports that it has ended
            os.kill(pid, number)

    # -- after a sleep ---------------------------------------------------------

    def _call_log(self, place: int) -> Path:
        path = self._folder / f"{self._names[place]}.jsonl"
        path.touch()  # it may have been stopped while it started
        return path

    def _find_awake(self) -> bool:
        """Forget the sleepers that have completed a call. Returns True if none is left."""
        self.check()
        for place, size in list(self._sleepers.items()):
            calls = calls_after(self._call_log(place), size)
            if any(call.outcome == "ok" for call in calls):
                del self._sleepers[place]
                self.counts["sleepers that went on"] += 1
        return not self._sleepers

    def join_sleepers(self) -> None:
        """Wait until each sleeper has completed a call that it began after its sleep."""
        until("each sleeper has completed another call", self._find_awake, PATIENCE)

    # -- the end ---------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if a process had an error that no caller should get, or ended."""
        for child, name in zip(self._living, self._names, strict=True):
            if not child.reader.closed and child.reader.poll() and not child.read():
                code = child.process.exitcode
                assert (self._folder / ENOUGH).exists(), f"{name} ended with exit code {code}"
            _assert_no_error(child)

    def join(self, *, workers: bool) -> None:
        for child, role in zip(self._living, ROLES, strict=True):
            if (role == "worker") is workers:
                _read_to_end(child)

    def end(self) -> None:
        for child in self._living:
            child.process.kill()
            child.process.join()
            child.reader.close()


def _read_to_end(child: Child) -> None:
    while child.read():
        pass
    _assert_no_error(child)


def _assert_no_error(child: Child) -> None:
    assert not child.reported, child.reported[0]
    assert child.error is None, child.error
