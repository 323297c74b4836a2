"""Checks: validate the plain values that callers pass, and normalise them.

Each check raises InvalidError with a message that says what to write instead.
docs/reference states the size limits.
"""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Mapping
from datetime import datetime, timedelta

from casque.errors import InvalidError
from casque.job import Failure, HeaderPairs
from casque.system.clock import LONGEST_SPAN_US, span_us, to_datetime, to_us

NAME_BYTES = 512
HEADERS_BYTES = 1024
PAYLOAD_BYTES = 16 * 1024 * 1024
RESULT_BYTES = 64 * 1024
OUTPUT_BYTES = 64 * 1024
ERROR_BYTES = 16 * 1024
SMALLEST_INT, LARGEST_INT = -(2**31), 2**31 - 1

_NO_TIME, _LONGEST_SPAN = timedelta(0), timedelta(microseconds=LONGEST_SPAN_US)


def name(value: object, what: str) -> str:
    """Return a valid name as a plain str, also for a str subclass such as an enum."""
    if (
        type(value) is str
        and value.isascii()
        and 0 < len(value) <= NAME_BYTES
        and "\0" not in value
    ):
        return value
    value, size = whole_text(value, what)
    if not value:
        raise InvalidError(f"`{what}` must not be empty.")
    if size > NAME_BYTES:
        raise InvalidError(f"`{what}` is {size} bytes long; at most {NAME_BYTES} are allowed.")
    return value


def whole_text(value: object, what: str) -> tuple[str, int]:
    """Return text that must be stored unchanged, as a plain str, and its size in bytes."""
    if not isinstance(value, str):
        raise InvalidError(f"`{what}` must be text, not {kind_of(value)}.")
    return _storable(value, f"`{what}`")


def _storable(value: str, what: str) -> tuple[str, int]:
    """Return text that every store can hold, as a plain str, and its size in bytes."""
    # Not `str(value)`: for `class E(str, Enum)` that is not the value. And the codecs accept
    # only an exact str.
    value = str.__str__(value)
    if "\0" in value:
        raise InvalidError(f"{what} must not contain a NUL character: {value!r}.")
    try:
        return value, len(value.encode())
    except UnicodeEncodeError:
        raise InvalidError(
            f"{what} contains a lone surrogate, so it cannot be stored as text: {value!r}."
        ) from None


def headers(value: object) -> HeaderPairs:
    """The headers of a job as pairs of plain str."""
    if not isinstance(value, Mapping):
        raise InvalidError(
            f"`headers` must be a dict of text to text, not {kind_of(value)}: write "
            '{"name": "value"}.'
        )
    pairs: dict[str, str] = {}
    size = 0
    for key, text in value.items():
        plain, key_size = _header(key, "a key of `headers`")
        if not plain:
            raise InvalidError('a key of `headers` is empty: write {"name": "value"}.')
        pairs[plain], text_size = _header(text, f"`headers[{plain!r}]`")
        size += key_size + text_size
        if size > HEADERS_BYTES:
            raise InvalidError(
                f"`headers` are larger than {HEADERS_BYTES:,} bytes, keys and values together. "
                "Put the data into the payload."
            )
    return tuple(pairs.items())


def _header(value: object, what: str) -> tuple[str, int]:
    if not isinstance(value, str):
        call = "bytes.decode" if isinstance(value, bytes) else "str"
        raise InvalidError(f"{what} must be text, not {kind_of(value)}: write {call}(…).")
    return _storable(value, what)


def data(value: object, what: str, limit: int) -> bytes:
    if isinstance(value, str):
        raise InvalidError(f"`{what}` must be bytes, not str: write text.encode().")
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidError(f"`{what}` must be bytes, not {kind_of(value)}.")
    size = memoryview(value).nbytes
    if size > limit:
        raise InvalidError(
            f"`{what}` is {size:,} bytes; at most {limit:,} are allowed. Store the data "
            "elsewhere and pass its address."
        )
    return bytes(value)


def whole(value: object, what: str, at_least: int, hint: str = "") -> int:
    if type(value) is int and at_least <= value <= LARGEST_INT:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        aside = f" ({hint})" if hint else ""
        raise InvalidError(f"`{what}` must be a whole number{aside}, not {kind_of(value)}.")
    value = int.__index__(value)  # an exact int, as names are an exact str
    if not at_least <= value <= LARGEST_INT:
        raise InvalidError(f"`{what}` must be between {at_least} and {LARGEST_INT}, not {value}.")
    return value


def span(value: object, what: str) -> int:
    if type(value) is timedelta and _NO_TIME <= value <= _LONGEST_SPAN:
        return span_us(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise InvalidError(
            f"`{what}` must be a timedelta, not {kind_of(value)}: write timedelta(seconds={value})."
        )
    if not isinstance(value, timedelta):
        raise InvalidError(f"`{what}` must be a timedelta, not {kind_of(value)}.")
    us = span_us(value)
    if us < 0:
        raise InvalidError(f"`{what}` must not be negative: {value}.")
    if us > LONGEST_SPAN_US:
        raise InvalidError(f"`{what}` must be at most 100 years, not {value}.")
    return us


def positive_span(value: object, what: str) -> int:
    us = span(value, what)
    if not us:
        raise InvalidError(f"`{what}` must be longer than zero.")
    return us


def instant(value: object, what: str) -> int:
    if not isinstance(value, datetime):
        raise InvalidError(f"`{what}` must be a datetime, not {kind_of(value)}.")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidError(
            f"`{what}` has no time zone: write datetime.now(UTC), or set its tzinfo."
        )
    try:
        us = to_us(value)
        to_datetime(us)
    except OverflowError:
        raise InvalidError(f"`{what}` must be between the years 1 and 9999 in UTC.") from None
    return us


def failure(error: object) -> Failure:
    """The stored form of a text or an exception, cut to the size limits.

    It raises nothing, even if code of the exception, such as its `__str__`, raises.
    """
    if isinstance(error, BaseException):
        kind = type(error).__name__
        try:
            lines = "".join(tracebacks.format_exception(error))
        except BaseException as worse:  # noqa: BLE001 - its cause or notes may raise anything
            return Failure(kind, f"(formatting its traceback raised {type(worse).__name__})")
        return Failure(_head(kind), _head(describe(error)), _tail(lines))
    if not isinstance(error, str):
        raise InvalidError(f"`error` must be text or an exception, not {kind_of(error)}.")
    return Failure(text=_head(error))


def kept(failure: Failure) -> Failure:
    """Return a failure from another process, cut to the size limits."""
    return Failure(_head(failure.kind), _head(failure.text), _tail(failure.traceback))


def describe(value: object) -> str:
    """The text of an exception or other value, even if its `__str__` raises."""
    try:
        return str(value)
    except BaseException as mute:  # noqa: BLE001 - a bad __str__ must not hide the failure
        return f"(no text: its __str__ raised {type(mute).__name__})"


def text(value: object, what: str) -> str:
    """Text for people, cut to the size limit."""
    if not isinstance(value, str):
        raise InvalidError(f"`{what}` must be text, not {kind_of(value)}.")
    return _head(value)


def fraction(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidError(f"`progress` must be a number from 0 to 1, not {value!r}.")
    return float(value)


def tail(value: object) -> bytes:
    """The end of an output, cut to the size limit."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidError(f"`output` must be bytes, not {kind_of(value)}.")
    return bytes(memoryview(value).cast("B")[-OUTPUT_BYTES:])


def _head(text: str) -> str:
    # Not `text.encode`: a subclass of str may override it.
    return str.encode(text, errors="replace")[:ERROR_BYTES].decode(errors="ignore")


def _tail(text: str) -> str:
    return str.encode(text, errors="replace")[-ERROR_BYTES:].decode(errors="ignore")


def kind_of(value: object) -> str:
    """The name of the value's class, for a message."""
    return type(value).__name__
