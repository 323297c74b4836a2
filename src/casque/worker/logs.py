"""Logs: what a worker's processes write to stderr, a line for each event."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import msgspec

from casque.clock import SECOND_US, to_datetime

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to log: a plain value, to be handed to another process."""

    level: int = logging.INFO
    format: Literal["text", "json"] = "text"
    yields: bool = False
    """Whether what the app's own module sets up takes the place of this."""


def set_up(options: LogOptions) -> None:
    """Write everything that is logged in this process to stderr, unless it yields to another."""
    root = logging.getLogger()
    if options.yields and root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if options.format == "json" else TextLines())
    root.addHandler(handler)
    root.setLevel(options.level)


class TextLines(logging.Formatter):
    """For people: the time, level, process, message, and its fields. A traceback follows."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        record.message = record.getMessage()
        line = f"{_time(record)} {record.levelname:<7} [{record.process}] {record.message}"
        if fields:
            line += f" ({fields})"
        trouble = _trouble(record, self)
        return f"{line}\n{trouble}" if trouble else line


class JsonLines(logging.Formatter):
    """For programs: one object a line, with what `extra=` gave as fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        told |= _fields(record)
        if trouble := _trouble(record, self):
            told["traceback"] = trouble
        return msgspec.json.encode(told, enc_hook=str).decode()


_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What is said of this event beyond its message: of which job, attempt, worker."""
    return {name: value for name, value in vars(record).items() if name not in _USUAL}


def _time(record: logging.LogRecord) -> str:
    instant = to_datetime(int(record.created * SECOND_US))
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trouble(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    if record.exc_info and not record.exc_text:
        record.exc_text = formatter.formatException(record.exc_info)
    stack = formatter.formatStack(record.stack_info) if record.stack_info else ""
    return "\n".join(part for part in (record.exc_text, stack) if part)
