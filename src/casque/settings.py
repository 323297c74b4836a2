"""Settings: what an operator sets for all of a store: records, so every process sees the same.

They are the defaults of `queuectl` and of shell jobs. A job keeps those that
it was enqueued with; how long to wait after a failure is looked up then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from casque.arguments import LARGEST_INT
from casque.clock import SECOND_US
from casque.durations import duration_us, told
from casque.errors import InvalidError
from casque.record import Record
from casque.retry import Backoff

_DAY_US = 86_400 * SECOND_US
_LARGEST_BASE = 1_000


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All of them, with what holds when nobody has set it."""

    max_retries: int = 3
    """Attempts in all: a job is dead when it has had so many."""
    backoff_base: float = 2.0
    """After the n-th failed attempt a job waits base ** n seconds."""
    backoff_max_us: int = 3_600 * SECOND_US
    timeout_us: int | None = None
    """How long one attempt may take; None: as long as it likes."""
    lease_us: int = 60 * SECOND_US
    retention_us: int = 7 * _DAY_US
    """How long a completed job stays to be looked at."""
    poll_interval_us: int | None = None
    """How long a worker sleeps at most before it looks for jobs; None: as the store needs."""
    max_depth: int = 16

    def backoff(self) -> Backoff:
        """Base ** attempts seconds, at most `backoff_max`, and nothing left to chance."""
        return Backoff(
            base=timedelta(seconds=self.backoff_base),
            factor=max(self.backoff_base, 1.0),
            cap=timedelta(microseconds=self.backoff_max_us),
            jitter=0.0,
        )


class Setting(msgspec.Struct, frozen=True):
    """One of them, as it is written, shown and explained."""

    key: str
    field: str
    parse: Callable[[str], Any]
    help: str

    def value_of(self, settings: Settings) -> Any:
        return getattr(settings, self.field)

    def shown(self, settings: Settings) -> str:
        value = self.value_of(settings)
        if value is None:
            return "none"
        return told(value) if self.field.endswith("_us") else f"{value:g}"


def _whole(at_least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not at_least <= int(text) <= LARGEST_INT:
            raise InvalidError(f"{text!r} is not a whole number from {at_least} on.")
        return int(text)

    return parse


def _base(text: str) -> float:
    try:
        base = float(text)
    except ValueError:
        base = -1.0
    if base != 0 and not 1 <= base <= _LARGEST_BASE:
        raise InvalidError(
            f"{text!r} is not a number from 1 to {_LARGEST_BASE}, or 0 to try again at once."
        )
    return base


def _span(at_least_us: int) -> Callable[[str], int]:
    return lambda text: duration_us(text, at_least_us=at_least_us)


def _span_or_none(at_least_us: int) -> Callable[[str], int | None]:
    def parse(text: str) -> int | None:
        return None if text == "none" else duration_us(text, at_least_us=at_least_us)

    return parse


SETTINGS: Mapping[str, Setting] = {
    one.key: one
    for one in (
        Setting("max_retries", "max_retries", _whole(1), "attempts in all, then a job is dead"),
        Setting("backoff_base", "backoff_base", _base, "the n-th retry waits base ** n seconds"),
        Setting("backoff_max", "backoff_max_us", _span(0), "and never longer than this"),
        Setting("timeout", "timeout_us", _span_or_none(1), "how long one attempt may take"),
        Setting(
            "lease", "lease_us", _span(SECOND_US), "after which a lost worker's jobs run again"
        ),
        Setting("retention", "retention_us", _span(0), "how long completed jobs are kept"),
        Setting(
            "poll_interval", "poll_interval_us", _span_or_none(1_000), "how often idle workers look"
        ),
        Setting("max_depth", "max_depth", _whole(0), "how deep jobs may enqueue jobs"),
    )
}


def setting(key: str) -> Setting:
    """The setting of that name. InvalidError, with the list of the right ones, when none is."""
    found = SETTINGS.get(key)
    if found is None:
        raise InvalidError(f"there is no setting {key!r}; choose one of {', '.join(SETTINGS)}.")
    return found


def encoded(key: str, text: str) -> bytes:
    """The value of a record of kind CONFIG. InvalidError when the setting cannot have it."""
    one = setting(key)
    try:
        return msgspec.json.encode(one.parse(text.strip()))
    except InvalidError as error:
        raise InvalidError(f"{key}: {error}") from None


def settings_of(records: Iterable[Record]) -> Settings:
    """What the records of kind CONFIG say. One that a later version wrote is not minded."""
    given = {
        SETTINGS[record.name].field: msgspec.json.decode(record.value)
        for record in records
        if record.name in SETTINGS
    }
    return msgspec.convert(given, Settings)
