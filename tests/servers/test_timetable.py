"""The table of seconds per directory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.timetable import Timetable


def test_the_table_has_the_slowest_directory_first() -> None:
    table = Timetable()
    for nodeid, when, duration in (
        ("tests/a/test_x.py::test_1", "setup", 1.0),
        ("tests/a/test_x.py::test_1", "call", 2.0),
        ("tests/b/c/test_y.py::test_2[p]", "call", 7.0),
    ):
        report: Any = SimpleNamespace(nodeid=nodeid, when=when, duration=duration)
        table.pytest_runtest_logreport(report)
    assert [line.split() for line in table.lines()] == [
        ["7", "s", "1", "tests", "tests/b/c"],
        ["3", "s", "1", "tests", "tests/a"],
    ]
