"""Pickles, read without running what they name.

A pickle can name any function, and `pickle.loads` calls it. Here only classes of a short list
are found: plain containers, dates, and stand-ins for the classes of other queues. Any other
name raises InvalidError.
"""

from __future__ import annotations

import datetime as dt
import io
import pickle
import zlib
from typing import Any, BinaryIO, Self

from casque.errors import InvalidError
from casque.transfer.sources.pickle_keys import require_plain_keys

LARGEST_BYTES = 64 * 1024 * 1024

_DEEPEST = 100
_MOST_VALUES = 1_000_000
_GZIP, _ZLIB = b"\x1f\x8b", b"\x78"

_PLAIN: dict[tuple[str, str], Any] = {
    ("datetime", "datetime"): dt.datetime,
    ("datetime", "date"): dt.date,
    ("datetime", "timedelta"): dt.timedelta,
    ("datetime", "timezone"): dt.timezone,
}
_ERRORS = (
    *(pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, ImportError, LookupError),
    *(MemoryError, RecursionError, TypeError, ValueError),
)


class PickledMessage(tuple[Any, ...]):
    """huey's message: a tuple of its fields."""

    __slots__ = ()

    def __new__(cls, *fields: object) -> Self:
        return super().__new__(cls, fields)


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        # A class of its own: a pickle may set attributes of the classes that it names.
        self._message = type("PickledMessage", (PickledMessage,), {})

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("huey.registry", "Message"):
            return self._message
        try:
            return _PLAIN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it contains {module}.{name}") from None


def loads(data: bytes) -> Any:
    """The value in a pickle, which may be compressed.

    Raises InvalidError that says why it cannot be read.
    """
    data = _expanded(data)
    try:
        require_plain_keys(data)
        return _PlainUnpickler(io.BytesIO(data)).load()
    except InvalidError:
        raise
    except _ERRORS as error:
        why = str(error) or type(error).__name__
        raise InvalidError(f"its pickle was not read: {why}") from None


def _expanded(data: bytes) -> bytes:
    if not data.startswith((_GZIP, _ZLIB)):
        return data
    expander = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        whole = expander.decompress(data, LARGEST_BYTES)
    except zlib.error as error:
        raise InvalidError(f"its data cannot be expanded: {error}") from None
    if not expander.eof:
        raise InvalidError(f"its data is cut short, or larger than {LARGEST_BYTES:,} bytes")
    return whole


def require_small(value: object) -> None:
    """Raise InvalidError for a value that would be endless, or very large, as JSON.

    A pickle of a hundred bytes can refer to the same list so often that writing it out would
    fill the memory.
    """
    left = _MOST_VALUES
    level: list[object] = [value]
    for _ in range(_DEEPEST):
        deeper: list[object] = []
        for one in level:
            inside = _inside(one)
            left -= len(inside)
            if left < 0:
                raise InvalidError(f"it has more than {_MOST_VALUES:,} values")
            deeper.extend(inside)
        if not deeper:
            return
        level = deeper
    raise InvalidError(f"its values are nested deeper than {_DEEPEST} levels")


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidError(f"a key of a dict is {type(key).__name__}, and JSON needs text")
        return list(value.values())
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []
