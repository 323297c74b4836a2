"""Content ids: the same id for the same work, so that it is stored once."""

from __future__ import annotations

import os

import msgspec

from casque.checks import kind_of
from casque.errors import InvalidError

_DIGITS = 32


def content_id(*parts: object) -> str:
    """An id made of `parts`: 32 hexadecimal digits of a SHA-256.

    Equal parts give equal ids, in every process and version. A part is text, bytes,
    a number, None, a path, a date, or a list, dict or set of these. The order of the
    keys of a dict does not matter. An id is unique in a store, so include the names
    of the queue and the entrypoint if others may use equal parts.
    """
    from hashlib import sha256  # noqa: PLC0415 - most programs need no hash

    if not parts:
        raise InvalidError("an id needs content: write content_id('check-link', path, line).")
    try:
        content = msgspec.json.encode(parts, enc_hook=_plain, order="deterministic")
    except (TypeError, UnicodeError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidError(
            f"an id cannot be made of this: {error}. Pass texts, numbers, bytes, paths, and "
            "lists and dicts of them.",
            cause=error,
        ) from None
    return sha256(content).hexdigest()[:_DIGITS]


def _plain(part: object) -> str:
    if isinstance(part, os.PathLike):
        path = os.fspath(part)
        return path if isinstance(path, str) else os.fsdecode(path)
    raise TypeError(f"{kind_of(part)} is not plain content")
