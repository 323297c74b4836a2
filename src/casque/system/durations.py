"""Durations as people write them: `90`, `500ms`, `30s`, `5m`, `2h`, `7d`."""

from __future__ import annotations

import re

from casque.errors import InvalidError
from casque.system.clock import LONGEST_SPAN_US, SECOND_US

FORM = "write 90 or 90s for seconds, 500ms, 5m, 2h or 7d"

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)
_UNITS_US = {
    "ms": 1_000,
    "s": SECOND_US,
    "m": 60 * SECOND_US,
    "h": 3_600 * SECOND_US,
    "d": 86_400 * SECOND_US,
}


def duration_us(text: str, what: str = "", *, at_least_us: int = 0) -> int:
    """Parse a duration to microseconds. Raises InvalidError, its message prefixed with `what`."""
    of = f"{what}: " if what else ""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidError(f"{of}{text!r} is not a duration: {FORM}.")
    span = float(found[1]) * _UNITS_US[found[2] or "s"]
    if span > LONGEST_SPAN_US:
        raise InvalidError(f"{of}{text[:50]!r} is too long: at most 100 years.")
    if round(span) < at_least_us:
        raise InvalidError(f"{of}{text!r} is too short: at least {told(at_least_us)}.")
    return round(span)


def told(us: int) -> str:
    """Return a span as text, in the largest unit that divides it evenly."""
    for unit in ("d", "h", "m", "s", "ms"):
        if us and not us % _UNITS_US[unit]:
            return f"{us // _UNITS_US[unit]}{unit}"
    seconds = f"{us / SECOND_US:.6f}".rstrip("0").rstrip(".")
    return f"{seconds}s"
