"""Content ids: the same id for the same work, so that it is stored once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import msgspec

from casque.checks import kind_of
from casque.errors import InvalidError

_DIGITS = 32


def content_id(*parts: object) -> str:
    """An id made of `parts`: 32 hexadecimal digits of a SHA-256.

    The same parts give the same id, in every process and version; 1 and 1.0 are not the
    same. A part is text, bytes, a finite number, None, a path, a date, or a list, dict
    or set of these. The order of the keys of a dict does not matter. An id is unique in
    a store, so include the names of the queue and the entrypoint if others may use equal
    parts.
    """
    from hashlib import sha256  # noqa: PLC0415 - most programs need no hash

    if not parts:
        raise InvalidError("an id needs content: write content_id('check-link', path, line).")
    try:
        _check_finite(parts)
        content = msgspec.json.encode(parts, enc_hook=_plain, order="deterministic")
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidError(
            f"an id cannot be made of this: {error}. Pass texts, numbers, bytes, paths, and "
            "lists and dicts of them.",
            cause=error,
        ) from None
    return sha256(content).hexdigest()[:_DIGITS]


def _check_finite(part: object) -> None:
    """Raise ValueError for infinity and NaN: as JSON both are null, so ids would be equal."""
    if isinstance(part, float) and not math.isfinite(part):
        raise ValueError(f"{part} has no form in JSON")
    if isinstance(part, Mapping):
        part = [*part.keys(), *part.values()]
    if isinstance(part, list | tuple | set | frozenset):
        for one in part:
            _check_finite(one)


def _plain(part: object) -> str:
    if isinstance(part, os.PathLike):
        path = os.fspath(part)
        return path if isinstance(path, str) else os.fsdecode(path)
    raise TypeError(f"{kind_of(part)} is not plain content")
