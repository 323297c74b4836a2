"""Console: a worker's log for a person who watches it in a terminal.

The field `event` of a record selects its line. A record without this field is shown as is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from casque.system.terminal_text import cut, plain, plain_lines

SUPERVISOR_LOGGER = "casque.worker.supervisor"
"""The logger of a supervisor."""

_COMMAND_LENGTH = 200
_HIDDEN = frozenset({"ending", "ended"})
"""Events that other lines already show."""
_Line = Callable[[Mapping[str, Any]], str]

_LINES: Mapping[str, _Line] = {
    "starting": lambda of: f"Opening the store {of['store']}.",
    "registered": lambda _: "Started and registered.",
    "begun": lambda of: f"Processing job {of['job_id']}: {_short(of['what'])}",
    "done": lambda of: f"Job {of['job_id']} completed successfully.",
    "failed": lambda of: f"Job {of['job_id']} failed ({_short(of['what'])}).",
    "dead": lambda of: f"Job {of['job_id']} failed ({_short(of['what'])}).",
    "released": lambda of: f"Job {of['job_id']} released.",
    "mismatch": lambda of: f"Job {of['job_id']} does not fit; released ({_short(of['what'])}).",
    "snoozed": lambda of: f"Job {of['job_id']} snoozed.",
    "discarded": lambda of: f"Job {of['job_id']} discarded.",
    "lost": lambda of: f"Job {of['job_id']} lost: it was cancelled, or another worker has it.",
    "refused": lambda of: f"Job {of['job_id']} ended, but this worker no longer holds it.",
    "stopping": lambda _: "Shutdown signal received. Exiting...",
    "dismissed": lambda _: "Dismissed. Exiting...",
    "stopped": lambda _: "Stopped and unregistered.",
    "supervising": lambda of: f"Starting {of['count']} worker(s) in foreground mode...",
    "started": lambda of: f"Started worker PID: {of['child']}",
    "terminating": lambda of: f"Shutdown signal received. Terminating {of['count']} workers...",
    "hurried": lambda _: "Shutdown signal received again. Releasing the running jobs.",
    "died": lambda of: f"Worker {of['child']} {of['how']}. Starting another.",
    "replaced": lambda of: f"Worker {of['child']} {of['how']}. Starting another.",
    "let_go": lambda of: f"Worker {of['child']} was dismissed and is not replaced.",
    "killed": lambda of: f"Worker {of['child']} did not stop in time: killed.",
    "all_ended": lambda _: "All workers shut down. Exiting.",
}
_ALWAYS = frozenset({"registered", "begun", "stopping", "stopped"})
"""Logged at DEBUG, but shown: a person waits for them."""


class ConsoleLines(logging.Formatter):
    """Formats one line per event, as in `[Worker 20] Job job1 completed successfully.`."""

    def format(self, record: logging.LogRecord) -> str:
        who = "Manager" if record.name == SUPERVISOR_LOGGER else f"Worker {record.process}"
        line = _LINES.get(_event(record) or "")
        if line is not None:
            return f"[{who}] {plain(line(vars(record)))}"
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"[{who}] {plain_lines(text)}"


def shown(level: int) -> Callable[[logging.LogRecord], bool]:
    """Return a filter for records of `level` or above, plus those that a person waits for."""

    def is_shown(record: logging.LogRecord) -> bool:
        event = _event(record)
        if event in _HIDDEN:
            return False
        return record.levelno >= level or (event in _ALWAYS and level <= logging.INFO)

    return is_shown


def _short(text: str) -> str:
    """The text on one line, cut if it is long."""
    return cut(" ".join(text.split()), _COMMAND_LENGTH)


def _event(record: logging.LogRecord) -> str | None:
    event = getattr(record, "event", None)
    return event if isinstance(event, str) else None
