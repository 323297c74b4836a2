"""Prints the seconds per directory, slowest first, if a run took longer than the limit."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import PurePosixPath

import pytest

from casque.system.clock import SECOND_US, SystemClock

LONGEST_SECONDS = 600
"""The limit for `make test` on two cores."""


class Timetable:
    def __init__(self) -> None:
        self._began = SystemClock().monotonic()
        self._seconds: dict[str, float] = defaultdict(float)
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = PurePosixPath(report.nodeid.partition("::")[0]).parent.as_posix()
        self._seconds[folder] += report.duration
        self._tests[folder] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        took = (SystemClock().monotonic() - self._began) / SECOND_US
        if took > LONGEST_SECONDS:
            terminalreporter.section(f"took {took:.0f} s; expected at most {LONGEST_SECONDS} s")
            for line in self.lines():
                terminalreporter.write_line(line)

    def lines(self) -> list[str]:
        return [
            f"{seconds:7.0f} s  {self._tests[folder]:5} tests  {folder}"
            for folder, seconds in sorted(self._seconds.items(), key=lambda row: -row[1])
        ]


def pytest_configure(config: pytest.Config) -> None:
    # All reports arrive in the process that started the run. `make test` sets the variable.
    if "CASQUE_TEST_TIMETABLE" in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Timetable())
