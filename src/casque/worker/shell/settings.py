"""Settings of a store, which operators change: kept as records that all processes see.

They are the defaults of `queuectl` and of shell jobs. A job keeps the settings
that it was enqueued with. Only the backoff is read when an attempt fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from casque.checks import LARGEST_INT
from casque.errors import CasqueError, InvalidError
from casque.record import CONFIG, Record
from casque.retry import Backoff
from casque.rules.retention import DEAD_RETENTION_US
from casque.system.clock import LONGEST_SPAN_US, SECOND_US
from casque.system.durations import duration_us, told

if TYPE_CHECKING:
    import asyncio

    from casque.tasks.app import TaskApp

_DAY_US = 86_400 * SECOND_US
_LARGEST_BASE = 1_000
_LONGEST_NUMBER = 10
_FRESH_US = SECOND_US
_WAIT_SECONDS = 2.0
"""How long to wait for a storage that may not answer."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, with their defaults."""

    max_retries: int = 3
    """Total attempts: a job is dead after this many."""
    backoff_base: float = 2.0
    """After the n-th failed attempt a job waits base ** n seconds."""
    backoff_max_us: int = 3_600 * SECOND_US
    timeout_us: int | None = None
    """How long one attempt may take; None: no limit."""
    lease_us: int = 60 * SECOND_US
    retention_us: int = 7 * _DAY_US
    """How long a completed job is kept."""
    dead_retention_us: int | None = DEAD_RETENTION_US
    """How long a dead or cancelled job is kept; None: for ever. The store applies it."""
    poll_interval_us: int | None = None
    """The longest sleep of a worker before it asks for jobs; None: the store decides."""
    max_depth: int = 16

    def backoff(self) -> Backoff:
        """Base ** attempts seconds, at most `backoff_max`, without jitter."""
        return Backoff(
            base=timedelta(seconds=self.backoff_base),
            factor=max(self.backoff_base, 1.0),
            cap=timedelta(microseconds=self.backoff_max_us),
            jitter=0.0,
        )


class Setting(msgspec.Struct, frozen=True):
    """One setting: how it is parsed, checked, shown and explained."""

    key: str
    field: str
    parse: Callable[[str], Any]
    fits: Callable[[Any], bool]
    """True if the value is valid: anyone may have written the record."""
    help: str

    def value_of(self, settings: Settings) -> Any:
        return getattr(settings, self.field)

    def shown(self, settings: Settings) -> str:
        value = self.value_of(settings)
        if value is None:
            return "none"
        if self.field.endswith("_us"):
            return told(value)
        return str(value) if isinstance(value, int) else f"{value:g}"


def _is_whole(value: object, at_least: int, at_most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value <= at_most


def _whole(key: str, at_least: int, explained: str) -> Setting:
    def parse(text: str) -> int:
        is_number = text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
        if not is_number or not at_least <= int(text) <= LARGEST_INT:
            raise InvalidError(
                f"expected a whole number from {at_least} to {LARGEST_INT}, got {text!r}."
            )
        return int(text)

    def fits(value: object) -> bool:
        return _is_whole(value, at_least, LARGEST_INT)

    return Setting(key, key, parse, fits, explained)


def _base(key: str, explained: str) -> Setting:
    def fits(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return value == 0 or 1 <= value <= _LARGEST_BASE

    def parse(text: str) -> float:
        try:
            base = float(text)
        except ValueError:
            base = -1.0
        if not fits(base):
            raise InvalidError(
                f"expected a number from 1 to {_LARGEST_BASE}, or 0 to retry at once; got {text!r}."
            )
        return base

    return Setting(key, key, parse, fits, explained)


def _span(key: str, at_least_us: int, explained: str, *, or_none: bool = False) -> Setting:
    def parse(text: str) -> int | None:
        if or_none and text == "none":
            return None
        return duration_us(text, at_least_us=at_least_us)

    def fits(value: object) -> bool:
        return (or_none and value is None) or _is_whole(value, at_least_us, LONGEST_SPAN_US)

    return Setting(key, f"{key}_us", parse, fits, explained)


SETTINGS: Mapping[str, Setting] = {
    one.key: one
    for one in (
        _whole("max_retries", 1, "total attempts before a job is dead"),
        _base("backoff_base", "the n-th retry waits base ** n seconds"),
        _span("backoff_max", 0, "the longest wait before a retry"),
        _span("timeout", 1, "how long one attempt may take", or_none=True),
        _span("lease", SECOND_US, "how long until a lost worker's jobs run again"),
        _span("retention", 0, "how long completed jobs are kept"),
        _span("dead_retention", 0, "how long dead and cancelled jobs are kept", or_none=True),
        _span("poll_interval", 1_000, "how often idle workers check for jobs", or_none=True),
        _whole("max_depth", 0, "how deep jobs that enqueue jobs may nest"),
    )
}


def setting(key: str) -> Setting:
    """Return the setting of that name. InvalidError, with the list of names, if there is none."""
    found = SETTINGS.get(key)
    if found is None:
        raise InvalidError(f"there is no setting {key!r}; choose one of {', '.join(SETTINGS)}.")
    return found


def encoded(key: str, text: str) -> bytes:
    """Encode a value for a record of kind CONFIG. InvalidError if it is invalid for the setting."""
    one = setting(key)
    try:
        return msgspec.json.encode(one.parse(text.strip()))
    except InvalidError as error:
        raise InvalidError(f"{key}: {error}") from None


def settings_of(records: Iterable[Record]) -> Settings:
    """The settings in records of kind CONFIG; invalid and unknown ones are ignored."""
    given = {SETTINGS[key].field: value for key, value in _values(records) if _fits(key, value)}
    return Settings(**given)


def unfit(records: Iterable[Record]) -> list[str]:
    """Return the settings with an invalid record, for example one that was written by hand."""
    return [key for key, value in _values(records) if not _fits(key, value)]


def _values(records: Iterable[Record]) -> Iterator[tuple[str, Any]]:
    for record in records:
        if record.name in SETTINGS:
            try:
                yield record.name, msgspec.json.decode(record.value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                yield record.name, UNSET


def _fits(key: str, value: Any) -> bool:
    return value is not UNSET and SETTINGS[key].fits(value)


class LiveSettings:
    """The settings of an app's store, read again when they are needed and older than a second."""

    def __init__(self, app: TaskApp) -> None:
        self._app = app
        self.known = Settings()
        """The settings of the last read; the defaults before that."""
        self._read_us: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._trouble = ""
        """The invalid settings of the last read, which are logged once."""

    async def refresh(self) -> None:
        """Read the settings again if they are old; keep them if the storage does not answer."""
        import asyncio  # noqa: PLC0415 - `queuectl` reads settings without it

        now = self._app.store.clock.monotonic()
        if self._read_us is not None and now - self._read_us < _FRESH_US:
            return
        reading, loop = self._reading, asyncio.get_running_loop()
        if reading is None or reading.done() or reading.get_loop() is not loop:
            reading = self._reading = asyncio.create_task(self._read(now))
        await asyncio.wait([reading], timeout=_WAIT_SECONDS)

    async def _read(self, now: int) -> None:
        try:
            records = await self._app.async_queue._session.records(CONFIG)  # noqa: SLF001
        except CasqueError:
            return  # the storage does not answer; the worker logs that
        self._read_us, self.known = now, settings_of(records)
        trouble = ", ".join(unfit(records))
        if trouble and trouble != self._trouble:
            import logging  # noqa: PLC0415 - and without this

            logging.getLogger("casque.worker").warning(
                "settings in the store are invalid and were ignored: %s; set them again with "
                "`queuectl config set`",
                trouble,
            )
        self._trouble = trouble
