"""The lines of a worker's log: those of a batch come together, and none is told otherwise."""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from casque import App
from casque.worker.attempt import Raised, Returned, RunningAttempt
from casque.worker.logging.events import LOGGER, Report
from casque.worker.logging.setup import JsonLines, LineHandler, TextLines, batched


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(params=[TextLines, JsonLines])
def lines(request: pytest.FixtureRequest, stream: io.StringIO) -> LineHandler:
    handler = LineHandler(stream)
    handler.setFormatter(request.param())
    return handler


@contextmanager
def alone(handler: LineHandler) -> Iterator[None]:
    """While this holds, nobody else is told; pytest itself listens otherwise."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)


@pytest.fixture
def attempt() -> RunningAttempt:
    app = App("memory://")

    @app.task
    def task() -> None: ...

    app.queue.enqueue("task")
    [job] = app.queue.dequeue()
    return RunningAttempt(job, app.tasks["task"], app.store.clock)


def test_a_line_is_the_same_whichever_way_it_came(
    lines: LineHandler, stream: io.StringIO, attempt: RunningAttempt
) -> None:
    with alone(lines):
        report = Report("me", attempt.task.app.store.clock)
        report.settled(attempt, Returned(None), None)
        with batched(LOGGER) as only:
            assert only is lines
            report.settled(attempt, Returned(None), None, only)
        by_record, directly = (
            re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z|\d\.\d{3} s", "?", line)
            for line in stream.getvalue().splitlines()
        )
        assert by_record == directly
        assert attempt.job.id in directly


def test_those_of_a_batch_are_written_at_its_end_but_warnings_at_once(
    lines: LineHandler, stream: io.StringIO, attempt: RunningAttempt
) -> None:
    with alone(lines):
        report = Report("me", attempt.task.app.store.clock)
        with batched(LOGGER) as only:
            report.settled(attempt, Returned(None), None, only)
            logging.getLogger("elsewhere").info("of a task")
            assert stream.getvalue() == ""
            report.settled(attempt, Raised(ValueError("no")), None, only)
            assert len(stream.getvalue().splitlines()) == 3
            report.settled(attempt, Returned(None), None, only)
            assert len(stream.getvalue().splitlines()) == 3
        assert len(stream.getvalue().splitlines()) == 4
        report.settled(attempt, Returned(None), None)
        assert len(stream.getvalue().splitlines()) == 5


def test_with_a_handler_or_filter_of_the_users_every_line_is_a_record(lines: LineHandler) -> None:
    with alone(lines):
        other = logging.NullHandler()
        LOGGER.addHandler(other)
        with batched(LOGGER) as only:
            assert only is None
        LOGGER.removeHandler(other)
        lines.addFilter(lambda _: True)
        with batched(LOGGER) as only:
            assert only is None
        lines.filters.clear()
        LOGGER.setLevel(logging.WARNING)
        with batched(LOGGER) as only:
            assert only is None, "it is not asked for"
        LOGGER.setLevel(logging.NOTSET)
        with batched(LOGGER) as only:
            assert only is lines


def test_so_it_is_with_a_formatter_of_the_users(lines: LineHandler) -> None:
    with alone(lines):
        lines.setFormatter(logging.Formatter("%(message)s"))
        with batched(LOGGER) as only:
            assert only is None


def test_a_log_that_nobody_reads_harms_nobody(
    lines: LineHandler, attempt: RunningAttempt, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    closed = LineHandler(Closed())
    closed.setFormatter(lines.formatter)
    report = Report("me", attempt.task.app.store.clock)
    with alone(closed):
        logging.getLogger("elsewhere").warning("of a task")
        with batched(LOGGER) as only:
            report.settled(attempt, Returned(None), None, only)
        report.settled(attempt, Returned(None), None, closed)
    assert capsys.readouterr().err == "", "and no complaint about it"


@pytest.fixture
def pipe() -> Iterator[tuple[LineHandler, IO[str]]]:
    """A log, and who reads it."""
    reads, writes = os.pipe()
    with (
        os.fdopen(reads, encoding="utf-8") as reader,
        os.fdopen(writes, "w", encoding="utf-8") as stream,
    ):
        handler = LineHandler(stream)
        handler.setFormatter(logging.Formatter("%(message)s"))
        yield handler, reader


def test_a_reader_that_hangs_holds_up_nobody_and_is_told_all_in_the_end(
    pipe: tuple[LineHandler, IO[str]],
) -> None:
    handler, reader = pipe
    told = [f"line {n} {'é' if n % 2 else 'e'}{'x' * n}" for n in range(1000)]
    with alone(handler):
        for one in told:
            logging.getLogger("elsewhere").info(one)
        assert [reader.readline() for _ in told] == [f"{one}\n" for one in told]
        logging.getLogger("elsewhere").info("last")
        assert reader.readline() == "last\n"


def test_what_is_too_much_is_dropped_and_counted(pipe: tuple[LineHandler, IO[str]]) -> None:
    handler, reader = pipe
    with alone(handler):
        for n in range(3000):
            logging.getLogger("elsewhere").info("%d %s", n, "x" * 1000)
    read = []
    while "dropped" not in (line := reader.readline()):
        read.append(int(line.split()[0]))
    assert read == list(range(len(read)))
    assert line == f"{3000 - len(read)} lines were dropped: nobody read this log\n"
    assert len(read) > 1000


def test_at_its_end_a_log_waits_for_its_reader_but_not_for_ever(
    pipe: tuple[LineHandler, IO[str]],
) -> None:
    handler, reader = pipe
    with alone(handler):
        for n in range(200):
            logging.getLogger("elsewhere").info("%d %s", n, "x" * 1000)
        handler.close()
        logging.getLogger("elsewhere").info("after")
    assert reader.readline().startswith("0 x")
