"""The lines of a worker's log: a batch is written together, and every line is the same."""

from __future__ import annotations

import io
import json
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
    """Make this the only handler; pytest has its own otherwise."""
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


def test_a_line_is_the_same_with_and_without_a_record(
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


def test_a_batch_is_written_at_its_end_but_warnings_at_once(
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


def test_with_a_users_handler_or_filter_every_line_is_a_record(lines: LineHandler) -> None:
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
            assert only is None, "the level is disabled"
        LOGGER.setLevel(logging.NOTSET)
        with batched(LOGGER) as only:
            assert only is lines


def test_with_a_users_formatter_every_line_is_a_record(lines: LineHandler) -> None:
    with alone(lines):
        lines.setFormatter(logging.Formatter("%(message)s"))
        with batched(LOGGER) as only:
            assert only is None


def test_a_log_with_a_closed_stream_raises_nothing(
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
    assert capsys.readouterr().err == "", "no error is printed"


@pytest.fixture
def pipe() -> Iterator[tuple[LineHandler, IO[str]]]:
    """A log and its reader."""
    reads, writes = os.pipe()
    with (
        os.fdopen(reads, encoding="utf-8") as reader,
        os.fdopen(writes, "w", encoding="utf-8") as stream,
    ):
        handler = LineHandler(stream)
        handler.setFormatter(logging.Formatter("%(message)s"))
        yield handler, reader


def test_a_log_reader_that_hangs_blocks_nobody_and_gets_all_lines_later(
    pipe: tuple[LineHandler, IO[str]],
) -> None:
    handler, reader = pipe
    lines = [f"line {n} {'é' if n % 2 else 'e'}{'x' * n}" for n in range(1000)]
    with alone(handler):
        for one in lines:
            logging.getLogger("elsewhere").info(one)
        assert [reader.readline() for _ in lines] == [f"{one}\n" for one in lines]
        logging.getLogger("elsewhere").info("last")
        assert reader.readline() == "last\n"


def test_log_lines_beyond_the_limit_are_dropped_and_counted(
    pipe: tuple[LineHandler, IO[str]],
) -> None:
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


def test_closing_a_log_waits_for_its_reader_but_not_for_ever(
    pipe: tuple[LineHandler, IO[str]],
) -> None:
    handler, reader = pipe
    with alone(handler):
        for n in range(200):
            logging.getLogger("elsewhere").info("%d %s", n, "x" * 1000)
        handler.close()
        logging.getLogger("elsewhere").info("after")
    assert reader.readline().startswith("0 x")


def test_a_line_with_half_a_letter_and_a_number_that_json_lacks_is_json() -> None:
    record = logging.makeLogRecord({"msg": "x", "ratio": float("nan"), "file": "caf\udce9"})
    found = json.loads(JsonLines().format(record), parse_constant=pytest.fail)
    assert (found["ratio"], found["file"]) == (None, "caf\\udce9")
