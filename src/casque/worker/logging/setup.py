"""Log setup of a worker's processes: one line per event, to stderr or to a console."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from typing import Any, ClassVar, Literal, TextIO
from weakref import WeakSet

import msgspec

from casque.system.clock import SECOND_US, SystemClock, to_datetime
from casque.system.forks import in_child
from casque.worker.logging.console import SUPERVISOR_LOGGER, ConsoleLines, shown
from casque.worker.logging.nonblocking_stream import NonblockingStream

WORKER_LOGGER = "casque.worker"
"""The logger of workers."""
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The log options: a plain value that can be sent to another process."""

    level: int = logging.INFO
    format: Literal["text", "json", "console"] = "text"
    """Console lines are for a person who watches, and go to stdout."""
    yields: bool = False
    """True if the logging that the app's own module sets up replaces this."""


_clock = SystemClock()
_pid = os.getpid
_current: list[LogOptions] = []


def current() -> LogOptions | None:
    """The log options of this process, for the processes that it starts."""
    return _current[-1] if _current else None


def set_up(options: LogOptions) -> None:
    """Add a handler for all logs of this process, unless `yields` is set and a handler exists."""
    _current.append(options)
    root = logging.getLogger()
    if options.yields and root.handlers:
        return
    if options.format == "console":
        if isinstance(sys.stdout, io.TextIOWrapper):  # commands may contain any character
            sys.stdout.reconfigure(errors="backslashreplace")
        handler = LineHandler(sys.stdout)
        handler.setFormatter(ConsoleLines())
        handler.addFilter(shown(options.level))
        if options.level <= logging.INFO:  # some events that it shows are logged at DEBUG
            logging.getLogger(WORKER_LOGGER).setLevel(logging.DEBUG)
    else:
        handler = LineHandler(sys.stderr)
        handler.setFormatter(JsonLines() if options.format == "json" else TextLines())
    root.addHandler(handler)
    root.setLevel(options.level)


def enable_loggers() -> None:
    """Enable our loggers again after the import of a user's modules.

    `dictConfig` and `fileConfig` disable every existing logger by default. Log levels do not
    change.
    """
    for name in ("casque", WORKER_LOGGER, SUPERVISOR_LOGGER):
        logging.getLogger(name).disabled = False


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, and all lines of a batch in one write.

    With one write per line, a busy worker would release the GIL for each line and wait for it
    again. That takes longer than the job.
    """

    held: ClassVar[int] = 0
    """How many batches are under way."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []
        self._stream_out = NonblockingStream(stream)
        _handlers.add(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n"
        except Exception:  # noqa: BLE001 - as logging's own handlers do
            self.handleError(record)
            return
        self._lines.append(line)
        if not LineHandler.held or record.levelno >= logging.WARNING:
            with suppress(OSError, ValueError):  # nobody reads it any more
                self.flush()

    def flush(self) -> None:
        with self.lock or nullcontext():
            lines, self._lines = self._lines, []
            if lines:
                self._stream_out.write("".join(lines))

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self.flush()
            self._stream_out.close()
        super().close()

    def forget(self) -> None:
        self._lines = []
        self._stream_out = NonblockingStream(self.stream)  # with a lock that nobody holds

    def is_all(self, logger: logging.Logger) -> bool:
        """True if this handler, and no other, gets all records of `logger`, unfiltered."""
        above: logging.Logger | None = logger
        while above is not None and above is not logger.root:
            if above.handlers or not above.propagate:
                return False
            above = above.parent
        if type(self.formatter) not in (TextLines, JsonLines) or self.level > logging.INFO:
            return False
        is_plain = not (logger.filters or self.filters)
        is_usual = logging.getLogRecordFactory() is logging.LogRecord
        return is_plain and is_usual and logger.root.handlers == [self]

    def say(self, message: str, fields: dict[str, Any]) -> None:
        """Write the line that a log record of level INFO would give, without making a record.

        Most lines of a log come from here.
        """
        formatter = self.formatter
        assert isinstance(formatter, TextLines | JsonLines)
        line = f"{formatter.line(_now(), message, fields)}\n"
        with self.lock or nullcontext():
            self._lines.append(line)
        if not LineHandler.held:
            with suppress(OSError, ValueError):  # nobody reads it any more
                self.flush()


_handlers: WeakSet[LineHandler] = WeakSet()
_counting = threading.Lock()


def _forget_in_child() -> None:
    """In the child of a fork, drop unwritten lines: the parent writes them."""
    global _counting  # noqa: PLW0603 - another thread may have held it
    _counting = threading.Lock()
    LineHandler.held = 0
    for handler in _handlers:
        handler.forget()


in_child(_forget_in_child)


def _only(logger: logging.Logger) -> LineHandler | None:
    handlers = logger.root.handlers
    handler = handlers[0] if handlers else None
    return handler if isinstance(handler, LineHandler) and handler.is_all(logger) else None


@contextmanager
def batched(logger: logging.Logger) -> Iterator[LineHandler | None]:
    """Write all lines of a batch together at its end; warnings and errors at once.

    Yields the only handler of `logger`, if it is one of ours.
    """
    with _counting:
        LineHandler.held += 1
    try:
        yield _only(logger) if logger.isEnabledFor(logging.INFO) else None
    finally:
        with _counting:
            LineHandler.held -= 1
        for handler in list(_handlers):
            with suppress(OSError, ValueError):  # nobody reads it any more
                handler.flush()


class TextLines(logging.Formatter):
    """Formats records for people: time, level, process, message, fields, then the traceback."""

    def line(self, time: str, message: str, fields: dict[str, Any]) -> str:
        """Return the line for a record of level INFO whose fields name a job."""
        details = f"queue={fields['queue']} worker={fields['worker']}"
        return f"{time} INFO    [{_pid()}] {message} ({details})"

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        fields = vars(record)
        # A worker's own messages name the job, its entrypoint and its attempt already.
        if f"(job {fields.get('job_id')}, " in record.message:
            details = f"queue={fields.get('queue')} worker={fields.get('worker')}"
        else:
            own = _IN_WORDS if "event" in fields else ()
            details = " ".join(
                f"{name}={value}" for name, value in _fields(record).items() if name not in own
            )
        line = f"{_time(record)} {record.levelname:<7} [{record.process}] {record.message}"
        if details:
            line += f" ({details})"
        trouble = _trouble(record, self)
        return f"{line}\n{trouble}" if trouble else line


class JsonLines(logging.Formatter):
    """Formats records for programs: one JSON object per line, with the fields of `extra=`."""

    def line(self, time: str, message: str, fields: dict[str, Any]) -> str:
        """A worker's own line of level INFO."""
        details = {
            "time": time,
            "level": "info",
            "logger": WORKER_LOGGER,
            "message": message,
            "pid": _pid(),
        }
        return _json(details | fields)

    def format(self, record: logging.LogRecord) -> str:
        details: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        details |= _fields(record)
        if trouble := _trouble(record, self):
            details["traceback"] = trouble
        return _json(details)


def _json(details: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(details, enc_hook=str).decode()
    except UnicodeEncodeError:  # lone surrogates, as from a file name that is not UTF-8
        import json  # noqa: PLC0415 - hardly ever needed

        # Shown as the text format shows them: `\udce9`, with its backslash escaped.
        text = json.dumps(msgspec.to_builtins(details, enc_hook=str), ensure_ascii=False)
        text = re.sub("[\ud800-\udfff]", lambda half: rf"\\u{ord(half[0]):04x}", text)
        return msgspec.json.encode(json.loads(text)).decode()  # as all lines: NaN is null


_IN_WORDS = frozenset({"event", "count", "child", "how", "what", "store", "requests"})
"""Fields that the messages of our own events repeat."""
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record beyond its message: job, attempt, worker."""
    return {name: value for name, value in vars(record).items() if name not in _USUAL}


def _time(record: logging.LogRecord) -> str:
    return _utc(int(record.created * 1000))


def _now() -> str:
    return _utc(_clock.now() // 1000)


def _utc(milliseconds: int) -> str:
    seconds, part = divmod(milliseconds, 1000)
    return f"{_second(seconds)}.{part:03}Z"


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    return to_datetime(seconds * SECOND_US).isoformat(timespec="seconds").removesuffix("+00:00")


def _trouble(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    if record.exc_info and not record.exc_text:
        record.exc_text = formatter.formatException(record.exc_info)
    stack = formatter.formatStack(record.stack_info) if record.stack_info else ""
    return "\n".join(part for part in (record.exc_text, stack) if part)
